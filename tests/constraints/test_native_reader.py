"""The native reader of schemas: what it reads means what the reader in Python says, and all that it
leaves to that reader is answered by it.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.constraint_cases import generated
from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.constraint import CompileLimits, CompileTooLong
from lmprog.constraints.inspect import accepts
from lmprog.constraints.net import EMPTY, NetBuilder
from lmprog.constraints.regular import RegularConstraint
from lmprog.constraints.schema import entry
from lmprog.constraints.schema.build import SchemaBuilder
from lmprog.constraints.schema.entry import schema_node
from lmprog.constraints.schema.frequent import FrequentSchemas, NativeReader
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import GrammarError, RequestRejected
from tests.constraints.schema_cases import KEYWORDS
from tests.constraints.test_random_schemas import random_schema

PAIRS = 60
"""Of states of two automata that are compared."""

TREE = {"type": "object", "properties": {"next": {"$ref": "#"}, "value": {"type": "string"}}}
MUTUAL = {
    "$ref": "#/$defs/a",
    "$defs": {
        "a": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/b"}, {"const": 1}]}},
        "b": {"type": ["object", "null"], "properties": {"a": {"$ref": "#/$defs/a"}}},
    },
}
THROUGH_BOTH_READERS = {
    "type": "object",
    "properties": {
        "item": {"$ref": "#/$defs/item"},
        "same": {"$ref": "#/$defs/item"},
        "root": {"$ref": "#"},
    },
    "required": ["item"],
    "additionalProperties": False,
    "$defs": {
        "item": {
            "type": "object",
            "patternProperties": {"^x-": {"$ref": "#/$defs/inner"}},
            "additionalProperties": False,
        },
        "inner": {"type": "object", "properties": {"up": {"$ref": "#/$defs/item"}, "n": {}}},
    },
}
TAGGED = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"kind": {"const": kind}, "it": {"type": of}},
            "required": ["kind"],
        }
        for kind, of in (("a", "string"), ("b", "integer"), ("c", "null"))
    ]
}
OVERLAPPING = {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 2}]}
EQUAL_NUMBERS = {"oneOf": [{"const": 1}, {"const": 1.0}]}
SHAPES: list[Any] = [
    TREE,
    MUTUAL,
    THROUGH_BOTH_READERS,
    TAGGED,
    OVERLAPPING,
    EQUAL_NUMBERS,
    {"anyOf": [{"type": "string"}, {"anyOf": [{"enum": ["a", 1, None, True]}, {"type": "null"}]}]},
    {"type": "object", "properties": {'q"\\\n/é\u0001': {"type": "boolean"}}, "required": ["z"]},
    {"type": "object", "properties": {"é": {}}, "additionalProperties": {"type": "null"}},
    {"type": "object", "required": ["b", "a", "b"], "additionalProperties": {"type": "integer"}},
    {"type": "object", "required": ["a"], "properties": {"b": {}}, "additionalProperties": False},
    {"properties": {"a": {"type": "null"}}, "required": ["a"]},
    {"type": ["string", "object", "array"], "properties": {"a": False}},
    {"type": "array", "items": {"type": "null"}, "minItems": 2, "maxItems": 4},
    {"type": "array", "items": False, "maxItems": 3},
    {"items": {"type": "boolean"}, "maxItems": 0},
    {"type": "string", "enum": ["a", 'b"', "a", 3, None]},
    {"type": "integer", "enum": [1, 10, "x", -5]},
    {"type": "object", "properties": {"a~/b": {"$ref": "#/properties/a~0~1b/items"}, "c": {}}},
    {"type": "object", "properties": {"a~/b": {"type": "array", "items": {"minLength": 2}}}},
    {"$defs": {"x": {"type": "null"}}, "anyOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/x"}]},
    {
        "$id": "http://a/",
        "properties": {"x": {"$ref": "#/$defs/y"}, "z": {"$ref": "http://a/#/$defs/y"}},
        "$defs": {"y": {"type": "null"}},
    },
    {"$defs": {"y": {"$id": "z", "items": {"$ref": "#/t"}, "t": {"type": "null"}}}, "$ref": "z"},
    {"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}, {}]}}},
]


def tree_of_expressions(*required: str) -> Any:
    """As pydantic writes a discriminated union of which two branches have the union within."""
    return {
        "$ref": "#/$defs/Expr",
        "$defs": {
            "Expr": {
                "oneOf": [{"$ref": "#/$defs/Add"}, {"$ref": "#/$defs/Less"}, {"$ref": "#/$defs/N"}]
            },
            **{
                name: {
                    "type": "object",
                    "properties": {
                        "kind": {"const": name},
                        "left": {"$ref": "#/$defs/Expr"},
                        "right": {"allOf": [{"$ref": "#/$defs/Expr"}]},
                    },
                    "required": required,
                }
                for name in ("Add", "Less")
            },
            "N": {"type": "object", "properties": {"kind": {"const": "N"}}, "required": ["kind"]},
        },
    }


def itself_within(keyword: str, value: Any) -> list[Any]:
    """A schema that is a part of itself: of the document, and of a member."""
    at_root = {keyword: value("#")}
    return [at_root, {"type": "object", "properties": {"a": {keyword: value("#/properties/a")}}}]


def schemas(to: str) -> list[Any]:
    return [{"$ref": to}, {"type": "string"}]


CYCLES: list[Any] = [
    tree_of_expressions("kind", "left", "right"),
    tree_of_expressions("left", "right", "kind"),
    tree_of_expressions("right"),
    {"oneOf": [{"$ref": "#"}]},
    {"oneOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"oneOf": [{"$ref": "#"}]}}},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    *(
        schema
        for keyword in ("oneOf", "anyOf", "allOf", "prefixItems")
        for schema in itself_within(keyword, schemas)
    ),
    *(
        schema
        for keyword in ("not", "if", "items", "contains", "additionalProperties", "propertyNames")
        for schema in itself_within(keyword, lambda to: {"$ref": to})
    ),
    *(
        schema
        for keyword in ("dependentSchemas", "dependencies", "patternProperties", "properties")
        for schema in itself_within(keyword, lambda to: {"b": {"$ref": to}})
    ),
    *(
        {"oneOf": [{"type": "null"}, {keyword: {"$ref": "#"}}]}
        for keyword in ("not", "items", "additionalProperties", "unevaluatedProperties")
    ),
    *({keyword: "#"} for keyword in ("$ref", "$dynamicRef", "$recursiveRef")),
    {"$dynamicAnchor": "a", "oneOf": [{"$dynamicRef": "#a"}, {"type": "null"}]},
]


@pytest.fixture(params=["fixed", "compact"])
def whitespace(request: pytest.FixtureRequest) -> wire.Whitespace:
    found: wire.Whitespace = request.param
    return found


def outcome(spec: wire.JsonSchema, vocabulary: Vocabulary) -> RegularConstraint | str:
    try:
        made = compile_constraint(spec, vocabulary)
    except RequestRejected as error:
        return error.message
    return made if isinstance(made, RegularConstraint) else made.engine


def in_python(
    spec: wire.JsonSchema, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> RegularConstraint | str:
    with monkeypatch.context() as patch:
        patch.setattr(FrequentSchemas, "of", lambda *_: None)
        return outcome(spec, vocabulary)


def assert_same_texts(left: RegularConstraint, right: RegularConstraint, note: str) -> None:
    """The automata are trimmed, so equal languages have equal moves wherever both are."""
    rng = random.Random(0)
    pairs = [(left.start, right.start)]
    for _ in range(PAIRS):
        one, other = pairs[rng.randrange(len(pairs))] if rng.random() < 0.5 else pairs[-1]
        moves = [byte for byte, after in enumerate(left.row(one)) if after]
        assert moves == [byte for byte, after in enumerate(right.row(other)) if after], note
        assert left.is_final(one) == right.is_final(other), note
        if not moves:
            continue
        byte = bytes([rng.choice(moves)])
        after = left.advance_bytes(one, byte), right.advance_bytes(other, byte)
        assert after[0] is not None
        assert after[1] is not None
        pairs.append((after[0], after[1]))


def assert_same(schema: str, whitespace: wire.Whitespace, of: Vocabulary, patch: Any) -> None:
    spec = wire.JsonSchema(schema, whitespace)
    native, plain = outcome(spec, of), in_python(spec, of, patch)
    if isinstance(native, str) or isinstance(plain, str):
        assert native == plain, schema
    else:
        assert_same_texts(native, plain, schema)


def random_documents() -> Iterator[Any]:
    rng = random.Random(11)
    for _ in range(120):
        yield random_schema(rng, 2)


def test_it_reads_what_the_reader_in_python_reads(
    small: Vocabulary, whitespace: wire.Whitespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for schema in [*SHAPES, *(case[0] for case in KEYWORDS if whitespace == "fixed")]:
        assert_same(json.dumps(schema), whitespace, small, monkeypatch)


def test_it_reads_random_schemas_like_the_reader_in_python(
    small: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    for schema in random_documents():
        assert_same(json.dumps(schema), "fixed", small, monkeypatch)
    for text, _ in generated(25, 3):
        assert_same(text, "fixed", small, monkeypatch)


def test_a_schema_within_itself_is_read_as_in_python(
    small: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    for schema in CYCLES:
        assert_same(json.dumps(schema), "fixed", small, monkeypatch)


def test_a_tree_of_expressions_is_read_natively(small: Vocabulary) -> None:
    tree = json.dumps(tree_of_expressions("left", "right", "kind"))
    made = compile_constraint(wire.JsonSchema(tree, "compact"), small)
    one = '{"kind":"N"}'
    assert accepts(made, f'{{"kind":"Add","left":{one},"right":{one}}}')
    assert not accepts(made, f'{{"kind":"Add","left":{one},"right":1}}')
    if native_reader("{}") is not None:
        assert was_read(tree)


DEEP = 10_000
LINKS: dict[str, Any] = {
    "$ref": lambda to: to,
    "allOf": lambda to: {"allOf": [to]},
    "anyOf": lambda to: {"anyOf": [to]},
    "oneOf": lambda to: {"oneOf": [to]},
    "one of two": lambda to: {"oneOf": [to, {"type": "null"}]},
    "not": lambda to: {"not": to},
    "if": lambda to: {"if": to, "then": {"type": "string"}},
    "items": lambda to: {"items": to},
    "properties": lambda to: {"type": "object", "properties": {"a": to}},
    "additionalProperties": lambda to: {"type": "object", "additionalProperties": to},
    "dependentSchemas": lambda to: {"dependentSchemas": {"a": to}},
    "told apart by what is within": lambda to: {
        "oneOf": [{"type": "object", "properties": {"a": to}, "required": ["a"]}] * 2
    },
}


ENOUGH = 20.0
"""Seconds of processor time for what takes 2 at most on an idle machine, and took minutes."""


def assert_decided(schema: str, vocabulary: Vocabulary) -> None:
    """Within the time of a compile, with room for a busy machine."""
    vocabulary.prepare()
    begin = time.process_time()

    def check() -> None:
        if time.process_time() > begin + 2:
            raise CompileTooLong("too long", position=None)

    with contextlib.suppress(RequestRejected):
        compile_constraint(wire.JsonSchema(schema), vocabulary, check=check)
    assert time.process_time() < begin + ENOUGH


@pytest.mark.parametrize("link", LINKS)
def test_a_chain_of_references_of_any_length_is_decided(link: str, small: Vocabulary) -> None:
    parts = {f"d{i}": LINKS[link]({"$ref": f"#/$defs/d{i + 1}"}) for i in range(DEEP)}
    parts[f"d{DEEP}"] = {"type": "string"}
    assert_decided(json.dumps({"$defs": parts, "$ref": "#/$defs/d0"}), small)


@pytest.mark.parametrize("link", [one for one in LINKS if not one.startswith("told apart")])
@pytest.mark.parametrize("depth", [15, 90, DEEP])
def test_a_schema_of_any_depth_is_decided(link: str, depth: int, small: Vocabulary) -> None:
    before, after = json.dumps(LINKS[link]("HERE")).split('"HERE"')
    assert_decided(before * depth + '{"type": "string"}' + after * depth, small)


def many_values() -> Any:
    return {"oneOf": [{"enum": [f"{end}{i}" for i in range(30_000)]} for end in "ab"]}


def many_names() -> Any:
    names = [f"n{i}" for i in range(3000)]
    branch: dict[str, Any] = {"type": "object", "required": names}
    return {"oneOf": [branch | {"properties": {name: {"type": "null"} for name in names}}] * 3}


def many_ways_to_the_same() -> Any:
    names = [f"n{i}" for i in range(60)]
    parts: dict[str, Any] = {"d5": {"type": "string"}}
    for i in range(5):
        described = {name: {"$ref": f"#/$defs/d{i + 1}"} for name in names}
        parts[f"d{i}"] = {"type": "object", "required": names, "properties": described}
    return {"oneOf": [{"$ref": "#/$defs/d0"}] * 2, "$defs": parts}


@pytest.mark.parametrize("make", [many_values, many_names, many_ways_to_the_same])
def test_branches_are_told_apart_within_the_time_of_a_compile(make: Any, small: Vocabulary) -> None:
    assert_decided(json.dumps(make()), small)


def test_names_that_are_no_texts_are_refused_where_branches_are_told_apart(
    small: Vocabulary,
) -> None:
    branch = {"type": "object", "properties": {"a": {}}, "required": [["a"]]}
    with pytest.raises(RequestRejected):
        compile_constraint(wire.JsonSchema(json.dumps({"oneOf": [branch, branch]})), small)


def test_most_schemas_are_read_natively() -> None:
    reading = native_reader("{}")
    if reading is None:
        pytest.skip("no compiler")
    taken = [was_read(text) for text, _ in generated(60, 5)]
    assert sum(taken) >= 40
    assert was_read(json.dumps(TREE))
    assert was_read(json.dumps(THROUGH_BOTH_READERS))
    assert was_read(json.dumps(TAGGED))
    assert not was_read(json.dumps(OVERLAPPING))
    assert not was_read(json.dumps(EQUAL_NUMBERS))


def native_reader(text: str) -> NativeReader | None:
    return NativeReader.of(text, b", ", b": ")


def was_read(text: str) -> bool:
    """Whether the root of a document is read by the kernel."""
    reader, net = native_reader(text), NetBuilder()
    return reader is not None and reader.node("#", net, lambda *_: net.text(b"1")) is not None


@pytest.mark.parametrize(
    "text",
    [
        '{"type": "object", "type": "array"}',
        '{"properties": {"\\ud800": {}}}',
        '{"properties": {"\\u0000": {}}}',
        '{"a": 01}',
        '{"a": 1,}',
        '{"a": NaN}',
        '{"a": "\t"}',
        '{"a": "\\x"}',
        '{"a": "\\u12g4"}',
        '["not", "a", "schema"]',
        "7",
        "",
        '{"a"',
        '{"a": 1} 2',
        '{"a": ' + "1" * 2000 + "}",
        '{"a": ' * 250 + "1" + "}" * 250,
        '{"$defs": {"a": {"$id": "http://x/"}}}',
    ],
)
def test_what_readers_may_take_differently_is_not_read(text: str) -> None:
    assert native_reader(text) is None


def test_white_space_and_escapes_in_the_text_say_nothing(small: Vocabulary) -> None:
    said = (
        '\n{ "\\u0074ype" :"object",\t"properties":{"\\u00e9\\ud83d\\ude00\\/":{"type":"null"}} , '
    )
    made = compile_constraint(
        wire.JsonSchema(said + '"additionalProperties" : false }\r\n', "compact"), small
    )
    assert accepts(made, '{"é😀/":null}')
    assert not accepts(made, '{"e":null}')


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"properties": {"a": {"type": "string", "pattern": "("}}}, "#/properties/a/pattern"),
        ({"items": {"type": "object", "properties": {"b": {"type": "strin"}}}}, "#/items/prop"),
        ({"type": "object", "properties": {"c": {"$ref": "#/nowhere"}}}, "points nowhere"),
        ({"type": "object", "properties": {"d": 3}}, "#/properties/d"),
        ({"type": "object", "properties": {"e": {"anyOf": []}}}, "#/properties/e/anyOf"),
        ({"anyOf": [{"$ref": "#"}]}, "refers to itself"),
        ({"$id": "http://]a/", "$ref": "b"}, r"\$id 'http://\]a/' is no URI"),
        ({"properties": {"a": {"$id": "//[a"}}}, r"\$id '//\[a' is no URI"),
        ({"$ref": "http://a\u2100b/"}, r"\$ref 'http://a\u2100b/' is no URI"),
    ],
)
def test_what_is_refused_is_named_by_its_place(schema: Any, place: str, small: Vocabulary) -> None:
    with pytest.raises(RequestRejected, match=place):
        compile_constraint(wire.JsonSchema(json.dumps(schema)), small)


def test_reading_a_large_schema_can_be_stopped_again_and_again() -> None:
    if native_reader("{}") is None:
        pytest.skip("no compiler")
    asked = 0

    def count() -> None:
        nonlocal asked
        asked += 1

    text = json.dumps({"enum": [f"value {number}" for number in range(20_000)]})
    schema_node(wire.JsonSchema(text), NetBuilder(check=count), CompileLimits())
    assert asked >= 20


def test_the_end_of_pythons_stack_is_a_recursion_error_wherever_it_is_met() -> None:
    found = native_reader(json.dumps(TREE))
    if found is None:
        pytest.skip("no compiler")

    def deeper(left: int, reader: NativeReader) -> None:
        if left:
            deeper(left - 1, reader)
        else:
            reader.node("#/properties/value", net, lambda *_: EMPTY)

    net, met = NetBuilder(), 0
    for depth in range(700, 1000):  # so that each call of the reader is the last one once
        try:
            deeper(depth, found)
        except RecursionError:
            met += 1
    assert met


def test_nodes_that_are_taken_over_count_towards_the_limit() -> None:
    names = {f"name{number}": {"type": "null"} for number in range(200)}
    spec = wire.JsonSchema(json.dumps({"type": "object", "properties": names}))
    with pytest.raises(GrammarError, match="more than 300 nodes"):
        schema_node(spec, NetBuilder(CompileLimits(max_nodes=300)), CompileLimits(max_nodes=300))


def test_a_builder_that_is_asked_is_freed_as_soon_as_it_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alive: list[weakref.ref[SchemaBuilder]] = []

    class Watched(SchemaBuilder):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            alive.append(weakref.ref(self))

    monkeypatch.setattr(entry, "SchemaBuilder", Watched)
    net = NetBuilder()
    schema_node(wire.JsonSchema(json.dumps(THROUGH_BOTH_READERS)), net, CompileLimits())
    assert alive
    assert [one() for one in alive] == [None] * len(alive)
