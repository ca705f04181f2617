"""The negation of `additionalProperties`, `patternProperties` and `propertyNames`, and `oneOf` of
objects that overlap: never an invalid instance, and every valid one in some order of its members.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from typing import Any

import jsonschema
import pytest

from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.constraint import Constraint
from lmprog.constraints.inspect import accepts
from lmprog.constraints.vocabulary import Vocabulary

NUMBER, TEXT = {"type": "integer"}, {"type": "string"}
FAULTS: list[dict[str, Any]] = [
    {"type": "object", "not": {"properties": {"a": NUMBER, "b": TEXT, "x": {"minimum": 1}}, "required": ["b", "xx"]}},
    {"type": "object", "minProperties": 2, "maxProperties": 3,
     "not": {"properties": {"a": NUMBER, "b": TEXT}, "required": ["x"]}},
    {"type": "object", "properties": {"a": NUMBER, "b": TEXT, "x": True},
     "not": {"not": {"not": {"properties": {"a": {"minimum": 1}, "x": TEXT}, "required": ["b"]}}}},
    {"type": "object", "required": ["a"], "oneOf": [
        {"properties": {"a": {"const": 0}, "b": TEXT}},
        {"properties": {"a": {"const": 1}, "b": NUMBER, "x": NUMBER}, "required": ["b"]},
        {"properties": {"b": {"const": 2}, "x": TEXT}, "required": ["x"]}]},
    {"type": "object", "oneOf": [
        {"properties": {"a": {"const": 0}, "b": TEXT}},
        {"properties": {"a": {"const": 1}, "b": TEXT, "x": NUMBER}},
        {"properties": {"a": {"const": 2}, "x": TEXT}},
        {"properties": {"a": {"const": "t"}, "xx": TEXT}}]},
    {"type": "object", "if": {"properties": {"a": {"const": 1}, "b": {"const": 1}}, "required": ["a"]},
     "then": {"required": ["x"]}, "else": {"properties": {"xx": TEXT}}},
]  # fmt: skip
SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "not": {"properties": {"a": True}, "additionalProperties": False}},
    {"type": "object", "not": {"properties": {"a": NUMBER}, "additionalProperties": TEXT}},
    {"type": "object", "properties": {"a": NUMBER, "b": TEXT},
     "not": {"patternProperties": {"^x": TEXT}}},
    {"type": "object", "not": {"propertyNames": {"maxLength": 1}}},
    {"type": "object", "properties": {"a": NUMBER}, "additionalProperties": NUMBER, "required": ["a"],
     "not": {"patternProperties": {"^x": {"minimum": 1}}, "additionalProperties": {"maximum": 1}, "properties": {"a": True}}},
    {"oneOf": [
        {"type": "object", "properties": {"a": NUMBER, "b": TEXT}, "additionalProperties": False},
        {"type": "object", "properties": {"a": NUMBER, "x": NUMBER}, "additionalProperties": False}]},
    {"oneOf": [
        {"type": "object", "properties": {"a": NUMBER}, "additionalProperties": False},
        {"type": "object", "properties": {"b": TEXT}, "additionalProperties": False},
        {"type": "object", "properties": {"a": NUMBER, "b": TEXT, "x": TEXT}, "additionalProperties": False}]},
    {"type": "object", "if": {"properties": {"a": NUMBER}, "additionalProperties": False},
     "then": {"required": ["a"]}, "else": {"required": ["b"]}},
    {"type": "object", "not": {"oneOf": [{"required": ["a"]}, {"properties": {"b": NUMBER}}, {"required": ["x"]}]}},
    {"type": "object", "not": {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"required": ["x"]}}},
    {"type": "object", "not": {"dependentRequired": {"a": ["b"]}, "dependentSchemas": {"x": {"properties": {"b": TEXT}}}}},
    {"enum": [{"a": 1}, {"b": 1}, {"xx": 1}], "not": {"propertyNames": {"enum": ["a"]}}},
    {"type": "object", "maxProperties": 2, "additionalProperties": NUMBER, "not": {"patternProperties": {"^x": {"minimum": 1}}}},
    {"type": "object", "not": {"enum": [{"a": 1}, {"a": 0, "b": "t"}, {}, 3]}},
    {"type": "object", "not": {"const": {"a": 1, "xx": "t"}}},
    *FAULTS,
]  # fmt: skip
NAMES, VALUES = ["a", "b", "x", "xx"], [0, 1, 2, "t"]


def takes(made: Constraint, members: dict[str, Any]) -> list[bool]:
    """For every order of the members."""
    return [
        accepts(made, json.dumps(dict(order))) for order in itertools.permutations(members.items())
    ]


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_a_negated_object_is_exact(schema: dict[str, Any], small: Vocabulary) -> None:
    made = compile_constraint(wire.JsonSchema(json.dumps(schema)), small)
    judge = jsonschema.Draft202012Validator(schema)
    valid = 0
    for values in itertools.product([None, *VALUES], repeat=len(NAMES)):
        members = {
            name: value for name, value in zip(NAMES, values, strict=True) if value is not None
        }
        is_valid = judge.is_valid(members)
        valid += is_valid
        assert any(takes(made, members)) == is_valid, members
    assert valid > 0


@pytest.mark.parametrize("schema", FAULTS, ids=json.dumps)
def test_a_negated_object_is_exact_in_any_order(schema: dict[str, Any], small: Vocabulary) -> None:
    made = compile_constraint(wire.JsonSchema(json.dumps(schema), any_order=True), small)
    judge = jsonschema.Draft202012Validator(schema)
    for values in itertools.product([None, *VALUES], repeat=len(NAMES)):
        pairs = zip(NAMES, values, strict=True)
        members = {name: value for name, value in pairs if value is not None}
        assert takes(made, members) == [judge.is_valid(members)] * math.factorial(len(members))


@pytest.mark.parametrize("schema", SCHEMAS[:5], ids=json.dumps)
def test_members_that_are_written_twice_make_nothing_valid(
    schema: dict[str, Any], small: Vocabulary, rng: random.Random
) -> None:
    """Of two members with one name a reader keeps the last."""
    made = compile_constraint(wire.JsonSchema(json.dumps(schema)), small)
    judge = jsonschema.Draft202012Validator(schema)
    for _ in range(1500):
        members = [(rng.choice(NAMES), rng.choice(VALUES)) for _ in range(rng.randrange(5))]
        text = "{" + ", ".join(f'"{name}": {json.dumps(value)}' for name, value in members) + "}"
        assert not accepts(made, text) or judge.is_valid(json.loads(text)), text
