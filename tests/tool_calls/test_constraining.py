"""What a constraint of calls lets a model write is a call whose arguments validate."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.constraint import Constraint
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import UnsupportedSchema
from lmprog.tool_calls.constraining import (
    ToolShape,
    calls_constraint,
    free_or_calls,
    opening_of,
    opening_of_named,
)
from lmprog.tool_calls.reading import ParsedCall
from lmprog.tool_calls.stream import CallStream, mark_of
from lmprog.tool_calls.writing import WrittenCall, written
from tests.tool_calls.test_call_stream import EVERY, form_of

EOS = 256
VOCABULARY = Vocabulary.of([*(bytes([byte]) for byte in range(256)), None], [EOS])
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "unit": {"enum": ["c", "f"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 20},
        "hours": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
SHAPES = [ToolShape("get_weather", WEATHER), ToolShape("now", NOTHING)]
TOOLS = {shape.name: shape.parameters for shape in SHAPES}
ANSWER = wire.JsonSchema('{"type": "object", "properties": {}, "additionalProperties": false}')


def drawn(constraint: Constraint, rng: random.Random, start: int | None = None) -> str:
    """A random text under the constraint, one byte a token."""
    state, text, budget = constraint.start if start is None else start, bytearray(), 500
    while True:
        ids = constraint.mask(state, budget).ids
        assert ids is not None
        allowed = ids.tolist()
        if EOS in allowed and (len(allowed) == 1 or rng.random() < 0.4):
            return text.decode()
        letters = [token for token in allowed if 32 <= token < 127 or token == 10]
        token = rng.choice(letters or [token for token in allowed if token != EOS])
        text.append(token)
        state, budget = constraint.advance(state, token), budget - 1


def parts_of(family: str, opening: str, text: str) -> tuple[str, list[ParsedCall]]:
    stream = CallStream(form_of(family), TOOLS, opening)
    parts = [*stream.feed(text), *stream.finish()]
    content = "".join(part for part in parts if isinstance(part, str))
    return content.strip(), [part for part in parts if isinstance(part, ParsedCall)]


def check(calls: list[ParsedCall]) -> None:
    for call in calls:
        jsonschema.validate(json.loads(call.arguments), dict(TOOLS[call.name]))


@pytest.mark.parametrize("family", EVERY)
def test_a_required_call_is_read_back_and_its_arguments_validate(family: str) -> None:
    form, rng = form_of(family), random.Random(family)
    opening = opening_of(form)
    made = compile_constraint(calls_constraint(form, SHAPES, True, opening), VOCABULARY)
    counts = set()
    for _ in range(6):
        content, calls = parts_of(family, opening, drawn(made, rng))
        assert (content, bool(calls)) == ("", True)
        check(calls)
        counts.add(len(calls))
    assert form.is_parallel or counts == {1}


@pytest.mark.parametrize("family", ["hermes", "llama", "glm", "mistral"])
def test_an_answer_or_a_call_is_one_of_the_two(family: str) -> None:
    form, rng = form_of(family), random.Random(family)
    both = wire.AnyOf((ANSWER, calls_constraint(form, SHAPES, False)))
    made = compile_constraint(both, VOCABULARY)
    seen = set()
    for _ in range(12):
        content, calls = parts_of(family, "", drawn(made, rng))
        assert (content, len(calls)) in (("{}", 0), ("", 1))
        check(calls)
        seen.add(bool(calls))
    assert seen == {True, False}


@pytest.mark.parametrize("family", EVERY)
def test_in_a_free_answer_a_call_that_is_begun_is_a_whole_one(family: str) -> None:
    form, rng = form_of(family), random.Random(family)
    made = compile_constraint(free_or_calls(form, SHAPES, True), VOCABULARY)
    begins = ["", mark_of(form).text]
    if not mark_of(form).only_at_start:
        begins.append("Well. " + mark_of(form).text)
    for begun in begins:
        state = made.start
        for byte in begun.encode():
            state = made.advance(state, byte)
        text = begun + drawn(made, rng, state)
        content, calls = parts_of(family, "", text)
        assert bool(calls) == bool(begun)
        assert mark_of(form).text not in content
        check(calls)


def test_the_opening_ends_with_the_last_tag_before_the_name() -> None:
    assert opening_of(form_of("hermes")) == "<tool_call>\n"
    assert opening_of(form_of("mistral")) == "[TOOL_CALLS] "
    assert opening_of(form_of("llama")) == ""
    assert opening_of_named(form_of("kimi"), "now", "") == (
        "<|section_begin|><|call_begin|>functions.now:0<|argument_begin|>"
    )


@pytest.mark.parametrize("family", ["glm", "pythonic"])
def test_arguments_of_unknown_names_are_free_where_the_schema_names_none(family: str) -> None:
    form, rng = form_of(family), random.Random(1)
    shapes = [ToolShape("now", {"type": "object"})]
    made = compile_constraint(calls_constraint(form, shapes, False), VOCABULARY)
    for _ in range(4):
        _, (call,) = parts_of(family, "", drawn(made, rng))
        assert isinstance(json.loads(call.arguments), dict)


@pytest.mark.parametrize("family", ["glm", "coder", "gemma", "dsml"])
def test_a_free_string_ends_with_its_own_closing_tag_and_no_sooner(family: str) -> None:
    form = form_of(family)
    text = "if a < b: </p> << [x] }"
    shape = ToolShape(
        "say", {"properties": {"text": {"type": "string"}}, "required": ["text"], "type": "object"}
    )
    made = compile_constraint(calls_constraint(form, [shape], False), VOCABULARY)
    answer = written(form, [WrittenCall("say", {"text": text})])
    state = made.advance_bytes(made.start, answer.encode())
    assert state is not None
    assert made.is_final(state)


ITEM: dict[str, Any] = {"type": "object", "additionalProperties": False}
HARD: list[dict[str, Any]] = [
    {"properties": {"d": {"type": "string", "format": "date"}}, "required": ["d"]},
    {"properties": {"d": {"type": "string", "pattern": "b", "maxLength": 3}}, "required": ["d"]},
    {
        "properties": {"d": {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "null"}]}},
        "required": ["d"],
    },
    {"properties": {"d": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}, "required": ["d"]},
    {
        "properties": {"d": {"$ref": "#/$defs/e"}},
        "required": ["d"],
        "$defs": {"e": {"enum": ["x"]}},
    },
    {"properties": {"d": {"enum": ["x", 1, None, "1"]}}, "required": ["d"]},
    {"properties": {"d": {"type": "string", "allOf": [{"maxLength": 2}]}}, "required": ["d"]},
    {"properties": {"d": {"type": "string", "not": {"const": "a"}, "maxLength": 1}}},
    {"properties": {"a": {"type": "integer"}}, "required": ["a", "b"]},
    {
        "$ref": "#/$defs/t",
        "$defs": {"t": ITEM | {"properties": {"a": {"type": "integer"}}, "required": ["a"]}},
    },
    {
        "anyOf": [
            ITEM | {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
            ITEM | {"properties": {"b": {"type": "boolean"}}, "required": ["b"]},
        ]
    },
]


@pytest.mark.parametrize("family", ["glm", "coder", "gemma", "dsml", "pythonic"])
def test_arguments_one_by_one_validate_whatever_a_schema_says_of_them(family: str) -> None:
    form, rng = form_of(family), random.Random(family)
    for schema in HARD:
        shape = ToolShape("say", schema)
        made = compile_constraint(calls_constraint(form, [shape], False), VOCABULARY)
        for _ in range(4):
            stream = CallStream(form, {"say": schema}, "")
            text = drawn(made, rng)
            parts = [*stream.feed(text), *stream.finish()]
            (call,) = [part for part in parts if isinstance(part, ParsedCall)]
            checker = jsonschema.FormatChecker()
            jsonschema.validate(json.loads(call.arguments), schema, format_checker=checker)
    wrong = ToolShape("say", {"properties": {"a": {}}, "minProperties": 1})
    with pytest.raises(UnsupportedSchema, match="minProperties at #/minProperties"):
        calls_constraint(form, [wrong], False)
