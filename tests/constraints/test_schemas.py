"""JSON Schema: exactly the valid instances, or a refusal that names keyword and path. The judge is
`jsonschema`.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from lmprog.constraints.compiler import compile_constraint
from lmprog.constraints.constraint import Constraint, JsonSchemaSpec, Order, Whitespace
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import UnsatisfiableConstraint, UnsupportedSchema
from tests.constraints.schema_cases import FORMATS, KEYWORDS, OBJECT


def compiled(
    schema: Any, vocabulary: Vocabulary, whitespace: Whitespace = "fixed", order: Order = "declared"
) -> Constraint:
    return compile_constraint(JsonSchemaSpec(json.dumps(schema), whitespace, order), vocabulary)


def takes(constraint: Constraint, text: str) -> bool:
    state = constraint.advance_bytes(constraint.start, text.encode())
    return state is not None and constraint.is_final(state)


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"), KEYWORDS, ids=lambda value: json.dumps(value)[:60]
)
def test_a_schema_takes_its_valid_instances_and_no_others(
    schema: Any, valid: list[Any], invalid: list[Any], small: Vocabulary
) -> None:
    judge = jsonschema.Draft202012Validator(schema)
    if schema == {"oneOf": [{"multipleOf": 3}, {"multipleOf": 5}], "type": "integer"}:
        with pytest.raises(
            UnsupportedSchema
        ) as caught:  # they overlap, and multipleOf has no complement
            compiled(schema, small)
        assert (caught.value.keyword, caught.value.path) == ("multipleOf", "#/oneOf/1/multipleOf")
        return
    constraint = compiled(schema, small)
    for instance in valid:
        assert judge.is_valid(instance), instance
        assert takes(constraint, json.dumps(instance, ensure_ascii=False)), instance
        assert takes(constraint, json.dumps(instance)), f"{instance} with escapes"
    for instance in invalid:
        assert not judge.is_valid(instance), instance
        assert not takes(constraint, json.dumps(instance, ensure_ascii=False)), instance


@pytest.mark.parametrize("name", FORMATS)
def test_a_known_format_is_enforced(name: str, small: Vocabulary) -> None:
    constraint = compiled({"type": "string", "format": name}, small)
    good, bad = FORMATS[name]
    for text in good:
        assert takes(constraint, json.dumps(text)), text
    for text in bad:
        assert not takes(constraint, json.dumps(text)), text


@pytest.mark.parametrize(
    ("schema", "keyword", "path"),
    [
        (
            {"type": "array", "uniqueItems": True, "items": {"type": "string"}},
            "uniqueItems",
            "#/uniqueItems",
        ),
        ({"properties": {"a": {"$ref": "http://else.where/x"}}}, "$ref", "#/properties/a/$ref"),
        ({"$ref": "#/$defs/none"}, "$ref", "#/$ref"),
        ({"properties": {"a": {"pattern": "(?=x)"}}}, "pattern", "#/properties/a/pattern"),
        ({"items": {"type": "foo"}}, "type", "#/items/type"),
        ({"minLength": "3"}, "minLength", "#/minLength"),
        ({"minItems": -1}, "minItems", "#/minItems"),
        ({"$dynamicRef": "#a"}, "$dynamicRef", "#/$dynamicRef"),
        ({"properties": {"a/b": {"multipleOf": 0}}}, "multipleOf", "#/properties/a~1b/multipleOf"),
        ({"not": {"multipleOf": 3}}, "multipleOf", "#/not/multipleOf"),
        ({"properties": {"a": 5}}, "a", "#/properties/a"),
        ({"allOf": []}, "allOf", "#/allOf"),
        ({"\0notPattern": "x"}, "\0notPattern", "#"),
        ({"$ref": "#"}, "$ref", "#/$ref"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_keyword_and_path(
    schema: Any, keyword: str, path: str, small: Vocabulary
) -> None:
    with pytest.raises(UnsupportedSchema) as caught:
        compiled(schema, small)
    assert (caught.value.keyword, caught.value.path) == (keyword, path)


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"enum": []},
        {"type": "string", "minLength": 3, "maxLength": 2},
        {"type": "integer", "minimum": 3, "maximum": 2},
        {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "object", "required": ["a"], "properties": {"a": False}},
        {"type": "array", "minItems": 1, "items": False},
        {"type": "array", "minItems": 3, "maxItems": 1},
        {"type": "object", "required": ["n"], "properties": {"n": {"$ref": "#"}}},
        {"type": "string", "pattern": "^a$", "minLength": 2},
        {"const": 5, "maximum": 4},
        {"type": "array", "uniqueItems": True, "items": {"enum": [1, 2]}, "minItems": 3},
    ],
    ids=json.dumps,
)
def test_an_unsatisfiable_schema_is_refused(schema: Any, small: Vocabulary) -> None:
    with pytest.raises(UnsatisfiableConstraint):
        compiled(schema, small)


@pytest.mark.parametrize(
    "text", ["", "{", "nonsense", '{"minimum": NaN}', "[1]", '"a"', "[" * 3000]
)
def test_a_text_that_is_no_schema_is_refused(text: str, small: Vocabulary) -> None:
    with pytest.raises(UnsupportedSchema):
        compile_constraint(JsonSchemaSpec(text), small)


NESTED = {
    "type": "object",
    "properties": {
        "a": {"type": "array", "items": {"type": "integer"}},
        "b": {"const": {"c": [1]}},
    },
    "required": ["a", "b"],
    "additionalProperties": False,
}
INSTANCE = {"a": [1, 2], "b": {"c": [1]}}


def test_white_space_is_as_asked(small: Vocabulary) -> None:
    written = {
        "fixed": json.dumps(INSTANCE),
        "compact": json.dumps(INSTANCE, separators=(",", ":")),
        "indented": json.dumps(INSTANCE, indent=2),
    }
    for manner, text in written.items():
        constraint = compiled(NESTED, small, manner)  # type: ignore[arg-type]
        for other, candidate in written.items():
            assert takes(constraint, candidate) == (other == manner)
        assert takes(compiled(NESTED, small, "flexible"), text)
    assert not takes(
        compiled(NESTED, small, "flexible"), '{"a":' + " " * 100 + '[], "b": {"c": [1]}}'
    )


def test_properties_come_as_declared_or_in_any_order(small: Vocabulary) -> None:
    schema = {**OBJECT, "properties": {name: {"type": "null"} for name in "abc"}, "required": ["b"]}
    texts = [
        '{"a": null, "b": null}',
        '{"b": null, "a": null}',
        '{"c": null, "b": null, "a": null}',
        '{"b": null}',
    ]
    assert [takes(compiled(schema, small), text) for text in texts] == [True, False, False, True]
    assert all(takes(compiled(schema, small, order="any"), text) for text in texts)
    for bad in ('{"a": null}', '{"b": null, "b": null}', "{}"):
        assert not takes(compiled(schema, small, order="any"), bad)


def test_an_extra_name_cannot_be_a_declared_one_in_other_spelling(small: Vocabulary) -> None:
    constraint = compiled({"type": "object", "properties": {"a": {"type": "integer"}}}, small)
    assert takes(constraint, '{"\\u0062": "x"}')
    assert not takes(constraint, '{"\\u0061": "x"}')
    assert not takes(constraint, '{"a": 1, "\\u0061": "x"}')


def test_a_pattern_may_name_general_categories(small: Vocabulary) -> None:
    constraint = compiled(
        {"type": "string", "pattern": "^\\p{Lu}\\p{Letter}+[\\p{Nd}-]\\P{L}$"}, small
    )
    for good in ("École7!", "Ab-1", "Жук٣٣"):
        assert takes(constraint, json.dumps(good, ensure_ascii=False)), good
    for bad in ("école7!", "Ab-a", "Ab!1"):
        assert not takes(constraint, json.dumps(bad)), bad
    with pytest.raises(UnsupportedSchema, match="property"):
        compiled({"pattern": "\\p{Script=Greek}"}, small)


def test_strings_are_valid_json_and_valid_unicode(small: Vocabulary) -> None:
    constraint = compiled({"type": "string", "maxLength": 2}, small)
    for good in (r'"\ud83d\ude00a"', r'"\n\/"', r'"\u00e9\u0000"'):
        assert len(json.loads(good)) == 2
        assert takes(constraint, good)
    for bad in (r'"\ud83d"', r'"\ude00\ud83d"', r'"\x"', '"\n"', r'"\u12"', '"', "a", '"abc"'):
        assert not takes(constraint, bad)


def test_a_declared_object_is_forced_up_to_its_first_value(small: Vocabulary) -> None:
    constraint = compiled(
        {**OBJECT, "properties": {"name": {"type": "string"}}, "required": ["name"]}, small
    )
    assert constraint.forced(constraint.start) == b'{"name": "'


_EMPTY = {"type": "integer", "minimum": 5, "maximum": 3}


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        (_EMPTY, "#"),
        (
            {"type": "object", "properties": {"a": _EMPTY, "b": False}, "required": ["a"]},
            "#/properties/a",
        ),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "#"),
        ({"type": "array", "minItems": 1, "items": {"enum": []}}, "#/items"),
        (
            {
                "type": "array",
                "minItems": 2,
                "prefixItems": [{}, {"$ref": "#/$defs/x"}],
                "$defs": {"x": _EMPTY},
            },
            "#/$defs/x",
        ),
        (
            {"type": "object", "properties": {"me": {"$ref": "#"}}, "required": ["me"]},
            "#/properties/me",
        ),
    ],
)
def test_a_schema_that_nothing_fits_is_refused_with_the_place_of_the_contradiction(
    schema: Any, path: str, small: Vocabulary
) -> None:
    with pytest.raises(UnsatisfiableConstraint) as caught:
        compiled(schema, small)
    assert f"no value fits the schema at {path}, {{" in str(caught.value)
