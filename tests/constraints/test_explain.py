"""A constraint looked at by itself: examples match, forced shares are shares."""

from __future__ import annotations

import json

import jsonschema
import pytest

from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.inspect import accepts, byte_vocabulary, example, forced_share

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 18},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def test_examples_match_and_repeat_with_their_seed() -> None:
    constraint = compile_constraint(wire.JsonSchema(json.dumps(SCHEMA)), byte_vocabulary())
    texts = [example(constraint, byte_vocabulary(), seed) for seed in range(20)]
    assert texts == [example(constraint, byte_vocabulary(), seed) for seed in range(20)]
    assert len(set(texts)) > 10
    for text in texts:
        assert accepts(constraint, text)
        jsonschema.validate(json.loads(text), SCHEMA)
    assert not accepts(constraint, '{"name": "x"}')
    assert not accepts(constraint, "\ud800")


@pytest.mark.parametrize(
    ("pattern", "low", "high"), [("abc", 1, 1), ("[ab]{4}", 0, 0), ("name: [ab]{6}", 0.5, 0.5)]
)
def test_the_forced_share_is_that_of_the_bytes_without_a_choice(
    pattern: str, low: float, high: float
) -> None:
    constraint = compile_constraint(wire.Regex(pattern), byte_vocabulary())
    assert low <= forced_share(constraint, byte_vocabulary()) <= high
