"""`enum` and `const` beside other keywords: exactly the values that the rest accepts."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.inspect import accepts
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import UnsatisfiableConstraint

VALUES: list[Any] = [
    None, True, 0, 1, 1.5, -3, "", "ab", "abc", "2024-02-29", [], [1], [1, 1], [1, 2, 3], ["a", 1], [[1], [1.0]],
    {}, {"a": 1}, {"b": "x", "a": 2}, {"a": 1, "x-1": [1, {"a": 5}]}, {"abc": None}, [{"a": 1}, {"a": 2}],
]  # fmt: skip
BESIDE: list[dict[str, Any]] = [
    {"type": ["array", "object"]},
    {"minItems": 1, "maxItems": 2},
    {"uniqueItems": True},
    {"items": {"type": "integer", "minimum": 1}},
    {"prefixItems": [{"const": 1}], "items": {"type": ["integer", "array"]}},
    {"contains": {"const": 1}, "maxContains": 1},
    {"required": ["a"]},
    {"properties": {"a": {"maximum": 1}}, "additionalProperties": False},
    {"patternProperties": {"^x-": {"minItems": 2}}},
    {"propertyNames": {"maxLength": 1}},
    {"minProperties": 1, "maxProperties": 1},
    {"minLength": 3},
    {"pattern": "^a", "maxLength": 2},
    {"format": "date"},
    {"multipleOf": 0.5, "exclusiveMinimum": 0},
    {"not": {"enum": [[1], {"a": 1}, 0]}},
    {"anyOf": [{"maxItems": 1}, {"required": ["b"]}], "type": ["array", "object"]},
    {"$defs": {"t": {"properties": {"a": {"type": "integer"}}, "additionalProperties": {"items": {"anyOf": [
        {"type": "integer"}, {"$ref": "#/$defs/t"}]}}}}, "$ref": "#/$defs/t"},
    {"dependentRequired": {"a": ["b"]}},
    {"if": {"type": "array"}, "then": {"minItems": 2}, "else": {"type": "object"}},
]  # fmt: skip


def taken(schema: dict[str, Any], small: Vocabulary) -> list[Any]:
    try:
        made = compile_constraint(wire.JsonSchema(json.dumps(schema)), small)
    except UnsatisfiableConstraint:
        return []
    return [value for value in VALUES if accepts(made, json.dumps(value))]


@pytest.mark.parametrize("beside", BESIDE, ids=json.dumps)
def test_exactly_the_values_that_the_other_keywords_accept_remain(
    beside: dict[str, Any], small: Vocabulary
) -> None:
    schema = {**beside, "enum": VALUES}
    judge = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    assert taken(schema, small) == [value for value in VALUES if judge.is_valid(value)]


def test_random_conjunctions_with_a_constant_agree_with_the_judge(
    small: Vocabulary, rng: random.Random
) -> None:
    for _ in range(40):
        parts = [part for part in rng.sample(BESIDE, 3) if "$defs" not in part and "if" not in part]
        schema = {"allOf": [*parts, {"enum": rng.sample(VALUES, 6)}]}
        judge = jsonschema.Draft202012Validator(
            schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )
        assert taken(schema, small) == [v for v in VALUES if judge.is_valid(v)], schema


def test_a_constant_object_is_checked_whatever_the_order_of_its_members(small: Vocabulary) -> None:
    schema = {"const": {"b": 1, "a": 2}, "properties": {"a": {"const": 2}, "b": {"const": 1}}}
    made = compile_constraint(wire.JsonSchema(json.dumps(schema)), small)
    assert accepts(made, '{"b": 1, "a": 2}')
    with pytest.raises(UnsatisfiableConstraint):
        compile_constraint(wire.JsonSchema(json.dumps({**schema, "maxProperties": 1})), small)
