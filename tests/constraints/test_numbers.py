"""How long numbers may get, and that building them can be stopped."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint, regular_net
from lmprog.constraints.inspect import accepts
from lmprog.constraints.vocabulary import Vocabulary

THIRD = "0." + "3" * 24


@pytest.mark.parametrize(
    "bounds",
    [{}, {"minimum": 0}, {"maximum": 1}, {"not": {"type": "integer"}}, {"not": {"multipleOf": 2}}],
    ids=str,
)
def test_no_model_writes_places_without_end(bounds: dict[str, Any], small: Vocabulary) -> None:
    made = compile_constraint(wire.JsonSchema(json.dumps({"type": "number", **bounds})), small)
    assert accepts(made, THIRD)
    assert not accepts(made, THIRD + "3" * 24)
    state = made.advance_bytes(made.start, THIRD.encode())
    assert state is not None
    assert made.distance(state) == 0


def test_finer_bounds_have_all_their_places(small: Vocabulary) -> None:
    low = "0." + "0" * 29 + "1"
    made = compile_constraint(wire.JsonSchema(f'{{"type": "number", "minimum": {low}}}'), small)
    assert accepts(made, low)
    assert not accepts(made, low[:-1] + "09")


def test_integers_have_as_many_digits_as_their_schema_allows(small: Vocabulary) -> None:
    made = compile_constraint(wire.JsonSchema('{"type": "integer"}'), small)
    assert accepts(made, "9" * 60)
    either = compile_constraint(wire.JsonSchema('{"type": "number"}'), small)
    assert accepts(either, "9" * 24)
    assert not accepts(either, "9" * 25)


def test_numbers_ask_whether_they_may_go_on(small: Vocabulary) -> None:
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1

    schema = '{"type": "integer", "multipleOf": 997, "maximum": 99999999}'
    made = compile_constraint(wire.JsonSchema(schema), small, check=check)
    assert accepts(made, "1994")
    assert calls > 50


def test_equal_bounds_are_read_once_and_lead_nowhere_in_vain(small: Vocabulary) -> None:
    def num_states(schema: dict[str, Any]) -> int:
        spec = wire.JsonSchema(json.dumps(schema))
        return len(regular_net(spec, small).final)

    amount = {"type": "number", "minimum": 0, "maximum": 1}
    assert num_states(amount) < 70, "two fractions of 24 places: below one, and of zeros"
    named = {f"{i}": {**amount, "$id": f"/{i}"} for i in range(8)}
    both = {"type": "object", "properties": named, "additionalProperties": False}
    assert num_states(both) < 2 * num_states(amount) + 100
