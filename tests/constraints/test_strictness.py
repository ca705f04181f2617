"""`strict=False`: what of a schema cannot be enforced exactly is never written, and the constraint
says what. Never an invalid instance, and without it nothing changes.
"""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import jsonschema
import pytest

import lmprog
from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.constraint import CompileLimits, CompileTooLong, never_stop
from lmprog.constraints.inspect import accepts, byte_vocabulary, example
from lmprog.constraints.schema.entry import why_nothing_fits
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import InvalidParameter, RequestRejected, UnsupportedSchema
from tests.constrained.writer import Writer, byte_tokenizer
from tests.constraints.test_random_schemas import random_schema

TWICE = {"type": "string", "pattern": r"^(y)\1"}
UNREACHABLE: list[tuple[dict[str, Any], list[Any], list[Any], str]] = [
    (  # an optional property that cannot be written is not written
        {"properties": {"a": TWICE, "b": {"type": "integer"}}, "additionalProperties": False},
        [{}, {"b": 1}],
        [{"a": "y"}],
        "#/properties/a/pattern",
    ),
    ({"anyOf": [TWICE, {"type": "integer"}]}, [7], ["y"], "#/anyOf/0/pattern"),
    ({"oneOf": [{"type": "null"}, TWICE]}, [None], ["y"], "#/oneOf/1/pattern"),
    (
        {"if": {"type": "string"}, "then": TWICE, "else": {"maximum": 3}},
        [2],
        ["y", 4],
        "#/then/pattern",
    ),
    ({"type": "array", "items": TWICE}, [[]], [["y"]], "#/items/pattern"),
    ({"enum": ["y", "xy", 3], **TWICE, "type": ["string", "integer"]}, [3], ["y"], "#/pattern"),
    (
        {"not": {"type": "null", "unevaluatedItems": False}},
        [1, "a"],
        [None],
        "#/not/unevaluatedItems",
    ),
]


def compiled(schema: Any, strict: bool, vocabulary: Vocabulary) -> Any:
    return compile_constraint(wire.JsonSchema(json.dumps(schema), strict=strict), vocabulary)


@pytest.mark.parametrize(("schema", "written", "not_written", "place"), UNREACHABLE)
def test_what_is_not_exact_is_left_out_and_told(
    schema: dict[str, Any],
    written: list[Any],
    not_written: list[Any],
    place: str,
    small: Vocabulary,
) -> None:
    with pytest.raises(UnsupportedSchema):
        compiled(schema, True, small)
    made = compiled(schema, False, small)
    assert [reason for reason in made.left_out if place in reason]
    assert all(accepts(made, json.dumps(one)) for one in written)
    assert not any(accepts(made, json.dumps(one)) for one in not_written)


def test_where_nothing_would_be_left_the_reason_is_the_error(small: Vocabulary) -> None:
    schema = {"properties": {"a": TWICE}, "required": ["a"], "type": "object"}
    with pytest.raises(UnsupportedSchema) as caught:
        compiled(schema, False, small)
    assert caught.value.path == "#/properties/a/pattern"


def test_what_is_exact_is_the_same_and_nothing_is_told(small: Vocabulary) -> None:
    schema = {"properties": {"a": {"pattern": "^[ab]{1,3}$"}}, "maxProperties": 1, "type": "object"}
    strict, lenient = compiled(schema, True, small), compiled(schema, False, small)
    assert strict.left_out == lenient.left_out == ()
    for instance in ({}, {"a": "ab"}, {"a": "abab"}, {"b": 1}, {"a": "a", "b": 1}):
        text = json.dumps(instance)
        assert accepts(strict, text) == accepts(lenient, text)


def test_matches_of_contains_are_not_underrated(small: Vocabulary) -> None:
    """That a value cannot be looked at does not make it one that does not match."""
    upper = {"contains": TWICE, "maxContains": 1}
    with pytest.raises(UnsupportedSchema):  # the constant may have two matches
        compiled({"const": ["y", "y"], **upper}, False, small)
    made = compiled({"anyOf": [{"type": "array", **upper}, {"type": "null"}]}, False, small)
    assert accepts(made, "null")
    assert not accepts(made, '["y", "y"]')


def test_outputs_of_random_schemas_are_valid(rng: random.Random) -> None:
    vocabulary, told = byte_vocabulary(), 0
    for _ in range(80):
        schema = random_schema(rng, 2)
        hard = {**TWICE} if rng.random() < 0.5 else {"not": {"uniqueItems": True}}
        schema = {"anyOf": [schema, hard]} if rng.random() < 0.5 else {"properties": {"a": hard}}
        try:
            made = compiled(schema, False, vocabulary)
        except RequestRejected:
            continue
        told += bool(made.left_out)
        for seed in range(2):
            text = example(made, vocabulary, seed)
            exact = json.loads(json.dumps(schema), parse_float=Decimal)
            instance = json.loads(text, parse_float=Decimal)  # floats round, and become integers
            assert jsonschema.Draft202012Validator(exact).is_valid(instance), (schema, text)
    assert told > 30


def test_the_keyword_reaches_the_compiler_from_the_language() -> None:
    schema = UNREACHABLE[0][0]
    with pytest.raises(UnsupportedSchema):
        lmprog.constraint(schema=schema)
    assert lmprog.constraint(schema=schema, strict=False).left_out
    with pytest.raises(InvalidParameter, match="strict must be a boolean"):
        lmprog.constraint(schema=schema, strict="no")  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="strict is an option of JSON only"):
        lmprog.constraint(regex="a", strict=False)


@pytest.mark.parametrize("strict", [True, False])
def test_the_reply_of_a_generation_says_what_was_left_out(strict: bool) -> None:
    schema = wire.JsonSchema(json.dumps({"properties": {"a": TWICE}}), strict=strict)
    params = wire.SamplingParams(max_tokens=40)
    (reply,) = Writer(byte_tokenizer()).ask((schema, params))
    if strict:
        assert isinstance(reply, wire.Failed)
        assert reply.details["path"] == "#/properties/a/pattern"
    else:
        assert isinstance(reply, wire.CallDone)
        assert [reason for reason in reply.left_out if "#/properties/a/pattern" in reason]


MIXED = {"anyOf": [{"type": "string", "minLength": 2}, {"enum": ["sol", "cab", 1, 1.5, None]}, {}]}


TEXT_OR_ARRAY = {"type": ["string", "array"]}


@pytest.mark.parametrize("items", [TEXT_OR_ARRAY, {"type": "object"}, {}, MIXED], ids=str)
def test_items_of_many_values_are_told_apart_by_their_first_letters(
    items: dict[str, Any], rng: random.Random
) -> None:
    vocabulary = byte_vocabulary()
    schema = {"type": "array", "items": items, "uniqueItems": True}
    made = compiled(schema, False, vocabulary)
    assert "uniqueItems" in made.left_out[0]
    judge = jsonschema.Draft202012Validator(schema)
    choices = ["sun", "sea", "sol", "cab", "moon", "1", "", 1, 1.5, {}, [], None, {"a": "sun"}]
    taken = 0
    for _ in range(600):
        instance = rng.choices(choices, k=rng.randrange(5))
        takes = accepts(made, json.dumps(instance))
        taken += takes
        assert not takes or judge.is_valid(instance), instance
    assert taken
    if items == TEXT_OR_ARRAY:
        assert accepts(made, '["sun", "moon", "cab", "1"]')
    for seed in range(5):
        assert judge.is_valid(json.loads(example(made, vocabulary, seed)))


def test_negated_properties_come_in_the_schemas_order_where_any_was_wished(
    small: Vocabulary,
) -> None:
    schema = {
        "properties": {f"p{i}": {"const": i} for i in range(3)},
        "additionalProperties": False,
        "not": {"patternProperties": {"^p": {"const": 2}}},
    }
    spec = wire.JsonSchema(json.dumps(schema), any_order=True, strict=False)
    made = compile_constraint(spec, small)
    assert made.left_out
    assert accepts(made, '{"p1": 1, "p2": 2}')
    assert not accepts(made, '{"p2": 2, "p1": 1}')


@pytest.mark.parametrize(
    "limits", [{"maxLength": 200}, {"pattern": "^https://"}, {"minLength": 10}]
)
@pytest.mark.parametrize("name", ["uri", "uri-reference", "email", "hostname", "uri-template"])
def test_formats_beside_other_keywords_are_compiled_in_few_steps(
    name: str, limits: dict[str, Any], monkeypatch: pytest.MonkeyPatch, small: Vocabulary
) -> None:
    monkeypatch.setattr("lmprog.constraints.text_set.MAX_STEPS", 50_000)
    if "pattern" in limits and name in ("email", "hostname"):
        limits = {"pattern": "com$"}
    schema = {"type": "string", "format": name, **limits}
    made = compile_constraint(wire.JsonSchema(json.dumps(schema)), small)
    text = {"email": "ada@example.com", "hostname": "www.example.com"}.get(
        name, "https://example.com/a?b=c#d"
    )
    assert accepts(made, json.dumps(text))
    assert not accepts(made, json.dumps("not of it \\"))


@pytest.mark.parametrize("strict", [True, False])
def test_a_compile_that_takes_too_long_ends_whatever_may_be_left_out(
    strict: bool, small: Vocabulary
) -> None:
    """The error of a time limit is none of the schema, so nothing swallows it."""
    patterns = [{"pattern": f"^(a|b|ab)*{i}.{{3,900}}d$", "maxLength": 800} for i in range(9)]
    schema = {"anyOf": [{"properties": {"x": one}} for one in patterns]}
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls > 30:
            raise CompileTooLong("too long", position=None)

    spec = wire.JsonSchema(json.dumps(schema), strict=strict)
    with pytest.raises(CompileTooLong):
        compile_constraint(spec, small, check=check)
    assert calls < 310


def test_the_place_of_a_contradiction_is_looked_for_as_long_as_the_limit_allows() -> None:
    deep: dict[str, Any] = {"enum": []}
    for _ in range(4):
        deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
    spec = wire.JsonSchema(json.dumps(deep))

    def at_once() -> None:
        raise CompileTooLong("too long", position=None)

    assert "the schema at #/properties/a/properties/a" in why_nothing_fits(
        spec, CompileLimits(), never_stop
    )
    assert "the schema at #, " in why_nothing_fits(spec, CompileLimits(), at_once)
