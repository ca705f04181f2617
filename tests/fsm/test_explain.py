"""A constraint looked at by itself: examples match, forced shares are shares, drawings name every edge."""

from __future__ import annotations

import json

import jsonschema
import pytest

from lmprog.errors import NotSupported
from lmprog.runtime.fsm.compiler import compile_constraint
from lmprog.runtime.fsm.constraint import Choices, Grammar, JsonSchema, Regex
from lmprog.runtime.fsm.explain import accepts, byte_vocabulary, drawing, example, forced_share

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 18}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def test_examples_match_and_repeat_with_their_seed() -> None:
    constraint = compile_constraint(JsonSchema(json.dumps(SCHEMA)), byte_vocabulary())
    texts = [example(constraint, byte_vocabulary(), seed) for seed in range(20)]
    assert texts == [example(constraint, byte_vocabulary(), seed) for seed in range(20)]
    assert len(set(texts)) > 10
    for text in texts:
        assert accepts(constraint, text)
        jsonschema.validate(json.loads(text), SCHEMA)
    assert not accepts(constraint, '{"name": "x"}')
    assert not accepts(constraint, "\ud800")


@pytest.mark.parametrize(("pattern", "low", "high"), [("abc", 1, 1), ("[ab]{4}", 0, 0), ("name: [ab]{6}", 0.5, 0.5)])
def test_the_forced_share_is_that_of_the_bytes_without_a_choice(pattern: str, low: float, high: float) -> None:
    constraint = compile_constraint(Regex(pattern), byte_vocabulary())
    assert low <= forced_share(constraint, byte_vocabulary()) <= high


def test_a_drawing_shows_states_ends_and_edges() -> None:
    constraint = compile_constraint(Choices(('a"', "b")), byte_vocabulary())
    text = drawing(constraint)
    assert text.startswith("digraph")
    assert text.count("->") == 3
    assert 'label="\\""' in text
    assert "doublecircle" in text
    long = drawing(compile_constraint(Regex("[a-z]{100}"), byte_vocabulary()), max_states=5)
    assert long.count("->") == 5
    assert "a-z" in long


def test_only_our_own_automata_can_be_drawn() -> None:
    pytest.importorskip("llguidance")
    with pytest.raises(NotSupported):
        drawing(compile_constraint(Grammar("start: /a+/ /a/"), byte_vocabulary()))
