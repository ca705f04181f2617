"""Which numbers a text may be, and how long they may get."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import jsonschema
import pytest

from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint, regular_net
from lmprog.constraints.inspect import accepts
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import UnsatisfiableConstraint

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


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_text_is_taken_exactly_if_arithmetic_says_so(small: Vocabulary, is_whole: bool) -> None:
    rng = random.Random(7)
    for _ in range(40):
        low = Decimal(rng.randint(-300, 300)) / (1 if is_whole else rng.choice([1, 10, 100]))
        schema: dict[str, Any] = {
            "type": "integer" if is_whole else "number",
            rng.choice(["minimum", "exclusiveMinimum"]): float(low),
            rng.choice(["maximum", "exclusiveMaximum"]): float(low) + rng.randint(0, 400),
        }
        if rng.random() < 0.5:
            schema["multipleOf"] = rng.choice([2, 3, 7, 25] if is_whole else [0.5, 0.25, 0.03, 2])
        judge = jsonschema.Draft202012Validator(json.loads(json.dumps(schema), parse_float=Decimal))
        try:
            made = compile_constraint(wire.JsonSchema(json.dumps(schema)), small)
        except UnsatisfiableConstraint:
            continue
        for _ in range(60):
            places = 0 if is_whole else rng.randint(0, 3)
            said = f"{low + Decimal(rng.randint(-50_000, 450_000)) / 1000:.{places}f}"
            if Decimal(said) or not said.startswith("-"):  # zero is written without a sign
                assert accepts(made, said) == judge.is_valid(json.loads(said, parse_float=Decimal))


def test_equal_bounds_are_read_once_and_lead_nowhere_in_vain(small: Vocabulary) -> None:
    def num_states(schema: dict[str, Any]) -> int:
        spec = wire.JsonSchema(json.dumps(schema))
        return len(regular_net(spec, small).final)

    amount = {"type": "number", "minimum": 0, "maximum": 1}
    assert num_states(amount) < 70, "two fractions of 24 places: below one, and of zeros"
    named = {f"{i}": {**amount, "$id": f"/{i}"} for i in range(8)}
    both = {"type": "object", "properties": named, "additionalProperties": False}
    assert num_states(both) < 2 * num_states(amount) + 100
