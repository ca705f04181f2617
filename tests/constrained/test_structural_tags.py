"""Free text in which a tag begins a confined region: every text, and how it is asked for."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

import lmprog
from lmprog import wire
from lmprog.errors import InvalidParameter
from lmprog.server.http.http_errors import HttpError
from lmprog.server.openai.completions import CompletionBody
from lmprog.server.openai.output_constraint import constraint_of
from lmprog.server.sglang.generate_body import GenerateSampling
from lmprog.tool_calls.structural_tags import TagError, structural_tag
from tests.constrained.writer import Writer, byte_tokenizer

POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"],
         "additionalProperties": False}  # fmt: skip
OLD: dict[str, Any] = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<function=point>", "schema": POINT, "end": "</function>"},
        {"begin": "<function=flag>", "schema": {"type": "boolean"}, "end": "</function>"},
    ],
    "triggers": ["<function="],
}


def triggered(**more: Any) -> dict[str, Any]:
    content = {"type": "regex", "pattern": "[0-9]+"}
    tags = [{"type": "tag", "begin": "<n>", "content": content, "end": "</n>"}]
    return {"format": {"type": "triggered_tags", "triggers": ["<n"], "tags": tags, **more}}


def test_text_is_free_and_a_tag_is_confined() -> None:
    made = lmprog.constraint(structural_tag=OLD)
    call = '<function=point>{"x": 12}</function>'
    for good in (
        "",
        "no call, but 1 < 2 and <fun>",
        call,
        f"I ask.\n{call} and {call}<function=flag>true</function> é <function",
        "<<function=flag>false</function>",
    ):
        assert made.accepts(good), good
    for bad in (
        "<function=",
        "<function=other>{}</function>",
        "<function=flag>maybe</function>",
        '<function=point>{"x": "12"}</function>',
        f"{call} <function=flag>true</func",
        '<function=point>{"y": 1}</function>',
    ):
        assert not made.accepts(bad), bad


def test_a_trigger_is_seen_whatever_stands_before_it() -> None:
    made = lmprog.constraint(structural_tag=triggered(triggers=["<n"]))
    rng = random.Random(3)
    for _ in range(3000):
        text = "".join(
            rng.choice(["<", "n", ">", "1", "<n>1</n>"]) for _ in range(rng.randrange(7))
        )
        rest = text
        while rest.partition("<n")[1]:
            after = rest.partition("<n")[2]
            digits, end, rest = after.partition("</n>")
            if not (end and digits[:1] == ">" and digits[1:].isdigit()):
                break
        else:
            assert made.accepts(text), text
            continue
        assert not made.accepts(text), text


def test_one_tag_at_least_and_one_at_most() -> None:
    least = lmprog.constraint(structural_tag=triggered(at_least_one=True))
    assert [least.accepts(text) for text in ("", "a", "a<n>1</n>b")] == [False, False, True]
    once = lmprog.constraint(structural_tag=triggered(stop_after_first=True))
    assert [once.accepts(text) for text in ("", "a<n>1</n>", "a<n>1</n>b")] == [True, True, False]
    none = lmprog.constraint(structural_tag=triggered(excludes=["stop"]))
    assert [none.accepts(text) for text in ("sto<n>1</n>p", "a stop", "stop<n>1</n>")] == [
        True,
        False,
        False,
    ]


def test_a_thought_and_then_an_answer() -> None:
    think = {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>"}
    answer = {"type": "or", "elements": [
        {"type": "const_string", "value": "none"}, {"type": "json_schema", "json_schema": POINT}]}  # fmt: skip
    made = lmprog.constraint(
        structural_tag={"format": {"type": "sequence", "elements": [think, answer]}}
    )
    for good in ('<think>a </thin b</think>{"x": 1}', "<think></think>none"):
        assert made.accepts(good), good
    for bad in ("none", "<think>a</think>b</think>none", "<think>a</think>"):
        assert not made.accepts(bad), bad


def test_tags_with_a_separator() -> None:
    tag = {"begin": "(", "content": {"type": "regex", "pattern": "[a-z]"}, "end": ")"}
    made = lmprog.constraint(
        structural_tag={"format": {"type": "tags_with_separator", "tags": [tag], "separator": ", "}}
    )
    assert [made.accepts(text) for text in ("", "(a)", "(a), (b)", "(a)(b)", "(a), ")] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_a_tag_that_is_begun_is_closed_within_the_budget() -> None:
    """Whatever the model wants: a tag begins only where it can end."""
    constraint = structural_tag(triggered())
    compiled = lmprog.constraint(structural_tag=triggered())
    liked = tuple((ord(letter), 20.0) for letter in "<n>1")
    asked = [
        (constraint, wire.SamplingParams(max_tokens=left, seed=seed, logit_bias=liked))
        for left in range(1, 16)
        for seed in range(6)
    ]
    tags = 0
    for reply in Writer(byte_tokenizer()).ask(*asked):
        assert isinstance(reply, wire.CallDone)
        assert compiled.accepts(reply.outputs[0].text), reply.outputs[0].text
        tags += reply.outputs[0].text.count("</n>")
    assert tags > 0


SPELLINGS: list[dict[str, Any]] = [
    {"response_format": OLD},
    {"structured_outputs": {"structural_tag": json.dumps(OLD)}},
    {"structured_outputs": {"structural_tag": OLD}},
    {"structural_tag": OLD},
]


@pytest.mark.parametrize("fields", SPELLINGS, ids=str)
def test_requests_ask_for_tags_as_sglang_and_vllm_do(fields: dict[str, Any]) -> None:
    made = constraint_of(msgspec.convert({"prompt": "x", **fields}, CompletionBody))
    assert made.constraint == structural_tag(OLD)


def test_generate_takes_tags_among_its_sampling_parameters() -> None:
    given = {"structural_tag": json.dumps(triggered())}
    made = msgspec.convert(given, GenerateSampling).constraint()
    assert made == structural_tag(triggered())


def test_the_new_form_travels_in_a_response_format() -> None:
    body = {"prompt": "x", "response_format": {"type": "structural_tag", **triggered()}}
    made = constraint_of(msgspec.convert(body, CompletionBody))
    assert made.constraint == structural_tag(triggered())


@pytest.mark.parametrize(
    ("tag", "place"),
    [
        ("{", ""),
        ({}, "structures"),
        ({**OLD, "triggers": []}, "triggers"),
        ({**OLD, "triggers": ["<x"]}, "triggers"),
        ({**OLD, "structures": [{"begin": "<function=a>", "end": ""}]}, "structures[0].schema"),
        ({**OLD, "stuctures": []}, "stuctures"),
        ({"format": {"type": "qwen_xml_parameter"}}, "format.json_schema"),
        (triggered(at_least_one=1), "format.at_least_one"),
        (
            {"format": {"type": "tag", "begin": "<", "content": {"type": "any_text"}, "end": ""}},
            "format.end",
        ),
    ],
    ids=str,
)
def test_what_is_wrong_in_a_tag_is_named(tag: dict[str, Any] | str, place: str) -> None:
    with pytest.raises(TagError) as caught:
        structural_tag(tag)
    assert caught.value.field == place
    with pytest.raises(InvalidParameter, match="structural_tag"):
        lmprog.gen("x", structural_tag=tag)
    body = {"prompt": "x", "structured_outputs": {"structural_tag": tag}}
    with pytest.raises(HttpError) as refused:
        constraint_of(msgspec.convert(body, CompletionBody))
    field = "structured_outputs.structural_tag"
    assert refused.value.problem.param == (f"{field}.{place}" if place else field)


XML = {"type": "object", "required": ["a"], "properties": {"a": {"type": "string"},
       "n": {"type": "integer"}}, "additionalProperties": False}  # fmt: skip
ONE: dict[str, Any] = {"type": "const_string", "value": "ab"}
QWEN = "<parameter=a>x</parameter>"


@pytest.mark.parametrize(
    ("given", "good", "bad"),
    [
        ({"type": "optional", "content": ONE}, ["", "ab"], ["abab"]),
        ({"type": "star", "content": ONE}, ["", "abab"], ["aba"]),
        ({"type": "plus", "content": ONE}, ["ab", "abab"], [""]),
        ({"type": "repeat", "content": ONE, "min": 1, "max": 2}, ["ab", "abab"], ["", "ababab"]),
        ({"type": "repeat", "content": ONE, "min": 1, "max": -1}, ["ababab"], [""]),
        ({"type": "grammar", "grammar": 'root ::= "a" | "(" root ")"'}, ["((a))"], ["(a"]),
        ({"type": "token", "token": "<|end|>"}, ["<|end|>"], ["<|end|"]),
        (
            {"type": "qwen_xml_parameter", "json_schema": XML},
            [QWEN, QWEN + "<parameter=n>3</parameter>"],
            ["", "<parameter=n>3</parameter>", QWEN + "<parameter=n>x</parameter>"],
        ),
        (
            {"type": "json_schema", "json_schema": XML, "style": "glm_xml"},
            ["<arg_key>a</arg_key><arg_value>x</arg_value>"],
            [QWEN, '{"a": "x"}'],
        ),
        (
            {"type": "json_schema", "json_schema": XML, "style": "minimax_xml"},
            ['<parameter name="a">x</parameter>'],
            [QWEN],
        ),
        (
            {
                "type": "tag",
                "begin": {"type": "token", "token": "<t>"},
                "content": ONE,
                "end": ["."],
            },
            ["<t>ab."],
            ["<t>ab"],
        ),
    ],
)
def test_ready_made_formats_mean_what_they_mean_elsewhere(
    given: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    made = lmprog.constraint(structural_tag={"format": given})
    assert [made.accepts(text) for text in (*good, *bad)] == [True] * len(good) + [False] * len(bad)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"type": "token", "token": 7}, "format.token"),
        ({"type": "repeat", "content": ONE, "min": 3, "max": 2}, "format.min"),
        ({"type": "repeat", "content": ONE, "min": True, "max": 2}, "format.min"),
        ({"type": "json_schema", "json_schema": XML, "style": "yaml"}, "format.style"),
        ({"type": "exclude_token", "exclude_tokens": []}, "format.type"),
    ],
)
def test_what_cannot_be_meant_names_its_field(given: dict[str, Any], field: str) -> None:
    with pytest.raises(TagError) as caught:
        structural_tag({"format": given})
    assert caught.value.field == field
