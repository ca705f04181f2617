"""Negated keywords, and counts of what `contains` matches: exactly the valid instances, as
`jsonschema` judges them.
"""

from __future__ import annotations

import itertools
import json
from typing import Any
from unittest.mock import Mock

import jsonschema
import pytest

from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.inspect import accepts
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import UnsupportedSchema

NUMBERS = [*range(-20, 20), *(x / 4 for x in range(-39, 40) if x % 4), "a", None]
NUMERIC: list[dict[str, Any]] = [
    {"not": {"multipleOf": 3}},
    {"type": "integer", "not": {"multipleOf": 3}},
    {"not": {"multipleOf": 0.5}, "minimum": -3, "maximum": 5.25},
    {"multipleOf": 0.25, "not": {"multipleOf": 0.5}},
    {"allOf": [{"not": {"multipleOf": 2}}, {"not": {"multipleOf": 3}}], "multipleOf": 1},
    {"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}], "type": "integer"},
    {"not": {"not": {"multipleOf": 4}}},
]
ITEMS = [list(x) for n in range(5) for x in itertools.product([1, 2, "a", True], repeat=n)]
INTEGER = {"type": "integer"}
FEW = {"enum": [True, 1, "a"]}
ARRAYS: list[dict[str, Any]] = [
    {"not": {"contains": INTEGER, "minContains": 2, "maxContains": 3}},
    {"not": {"contains": INTEGER, "minContains": 0, "maxContains": 1}},
    {"allOf": [{"contains": INTEGER}, {"contains": {"const": "a"}}]},
    {
        "allOf": [
            {"contains": INTEGER, "maxContains": 2},
            {"contains": {"enum": ["a", 1]}, "maxContains": 1},
        ],
        "minItems": 2,
    },
    {"prefixItems": [INTEGER], "not": {"prefixItems": [True], "items": INTEGER}},
    {"prefixItems": [True], "contains": {"type": "string"}, "unevaluatedItems": False},
    {
        "allOf": [{"contains": {"multipleOf": 2}}, {"contains": {"type": "string"}}],
        "unevaluatedItems": {"const": True},
    },
    {"contains": {"type": "string"}, "minContains": 0, "unevaluatedItems": False},
    {"type": "array", "items": FEW, "not": {"uniqueItems": True}},
    {"type": "array", "items": FEW, "minItems": 3, "not": {"uniqueItems": True}},
    {"type": "array", "items": FEW, "maxItems": 3, "not": {"uniqueItems": True}},
    {"type": "array", "items": FEW, "not": {"uniqueItems": True, "minItems": 3}},
]
OLDER: list[dict[str, Any]] = [
    {"not": {"items": [INTEGER], "additionalItems": {"type": "string"}}},
    {"not": {"items": [INTEGER, {"type": "string"}]}},
]
OBJECTS = [
    dict(zip(names, values, strict=True))
    for n in range(4)
    for names in itertools.combinations("abc", n)
    for values in itertools.product([1, "x"], repeat=n)
]


def agrees(schema: dict[str, Any], judge: Any, instances: list[Any], small: Vocabulary) -> None:
    made = compile_constraint(wire.JsonSchema(json.dumps(schema)), small)
    verdicts = [judge.is_valid(instance) for instance in instances]
    assert any(verdicts)
    for instance, is_valid in zip(instances, verdicts, strict=True):
        assert accepts(made, json.dumps(instance)) == is_valid, instance


@pytest.mark.parametrize("schema", NUMERIC, ids=json.dumps)
def test_negated_multiples_are_exact(schema: dict[str, Any], small: Vocabulary) -> None:
    agrees(schema, jsonschema.Draft202012Validator(schema), NUMBERS, small)


@pytest.mark.parametrize("schema", ARRAYS, ids=json.dumps)
def test_negated_keywords_of_arrays_are_exact(schema: dict[str, Any], small: Vocabulary) -> None:
    agrees(schema, jsonschema.Draft202012Validator(schema), ITEMS, small)


@pytest.mark.parametrize("schema", OLDER, ids=json.dumps)
def test_negated_lists_of_items_of_older_drafts_are_exact(
    schema: dict[str, Any], small: Vocabulary
) -> None:
    agrees(schema, jsonschema.Draft7Validator(schema), ITEMS, small)


def test_negated_dependencies_are_exact(small: Vocabulary) -> None:
    rules = {"a": ["b"], "b": {"required": ["c"]}}
    schema = {"not": {"dependencies": rules}, "properties": dict.fromkeys("abc", True)}
    agrees(schema, jsonschema.Draft7Validator(schema), OBJECTS, small)


NESTING: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"type": "string"}, {"then": True}),
    ({"type": "string"}, {"then": False, "else": True}),
    ({"enum": ["a", "ab", 1]}, {"then": {"type": ["string", "null"]}, "else": False}),
    ({"properties": {"a": {"type": "integer"}}}, {"type": "object", "then": False}),
]


@pytest.mark.parametrize(("inner", "around"), NESTING)
def test_conditions_within_each_other_are_exact_and_expanded_once_a_level(
    inner: dict[str, Any], around: dict[str, Any], small: Vocabulary
) -> None:
    counts: list[int] = []
    for depth in (1, 2, 9, 18, 27):
        schema = inner
        for _ in range(depth):
            schema = {**around, "if": schema}
        check = Mock()
        made = compile_constraint(wire.JsonSchema(json.dumps(schema)), small, check=check)
        counts.append(check.call_count)
        judge = jsonschema.Draft202012Validator(schema)
        for value in (*NUMBERS, *OBJECTS, "ab", "b", True, []):
            assert accepts(made, json.dumps(value)) == judge.is_valid(value), (depth, value)
    *_, nine, eighteen, more = counts
    assert more - eighteen < 2 * (eighteen - nine) + 100, "as much for each nine levels"


def test_a_condition_applied_to_other_values_is_expanded_again(small: Vocabulary) -> None:
    rule = {"$ref": "#/$defs/rule"}
    schemas: list[dict[str, Any]] = [  # 1 and True are equal in Python
        {"minimum": -9, "anyOf": [{"allOf": [{"not": {"const": x}}, rule]} for x in (1, True)]},
        {"minimum": -9, "anyOf": [{"allOf": [{"enum": [x, "a"]}, rule]} for x in (1, True)]},
        {"not": {"not": {"if": {"not": rule}, "then": rule, "else": {"not": {"not": rule}}}}},
    ]
    for schema in schemas:
        schema["$defs"] = {"rule": {"if": {"const": 5}, "then": False}}
        agrees(schema, jsonschema.Draft202012Validator(schema), [*NUMBERS, True, False], small)


def test_a_keyword_that_nobody_knows_negates_to_nothing(small: Vocabulary) -> None:
    schema = {"not": {"type": "string", "x-order": 3}}
    agrees(schema, jsonschema.Draft202012Validator(schema), NUMBERS, small)


def test_what_is_not_of_a_format_is_certainly_not_of_it(small: Vocabulary) -> None:
    made = compile_constraint(wire.JsonSchema('{"not": {"format": "email"}}'), small)
    assert accepts(made, '"plain text"')
    strange = '"\\"very unusual\\"@example.com"'  # valid, though nothing here would write it
    assert not accepts(made, strange)
    either = '{"type": "string", "oneOf": [{"format": "date"}, {"format": "date-time"}]}'
    made = compile_constraint(wire.JsonSchema(either), small)
    assert accepts(made, '"2024-02-29"')
    assert accepts(made, '"2024-02-29T10:00:00Z"')
    assert not accepts(made, '"tomorrow"')


def test_two_equal_items_are_refused_where_there_are_many_values(small: Vocabulary) -> None:
    schema = '{"not": {"uniqueItems": true}}'
    with pytest.raises(UnsupportedSchema) as caught:
        compile_constraint(wire.JsonSchema(schema), small)
    assert caught.value.keyword == "uniqueItems"
