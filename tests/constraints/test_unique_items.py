"""Arrays of any number of strings that have to differ: exactly these, in states that are not shared,
closing within any budget.
"""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.constraint import CompileLimits, Constraint, State
from lmprog.constraints.inspect import accepts
from lmprog.constraints.unique_items import UniqueItemsConstraint
from lmprog.errors import UnsatisfiableConstraint, UnsupportedSchema
from tests.constraints.conftest import EOS, make_vocabulary

TEXT = {"type": "string"}
ITEMS: list[dict[str, Any]] = [
    TEXT,
    {"type": "string", "minLength": 1},
    {"type": "string", "maxLength": 2, "pattern": "^[ab]*$"},
    {"type": "string", "pattern": "^ab(c|ca*)$"},
    {"type": "string", "anyOf": [{"enum": ["a", "ab", "hello"]}, {"pattern": "^#[ab]{1,2}$"}]},
    {"type": "string", "pattern": "^[ab]$"},
    {"type": "integer"},
    {"type": "number"},
    {"type": ["string", "integer", "null", "boolean"]},
    {"type": "integer", "minimum": -12, "maximum": 3},
    {"anyOf": [{"type": "integer", "multipleOf": 3}, {"enum": ["a", "ab", 1, 0.5, None]}]},
]
COUNTS: list[dict[str, Any]] = [
    {},
    {"minItems": 1},
    {"minItems": 2, "maxItems": 3},
    {"maxItems": 4},
]
AROUND = ["array", "object", "array of arrays", "several"]


def schema_of(items: dict[str, Any], counts: dict[str, Any], around: str) -> dict[str, Any]:
    array = {"type": "array", "items": items, "uniqueItems": True, **counts}
    if around == "object":
        fields = {"x": array, "y": array, "z": {"type": "integer"}}
        return {
            "type": "object",
            "properties": fields,
            "required": ["x"],
            "additionalProperties": False,
        }
    if around == "array of arrays":
        return {"type": "array", "items": array, "minItems": 1, "maxItems": 2}
    return {"anyOf": [{"type": "null"}, array]} if around == "several" else array


VOCABULARY = make_vocabulary(
    [
        *('["', '", "', '","', '"]', '"],', '", ', '",', ', "', "ab", "aba", '["a", "a', '"a"'),
        *('"a", "a"', '["a"]', "aa", "hello", '"hello', "#a", '"#', '{"x": ["', '"}', "null"),
        *(
            "[[",
            '["a","a",',
            'a"',
            "[ ",
            "12",
            "-1",
            "1, ",
            ",1",
            ", 1",
            "1]",
            "[1",
            "[1, 1",
            "1,1,",
        ),
        *(" true", "true", "null,", "0.5", '"a", 1', '", 1, ', '1, "a"', "-12", ", null]", "33"),
    ]
)


def samples(rng: random.Random) -> list[Any]:
    texts = ["a", "b", "ab", "aba", "", "hello", "#a", "#ab", "abc", "abca", 'q"', "é"]
    bare = [0, 1, 3, 12, -12, -1, 33, 333, 0.5, -0.25, 12.5, True, False, None]
    some = rng.choice([texts, bare, bare[:8], texts[:4] + bare])
    return [rng.choice(some) for _ in range(rng.randint(0, 5))]


@pytest.mark.parametrize("items", ITEMS, ids=json.dumps)
@pytest.mark.parametrize("counts", COUNTS, ids=json.dumps)
def test_exactly_the_arrays_without_an_equal_pair_are_taken(
    items: dict[str, Any], counts: dict[str, Any], rng: random.Random
) -> None:
    schema = schema_of(items, counts, "array")
    judge = jsonschema.Draft202012Validator(schema)
    for whitespace, between in (("fixed", (", ", ": ")), ("compact", (",", ":"))):
        spec = wire.JsonSchema(json.dumps(schema), whitespace)  # type: ignore[arg-type]
        made = compile_constraint(spec, VOCABULARY)
        for _ in range(150):
            value = samples(rng)
            text = json.dumps(value, ensure_ascii=False, separators=between)
            assert accepts(made, text) == judge.is_valid(value), text


def test_equal_strings_have_one_spelling() -> None:
    spec = wire.JsonSchema(json.dumps(schema_of(TEXT, {}, "array")), "flexible")
    made = compile_constraint(spec, VOCABULARY)
    assert accepts(made, '[ "\\n" ,\n"\\u001f", "é", "\\\\", "\\""]')
    for other in ("\\u000a", "\\u00e9", "\\/", "\\u001F", "\\u0041"):
        assert not accepts(made, f'["{other}"]')
    assert not accepts(made, '["\\\\", "\\\\"]')
    assert not accepts(made, '["[", "]", "["]')


def test_equal_numbers_have_one_spelling() -> None:
    for kind in ({"type": "integer"}, {"type": "number"}, {"type": "integer", "minimum": -9}):
        made = compile_constraint(
            wire.JsonSchema(json.dumps(schema_of(kind, {}, "array"))), VOCABULARY
        )
        assert accepts(made, "[1, 0, 10, -1, -9]")
        for other in ("-0", "1.0", "1e0", "01", "0.50", "0.0"):
            assert not accepts(made, f"[{other}]")
        assert not accepts(made, "[10, 1, 10]")


def moves(made: Constraint, state: State, budget: int | None = None) -> list[int]:
    row = made.mask(state, budget)
    found = [token for token in range(len(VOCABULARY)) if row.allows(token)]
    assert row.count == len(found)
    return found


@pytest.mark.parametrize("items", ITEMS, ids=json.dumps)
@pytest.mark.parametrize("around", AROUND)
def test_a_mask_allows_a_token_exactly_if_the_text_may_go_on_behind_it(
    items: dict[str, Any], around: str, rng: random.Random
) -> None:
    schema = schema_of(items, rng.choice(COUNTS), around)
    spec = wire.JsonSchema(json.dumps(schema), rng.choice(["fixed", "compact", "flexible"]))
    made = compile_constraint(spec, VOCABULARY)
    for _ in range(2):
        state = made.start
        for _ in range(25):
            allowed = moves(made, state)
            assert allowed, "no mask is ever empty"
            for token in range(1, len(VOCABULARY)):
                text = VOCABULARY.bytes_of(token) or b""
                assert (token in allowed) == (made.advance_bytes(state, text) is not None), text
            assert (EOS in allowed) == made.is_final(state)
            behind = [token for token in allowed if token != EOS]
            if not behind:
                break
            likely = [token for token in behind if token > 256]
            state = made.advance(state, rng.choice(likely or behind))


@pytest.mark.parametrize("items", ITEMS, ids=json.dumps)
@pytest.mark.parametrize("around", AROUND)
def test_a_budget_that_holds_the_shortest_instance_always_closes(
    items: dict[str, Any], around: str, rng: random.Random
) -> None:
    for counts in COUNTS:
        schema = schema_of(items, counts, around)
        judge = jsonschema.Draft202012Validator(schema)
        made = compile_constraint(wire.JsonSchema(json.dumps(schema)), VOCABULARY)
        for _ in range(3):
            state, out = made.start, b""
            left = made.distance(state) + rng.choice([0, 0, 1, 4, 9, 30])
            while left:
                allowed = [token for token in moves(made, state, left) if token != EOS]
                if not allowed:
                    break
                token = rng.choice([one for one in allowed if one > 256] or allowed)
                state, left = made.advance(state, token), left - 1
                assert made.distance(state) <= left
                out += VOCABULARY.bytes_of(token) or b""
            assert made.is_final(state), (schema, out)
            assert judge.is_valid(json.loads(out)), (schema, out)


def test_items_are_remembered_where_the_automaton_forgets_its_states() -> None:
    schema = schema_of({"type": "string", "maxLength": 12}, {}, "array")
    made = compile_constraint(
        wire.JsonSchema(json.dumps(schema)), VOCABULARY, CompileLimits(max_states=120)
    )
    assert isinstance(made, UniqueItemsConstraint)
    held: list[tuple[State, int]] = []
    state = made.advance_bytes(made.start, b'["0"')
    for number in range(1, 60):
        assert state is not None
        held.append((state, number))
        state = made.advance_bytes(state, f', "{number}"'.encode())
        for before, count in held[-5:]:
            assert made.advance_bytes(before, f', "{count - 1}"'.encode()) is None
            assert made.advance_bytes(before, f', "{count + 70}"'.encode()) is not None
    assert len(made._states) <= 400, "states that nobody holds are gone"


def test_where_too_few_strings_differ_nothing_fits() -> None:
    schema = schema_of({"type": "string", "pattern": "^[ab]$"}, {"minItems": 3}, "array")
    with pytest.raises(UnsatisfiableConstraint):
        compile_constraint(wire.JsonSchema(json.dumps(schema)), VOCABULARY)


@pytest.mark.parametrize(
    "items",
    [{"type": "number", "minimum": 0.5}, {"type": "object"}, {"type": ["string", "array"]}, True],
)
def test_items_that_have_several_spellings_are_refused(items: Any) -> None:
    with pytest.raises(UnsupportedSchema) as caught:
        compile_constraint(wire.JsonSchema(json.dumps(schema_of(items, {}, "array"))), VOCABULARY)
    assert caught.value.keyword == "uniqueItems"
