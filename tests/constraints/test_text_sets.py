"""Conjunctions of patterns and exclusions take exactly the texts that Python's `re` says."""

from __future__ import annotations

import itertools
import json
import random
import re

from lmprog import wire
from lmprog.constraints.compiler import compile_constraint, regular_net
from lmprog.constraints.inspect import accepts
from lmprog.constraints.vocabulary import Vocabulary

TEXTS = ["".join(text) for size in range(5) for text in itertools.product("ab", repeat=size)]
PATTERNS = ["^a", "b$", "ab", "^(ab)*$", "^a?b?$", "a{2}", "^[^a]", "^b.*a$", "^(a|bb)+$", ""]


def test_patterns_and_exclusions_take_what_re_says(small: Vocabulary) -> None:
    rng = random.Random(0)
    for number in range(60):
        within = rng.sample(PATTERNS, rng.randint(0, 2))
        outside = rng.sample(PATTERNS[:-1], rng.randint(0, 2))
        excluded = rng.sample(TEXTS, rng.randint(0, 4))
        low, high = (rng.randint(0, 2), rng.randint(2, 4)) if number % 3 == 0 else (0, 9)
        schema = {
            "type": "string",
            "allOf": [
                *({"pattern": one} for one in within),
                *({"not": {"pattern": one}} for one in outside),
                *([{"not": {"enum": excluded}}] if excluded else []),
                *([{"minLength": low, "maxLength": high}] if number % 3 == 0 else []),
            ],
        }
        wanted = {
            text
            for text in TEXTS
            if all(re.search(one, text) for one in within)
            and not any(re.search(one, text) for one in outside)
            and text not in excluded
            and low <= len(text) <= high
        }
        if not wanted:
            continue  # nothing of this size: whether anything fits is not asked here
        made = compile_constraint(wire.JsonSchema(json.dumps(schema)), small)
        assert {text for text in TEXTS if accepts(made, json.dumps(text))} == wanted, schema


def test_names_beside_a_pattern_cost_no_more_than_their_letters(small: Vocabulary) -> None:
    def num_states(count: int) -> int:
        schema = {
            "properties": {f"name_{number:04}": True for number in range(count)},
            "patternProperties": {"^x-": False},
        }
        return len(regular_net(wire.JsonSchema(json.dumps(schema)), small).final)

    few, many = num_states(100), num_states(400)
    assert many < 5 * few


def test_a_value_that_a_format_excludes_anyway_costs_nothing(small: Vocabulary) -> None:
    """Excluded texts are left out where the patterns do not take them, and else followed to their
    ends only."""
    for value in ("forbidden", "http://a.b/"):
        schema = {"type": "string", "format": "uri", "not": {"const": value}}
        made = compile_constraint(wire.JsonSchema(json.dumps(schema)), small)
        assert not accepts(made, json.dumps(value))
        for other in ("http://a.b/c", "http://a.b", "https://x.y"):
            assert accepts(made, json.dumps(other)), other
