"""Calls are read out of an answer the same way, however it is cut into pieces."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmprog import wire
from lmprog.runtime.text.chat_template import ChatTemplate
from lmprog.runtime.text.tool_call_derivation import tool_support
from lmprog.tool_calls.known_forms import known_form_of
from lmprog.tool_calls.lexemes import is_tag, lexemes
from lmprog.tool_calls.reading import MALFORMED, ParsedCall
from lmprog.tool_calls.stream import CallStream, mark_of
from lmprog.tool_calls.writing import WrittenCall, written
from tests.tool_calls.call_templates import ENDS, FAMILIES, native

TOOLS: dict[str, Any] = {
    "add": {"properties": {"a": {"type": "integer"}}},
    "say": {"properties": {"text": {"type": "string"}}},
}
CALLS = [
    WrittenCall("add", {"a": 12}, "abcdefgh1"),
    WrittenCall("say", {"text": "a < b\n[x]"}, "abcdefgh2"),
    WrittenCall("add", {}, "abcdefgh3"),
]


@functools.cache
def form_of(family: str) -> wire.CallForm:
    if family in FAMILIES:
        return tool_support(ChatTemplate(native(FAMILIES[family]), {}), ENDS).form
    return known_form_of({"granite": "<|tool_call|>", "pythonic": "<|tool_list_start|>"}[family])[1]


EVERY = [*FAMILIES, "granite", "pythonic"]


def read(form: wire.CallForm, text: str, cuts: list[int]) -> tuple[str, list[ParsedCall]]:
    stream = CallStream(form, TOOLS)
    borders = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    parts = [part for at, to in itertools.pairwise(borders) for part in stream.feed(text[at:to])]
    parts += stream.finish()
    return (
        "".join(part for part in parts if isinstance(part, str)),
        [part for part in parts if isinstance(part, ParsedCall)],
    )


@pytest.mark.parametrize("family", EVERY)
@given(st.lists(st.integers(0, 1000), max_size=12))
@settings(max_examples=15)
def test_every_form_is_read_in_any_pieces(family: str, cuts: list[int]) -> None:
    form = form_of(family)
    calls = CALLS if form.is_parallel else CALLS[1:2]
    content, found = read(form, written(form, calls), cuts)
    assert content.strip() == ""
    assert [(call.name, json.loads(call.arguments)) for call in found] == [
        (call.name, call.arguments) for call in calls
    ]


@pytest.mark.parametrize("family", [name for name in EVERY if name != "llama"])
def test_content_before_the_calls_is_passed_on(family: str) -> None:
    form = form_of(family)
    content, found = read(form, "I add them.\n" + written(form, CALLS[:1]), [3, 14, 20])
    assert content.strip() == "I add them."
    assert [call.name for call in found] == ["add"]


@pytest.mark.parametrize("family", EVERY)
def test_plain_text_is_content_in_every_form(family: str) -> None:
    text = 'Well: if a < b, then [b] {"name" is "x"}.'
    assert read(form_of(family), text, [1, 5, 9, 20]) == (text, [])


@pytest.mark.parametrize("family", EVERY)
def test_a_call_of_another_tool_is_content(family: str) -> None:
    form = form_of(family)
    text = written(form, [WrittenCall("other", {}, "abcdefgh1")])
    content, found = read(form, text, [])
    assert found == []
    assert content.strip() == text.strip()


def test_a_form_without_tags_counts_at_the_beginning_only() -> None:
    form = form_of("llama")
    call = written(form, CALLS[:1])
    assert read(form, "It is " + call, [])[1] == []
    assert [one.name for one in read(form, "\n" + call, [2])[1]] == ["add"]


def test_an_answer_of_another_shape_is_passed_on_as_soon_as_it_cannot_be_a_call() -> None:
    stream = CallStream(form_of("llama"), TOOLS)
    assert stream.feed('{"na') == []
    assert stream.feed('tion": 1') == ['{"nation": 1']
    assert stream.feed("}") == ["}"]


@pytest.mark.parametrize("family", ["hermes", "coder", "functionary"])
def test_a_call_whose_last_tag_was_a_stop_text_is_whole(family: str) -> None:
    form = form_of(family)
    text = written(form, CALLS[:1])
    assert [call.name for call in read(form, text[: text.rindex("</")], [])[1]] == ["add"]


@pytest.mark.parametrize("family", ["hermes", "mistral", "glm", "kimi"])
def test_a_call_cut_in_its_arguments_is_content(family: str) -> None:
    form = form_of(family)
    text = written(form, [WrittenCall("say", {"text": "long " * 9}, "abcdefgh1")])
    cut = text[: text.index("long") + 20]
    assert read(form, cut, [7]) == (cut.lstrip() if cut[0] == "\n" else cut, [])


@pytest.mark.parametrize("tells_wrong", [True, False])
@pytest.mark.parametrize("family", EVERY)
def test_no_call_that_something_else_cut_has_fewer_arguments_than_were_meant(
    family: str, tells_wrong: bool
) -> None:
    form = form_of(family)
    tools = {"say": {"properties": {"n": {"type": "integer"}, "text": {"type": "string"}}}}
    for arguments in ({"n": 1234}, {"text": "a", "n": 12}, {"n": 12, "text": "all of it"}, {}):
        made = [WrittenCall("say", arguments, f"abcdefgh{nth}") for nth in range(2)]
        text = written(form, made).strip()
        for size in range(len(text) + 1):
            for finish, stop in (("length", None), ("stop", text[size : size + 1] or None)):
                stream = CallStream(form, tools, tells_wrong=tells_wrong)
                output = wire.Output(text[:size], (), finish, stop)  # type: ignore[arg-type]
                parts = [*stream.feed(output.text), *stream.finish(output)]
                calls = [one for one in parts if isinstance(one, ParsedCall) and not one.problem]
                assert all(json.loads(one.arguments) == arguments for one in calls), output


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('<tool_call>{"arguments":{"a":1},"name":"add"}</tool_call>', {"a": 1}),
        ('<tool_call>\n\n{"name": "add", "arguments": "{\\"a\\": 2}"}</tool_call>', {"a": 2}),
        ('<tool_call>{ "name" : "add" , "arguments" : { } }\n</tool_call>', {}),
    ],
)
def test_white_space_and_the_order_of_fields_may_differ(
    text: str, arguments: dict[str, int]
) -> None:
    (call,) = read(wire.HERMES, text, [])[1]
    assert json.loads(call.arguments) == arguments


@pytest.mark.parametrize(
    ("raw", "schema", "value"),
    [
        ("7", {"type": "string"}, "7"),
        ("7", {"type": "integer"}, 7),
        ("True", {"type": "boolean"}, True),
        ("None", {}, None),
        ("['a', 1]", {"type": "array"}, ["a", 1]),
        ("some words", {}, "some words"),
    ],
)
def test_a_value_without_quotes_has_the_type_of_its_schema(
    raw: str, schema: dict[str, str], value: Any
) -> None:
    text = f"<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>{raw}</arg_value>\n</tool_call>"
    stream = CallStream(form_of("glm"), {"f": {"properties": {"x": schema}}})
    (call,) = [part for part in [*stream.feed(text), *stream.finish()] if part]
    assert isinstance(call, ParsedCall)
    assert json.loads(call.arguments) == {"x": value}


def tags_of(form: wire.CallForm) -> list[str]:
    text = [form.begin, form.between, form.end, *form.literals]
    return [tag for tag in dict.fromkeys(lexemes("\n".join(text))) if is_tag(tag)]


def places(text: str, tags: list[str]) -> list[int]:
    return [found.start() for tag in tags for found in re.finditer(re.escape(tag), text)]


def told(stream: CallStream, text: str, tags: list[int], size: int) -> tuple[str, list[ParsedCall]]:
    """What it tells of a text in pieces of that size, with these tokens of tags."""
    parts = []
    for at in range(0, len(text), size):
        piece = text[at : at + size]
        parts += stream.feed(piece, [tag - at for tag in tags if at <= tag < at + len(piece)])
    parts += stream.finish()
    content = "".join(part for part in parts if isinstance(part, str))
    return content, [part for part in parts if isinstance(part, ParsedCall)]


def indented(call: str) -> str:
    return call.replace("\n", "\n    ")


def not_closed(call: str) -> str:
    return re.sub(r"\s*</(parameter|arg_value|DSML.parameter)>", "", call)


@pytest.mark.parametrize("are_tokens", [True, False])
@pytest.mark.parametrize("spoil", [indented, not_closed])
@pytest.mark.parametrize("family", ["glm", "coder", "dsml"])
def test_no_value_goes_on_over_the_end_of_its_call(
    family: str, spoil: Callable[[str], str], are_tokens: bool
) -> None:
    form = form_of(family)
    call = written(form, CALLS[1:2]).strip()
    text = f"{spoil(call)}\n{call}"
    special = tags_of(form) if are_tokens else []
    tags = places(text, special)
    read = [
        told(CallStream(form, TOOLS, tells_wrong=True, special=special), text, tags, size)
        for size in (len(text), 1, 7, 50)
    ]
    assert all(one == read[0] for one in read)
    for one in read[0][1]:
        assert one.problem or not any(tag in one.arguments for tag in tags_of(form))
    if family != "dsml" or spoil is not_closed:  # whose parameters may be indented
        assert [one.problem for one in read[0][1]] == [MALFORMED]


@pytest.mark.parametrize("family", ["glm", "coder", "dsml", "hermes"])
def test_a_value_may_spell_the_tags_of_calls(family: str) -> None:
    """In other tokens than theirs."""
    form = form_of(family)
    call, special = written(form, CALLS[:1]).replace("\n", ""), tags_of(form)
    spelled = f"so: {call} {call} :os"
    text = written(form, [WrittenCall("say", {"text": spelled})]).strip()
    begin, end = text.index("so: "), text.index(" :os")
    tags = [at for at in places(text, special) if not begin <= at < end]
    for size in (len(text), 1, 7):
        stream = CallStream(form, TOOLS, special=special)
        content, (one,) = told(stream, text, tags, size)
        assert not content.strip()
        assert json.loads(one.arguments) == {"text": spelled}


@pytest.mark.parametrize("family", ["hermes", "coder", "glm"])
def test_tags_that_were_written_before_an_answer_are_tokens(family: str) -> None:
    form = form_of(family)
    text, special = written(form, CALLS[1:2]).strip(), tags_of(form)
    for size in range(len(text)):
        if any(0 < size - at < len(tag) for tag in special for at in places(text, [tag])):
            continue
        tags = [at - size for at in places(text, special) if at >= size]
        stream = CallStream(form, TOOLS, text[:size], special=special)
        assert [one.name for one in told(stream, text[size:], tags, 5)[1]] == ["say"], size


@pytest.mark.parametrize("family", EVERY)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_what_a_constraint_holds_is_read_as_calls_however_it_is_quoted(
    family: str, size: int
) -> None:
    """Also where a string spells what calls end with, as far as the form can hold that."""
    form = form_of(family)
    if mark_of(form).only_at_start:
        return
    keyed = form.keyed
    spelled = [one for one in lexemes(form.literals[-1] + form.end) if is_tag(one)]
    ends = [] if keyed is None else [keyed.string.after_value.strip()]
    said = "".join(one for one in spelled if not any(end and end in one for end in ends))
    call = WrittenCall("say", {"text": f"a {said} b"}, "abcdefgh2")
    text = 'I "quote <think> `it: ' + written(form, [call])
    for special in ((), tuple(spelled)):
        stream = CallStream(form, TOOLS, special=special, is_held=True)
        parts = [
            part for at in range(0, len(text), size) for part in stream.feed(text[at : at + size])
        ]
        parts += stream.finish()
        (read,) = [part for part in parts if isinstance(part, ParsedCall)]
        assert json.loads(read.arguments) == call.arguments
        content = "".join(part for part in parts if isinstance(part, str))
        assert content.strip() == 'I "quote <think> `it:'
