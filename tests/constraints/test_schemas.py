"""JSON Schema: exactly the valid instances, or a refusal that names keyword and path. The judge is
`jsonschema`.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema
import pytest

import lmprog
from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint, regular_net
from lmprog.constraints.constraint import Constraint
from lmprog.constraints.inspect import accepts, byte_vocabulary
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import (
    GrammarError,
    InvalidParameter,
    UnsatisfiableConstraint,
    UnsupportedSchema,
)
from tests.constraints.schema_cases import FORMATS, KEYWORDS, OBJECT


def compiled(
    schema: Any,
    vocabulary: Vocabulary,
    whitespace: wire.Whitespace = "fixed",
    any_order: bool = False,
) -> Constraint:
    spec = wire.JsonSchema(json.dumps(schema), whitespace, any_order)
    return compile_constraint(spec, vocabulary)


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
            {"type": "array", "uniqueItems": True, "items": {"type": "object"}},
            "uniqueItems",
            "#/uniqueItems",
        ),
        ({"properties": {"a": {"$ref": "http://else.where/x"}}}, "$ref", "#/properties/a/$ref"),
        ({"type": "object", "minProperties": 2}, "minProperties", "#/minProperties"),
        ({"$ref": "#/$defs/none"}, "$ref", "#/$ref"),
        ({"properties": {"a": {"pattern": r"(x)\1"}}}, "pattern", "#/properties/a/pattern"),
        ({"items": {"type": "foo"}}, "type", "#/items/type"),
        ({"minLength": "3"}, "minLength", "#/minLength"),
        ({"minItems": -1}, "minItems", "#/minItems"),
        ({"$dynamicRef": "#a"}, "$dynamicRef", "#/$dynamicRef"),
        ({"properties": {"a/b": {"multipleOf": 0}}}, "multipleOf", "#/properties/a~1b/multipleOf"),
        ({"not": {"unevaluatedItems": False}}, "unevaluatedItems", "#/not/unevaluatedItems"),
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
        compile_constraint(wire.JsonSchema(text), small)


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
    assert all(takes(compiled(schema, small, any_order=True), text) for text in texts)
    for bad in ('{"a": null}', '{"b": null, "b": null}', "{}"):
        assert not takes(compiled(schema, small, any_order=True), bad)


def test_a_pattern_says_the_white_space_of_every_place(small: Vocabulary) -> None:
    def made(pattern: str) -> Constraint:
        text = json.dumps({"const": {"a": [1, []]}})
        return compile_constraint(wire.JsonSchema(text, whitespace_pattern=pattern), small)

    assert takes(made(" ?"), '{"a" :[ 1, [] ] }')
    assert takes(made("[\n ]*"), '{\n\n"a": [1, [ ]]}')
    assert takes(made(""), '{"a":[1,[]]}')
    assert not takes(made(""), '{"a": [1,[]]}')
    assert not takes(made(" ?"), '{"a":  [1,[]]}')
    assert takes(made("\\s+"), '{ "a" : [ 1 , [\t] ] }'), "only what is white space in JSON"
    assert not takes(made("\\s*"), '{"a":\u00a0[1,[]]}')
    assert not takes(made(" *"), '{"a":' + " " * 33 + "[1,[]]}"), "bounded, so that it always ends"
    with pytest.raises(GrammarError, match="whitespace_pattern"):
        made("(")
    with pytest.raises(UnsatisfiableConstraint, match="white space"):
        made("x")


def test_properties_of_alternatives_come_in_the_order_of_the_text(small: Vocabulary) -> None:
    null = {"type": "null"}
    base = {"type": "object", "properties": {"b": null}}
    own = {"properties": {"a": null}}
    closed = {"type": "object", "maxProperties": 2}
    for keyword in ("allOf", "anyOf", "oneOf"):
        before = {**closed, keyword: [base], **own}
        after = {**closed, **own, keyword: [base]}
        assert takes(compiled(before, small), '{"b": null, "a": null}'), keyword
        assert not takes(compiled(before, small), '{"a": null, "b": null}'), keyword
        assert takes(compiled(after, small), '{"a": null, "b": null}'), keyword
    two = {**closed, "anyOf": [base], "allOf": [own]}
    assert takes(compiled(two, small), '{"b": null, "a": null}')
    assert not takes(compiled(two, small), '{"a": null, "b": null}')


def test_an_extra_name_cannot_be_a_declared_one_in_other_spelling(small: Vocabulary) -> None:
    number = {"type": "integer"}
    properties = {"a": number, "aé": number, 'a"': number, "\N{GRINNING FACE}": number}
    constraint = compiled({"type": "object", "properties": properties}, small)
    disguised = ["\\u0061", "a\\u00e9", "a\\u00E9", 'a\\"', "a\\u0022", "\\ud83d\\ude00"]
    for name in ("a", "aé", "\N{GRINNING FACE}", *disguised):
        assert not takes(constraint, f'{{"{name}": "x"}}'), name
    others = ["", "b", "ab", "aéa", "a\\u00ea", "\\u00e9", 'a\\"\\"', "a\\\\", "a\\n", "a\\u000a"]
    for name in (*others, "\N{GRINNING FACE}a", "\\ud83d\\ude01", "日本", "\\u65e5"):
        assert takes(constraint, f'{{"{name}": "x"}}'), name


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


FORMAT_CASES = {
    "email": (
        ["first.middle.last@example.com", "a.b.c.d.e@x.org", "joe@[127.0.0.1]", "x" * 64 + "@a.de"],
        ["a..b@c.d", ".a@b.c", "a.@b.c", "x" * 65 + "@a.de", "a@b..c", "joe@[127.0.0.300]"],
    ),
    "hostname": (
        ["www.example.com", "a", "ab", "a-b.c", "a" * 63, ".".join(["a" * 31] * 7)],
        ["xn--X", "ab--cd.de", "-a", "a-", "a" * 64, ".".join(["a" * 63] * 4), "a_b", ""],
    ),
    "date-time": (
        ["1998-12-31T23:59:60Z", "2024-02-29T12:00:00.5+01:00"],
        ["1998-12-31T22:59:60Z", "2024-02-30T00:00:00Z", "1998-12-31T23:59:61Z"],
    ),
}


@pytest.mark.parametrize("name", FORMAT_CASES)
def test_a_format_takes_what_its_standard_says(name: str, small: Vocabulary) -> None:
    constraint = compiled({"type": "string", "format": name}, small)
    valid, invalid = FORMAT_CASES[name]
    assert [text for text in valid if not takes(constraint, f'"{text}"')] == []
    assert [text for text in invalid if takes(constraint, f'"{text}"')] == []


def test_an_open_object_is_linear_in_the_letters_of_its_names(small: Vocabulary) -> None:
    def num_states(count: int) -> int:
        names = [f"property_{i:04}" for i in range(count)]
        schema = {"type": "object", "properties": {name: {"type": "null"} for name in names}}
        return len(regular_net(wire.JsonSchema(json.dumps(schema)), small).final)

    few, many = num_states(100), num_states(800)
    letters = len("property_0000")
    assert many - few < 700 * (2 * letters + 4)  # each name, and its place in the trie


def test_a_length_beside_a_pattern_costs_nothing_where_the_pattern_says_it_already(
    small: Vocabulary,
) -> None:
    def num_nodes(**bounds: int) -> int:
        schema = {"type": "string", "pattern": "^[a-z]{2,9}-[0-9]+x$", **bounds}
        return len(regular_net(wire.JsonSchema(json.dumps(schema)), small).kind)

    assert num_nodes(minLength=5) == num_nodes(minLength=1)
    assert num_nodes(maxLength=40) < num_nodes(minLength=1) + 40 * 12


def test_lengths_beside_patterns_are_exact(small: Vocabulary, rng: random.Random) -> None:
    for pattern in ("^a*b?$", "^(ab)*c$", "a.*b", "^(a|bb)+$", "^[abc]*$"):
        low, high = rng.randint(0, 4), rng.randint(5, 8)
        schema = {"type": "string", "pattern": pattern, "minLength": low, "maxLength": high}
        constraint = compiled(schema, small)
        for _ in range(200):
            text = "".join(rng.choice("abc") for _ in range(rng.randint(0, 10)))
            valid = low <= len(text) <= high and re.search(pattern, text) is not None
            assert takes(constraint, f'"{text}"') == valid, (schema, text)


def test_merged_properties_come_in_the_order_of_the_text(small: Vocabulary) -> None:
    null = {"type": "null"}
    parts: dict[str, Any] = {
        "$ref": {"$ref": "#/$defs/a"},
        "allOf": {"allOf": [{"properties": {"a": null}, "required": ["a"]}]},
    }
    definitions = {"$defs": {"a": parts["allOf"]["allOf"][0]}}
    own = {"properties": {"b": null}, "required": ["b"], "type": "object"}
    for part in parts.values():
        first = compiled({**part, **own, **definitions}, small)
        assert takes(first, '{"a": null, "b": null}')
        last = compiled({**own, **part, **definitions}, small)
        assert takes(last, '{"b": null, "a": null}')


def test_many_patterns_of_names_are_told_apart_where_they_exclude_each_other(
    small: Vocabulary,
) -> None:
    patterns: dict[str, Any] = {f"^{letter}_": {"const": letter} for letter in "abcdefghi"}
    schema = {**OBJECT, "patternProperties": {**patterns, "^a_x": {"type": "string"}}}
    made = compiled(schema, small)
    for text in ('{"a_": "a"}', '{"i_2": "i", "a_x": "a", "b_": "b"}', "{}"):
        assert takes(made, text), text
    for text in ('{"a_": "b"}', '{"i_2": "h"}', '{"j_": "a"}', '{"_a": "a"}'):
        assert not takes(made, text), text
    alike = {f"{letter}": {"type": "integer"} for letter in "abcdefghi"}
    with pytest.raises(UnsupportedSchema, match="patternProperties"):
        compiled({**OBJECT, "patternProperties": alike}, small)


OLD_DRAFT = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "$ref": "#/definitions/a",
    "maxLength": 1,
    "definitions": {"a": {"type": "string"}},
}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer", "nullable": True, "maximum": 1.5}, ["1", "null"], ["2", '"1"']),
        ({"type": "string", "nullable": True, "enum": ["a"]}, ['"a"'], ["null"]),
        ({"type": "string", "nullable": False}, ['"a"'], ["null"]),
        (
            {"enum": [{"type": "a", "nullable": True}]},
            ['{"type": "a", "nullable": true}'],
            ["null"],
        ),
        (
            {"properties": {"const": {"type": "integer", "nullable": True}}},
            ['{"const": null}'],
            ['{"const": "a"}'],
        ),
        (OLD_DRAFT, ['"aaa"'], ["1"]),
        ({**OLD_DRAFT, "$schema": "https://json-schema.org/draft/2020-12/schema"}, [], ['"aaa"']),
    ],
)
def test_other_drafts_and_openapi_mean_what_they_say(
    schema: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    made = compile_constraint(wire.JsonSchema(json.dumps(schema)), byte_vocabulary())
    assert [accepts(made, text) for text in (*good, *bad)] == [True] * len(good) + [False] * len(
        bad
    )


TREE = {
    "$id": "http://x/tree",
    "$dynamicAnchor": "node",
    "type": "object",
    "properties": {"below": {"type": "array", "items": {"$dynamicRef": "#node"}}},
}
OTHERS = {
    "http://x/tree": TREE,
    "http://x/part.json": {"$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n"},
    "urn:told": {"$id": "http://x/renamed", "$schema": "http://json-schema.org/draft-07/schema#"}
    | {"properties": {"a": {"$ref": "part.json", "minimum": 9}}},
}


@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        ({"$ref": "http://x/part.json"}, [3], ["3"]),
        ({"$id": "http://x/root", "items": {"$ref": "part.json#/$defs/n"}}, [[3]], [[None]]),
        # beside a reference of an older draft nothing is said, and in this one it is
        ({"$ref": "urn:told", "$comment": ""}, [{"a": 1}], [{"a": "b"}]),
        ({"$ref": "http://x/part.json", "minimum": 9}, [9], [1]),
        # numbers and texts stay as they are written
        ({"enum": ["\0001", 1.50, "1.5"]}, ["\0001", 1.5, "1.5"], [1, 1.4]),
        # the first resource on the way says what a dynamic reference means
        ({"$ref": "http://x/tree"}, [{"below": [{"x": 1}]}], [{"below": [3]}]),
        (
            {"$id": "http://x/strict", "$dynamicAnchor": "node", "$ref": "tree"}
            | {"unevaluatedProperties": False},
            [{"below": [{"below": []}]}],
            [{"x": 1}, {"below": [{"x": 1}]}],
        ),
    ],
)
def test_references_point_to_schemas_that_the_caller_gives(
    schema: Any, taken: list[Any], refused: list[Any]
) -> None:
    made = lmprog.constraint(schema=schema, schemas=OTHERS)
    for value in taken:
        assert made.accepts(json.dumps(value)), value
    for value in refused:
        assert not made.accepts(json.dumps(value)), value


def test_schemas_to_refer_to_have_absolute_uris_and_are_schemas() -> None:
    for others in ({"part": {}}, {"http://x/a": 3}, ["http://x/a"]):
        with pytest.raises(InvalidParameter, match="schemas"):
            lmprog.constraint(schema={}, schemas=others)  # type: ignore[arg-type]
