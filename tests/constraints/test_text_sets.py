"""Conjunctions of patterns and exclusions take exactly the texts that Python's `re` says."""

from __future__ import annotations

import itertools
import json
import random
import re

import pytest

from lmprog import wire
from lmprog.constraints import charset
from lmprog.constraints.compiling.compiler import compile_constraint, regular_net
from lmprog.constraints.constraint import CompileLimits, never_stop
from lmprog.constraints.inspect import accepts
from lmprog.constraints.net import Node
from lmprog.constraints.regular import RegularConstraint
from lmprog.constraints.schema.flat import Sourced
from lmprog.constraints.schema.strings import search_pattern
from lmprog.constraints.text_set import (
    Lower,
    TextAutomaton,
    TextSet,
    automaton_of,
    contains,
    matches,
)
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import GrammarError

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


SOME = [*TEXTS, "é", 'a"b', "ab\U0001f600", "aaaaaaaa", "bébxé" * 3, "_9", "a\nb", "c", "aabbcc"]


def test_automata_of_sets_take_what_re_says() -> None:
    rng = random.Random(1)
    patterns = [*PATTERNS, "^(ab|[b-é]x?)+$", r"^\w{2,40}$", "^.{3,9}b", "(a|b){2}c*$", "^$"]
    words = [*TEXTS[:12], "é", 'a"b', "ab\U0001f600"]
    num_rests = 0
    for number in range(150):
        chosen = [rng.sample(patterns, rng.randint(0, 2)) for _ in range(2)]
        excluded = tuple(rng.sample(words, rng.randint(0, 4)))
        within, outside = (
            tuple(
                search_pattern(Sourced(one, "#/pattern"), CompileLimits()).within[0] for one in some
            )
            for some in chosen
        )
        rests = list[TextSet]()
        texts = TextSet(within, outside, number % 2, None, excluded)
        made = automaton_of(texts, never_stop, noted(rests))
        for text in SOME:
            right = (
                text not in excluded
                and all(re.search(one, text, re.ASCII) for one in chosen[0])
                and not any(re.search(one, text, re.ASCII) for one in chosen[1])
            )
            assert taken(made, rests, text) == right, (chosen, excluded, text)
        num_rests += len(rests)
    assert num_rests > 50


def test_matches_are_those_of_re() -> None:
    rng = random.Random(2)
    patterns = [*PATTERNS, "^(ab|[b-é]x?)+$", r"^\w{2,40}$", "^.{3,9}b", "(a?){5}a{5}"]
    for pattern in patterns:
        (one,) = search_pattern(Sourced(pattern, "#/pattern"), CompileLimits()).within
        for text in rng.sample(SOME, 30):
            assert matches(one, text) == bool(re.search(pattern, text, re.ASCII)), (pattern, text)


def test_no_class_has_half_of_a_surrogate_pair() -> None:
    (one,) = search_pattern(Sourced("^[^b]*$", "#/pattern"), CompileLimits()).within
    assert matches(one, "aé\U0001f600")
    assert not any(matches(one, text) for text in ("a\ud800", "\udc00"))


@pytest.mark.parametrize(
    "pattern",
    [
        "^(b?a*($|b))*$",
        "(^|a)+b",
        "^(a$)+",
        "(^a|b)*$",
        "^(^a|b$|ab)*$",
    ],
)
def test_anchors_in_repetitions_say_the_start_and_the_end(pattern: str) -> None:
    (found,) = search_pattern(Sourced(pattern, "#/pattern"), CompileLimits()).within
    for text in TEXTS:
        assert matches(found, text) == bool(re.search(pattern, text)), text


def test_a_match_that_needs_too_many_steps_is_refused() -> None:
    (one,) = search_pattern(Sourced("(a?){3000}b", "#/pattern"), CompileLimits()).within
    with pytest.raises(GrammarError, match="too many steps"):
        matches(one, "a" * 3000)


def noted(rests: list[TextSet]) -> Lower:
    """Takes a rest down; its node is its place."""

    def lower(rest: TextSet) -> Node:
        rests.append(rest)
        return Node(len(rests) - 1)

    return lower


def taken(automaton: TextAutomaton, rests: list[TextSet], text: str) -> bool:
    state = 0 if automaton.final else None
    for at, char in enumerate(text):
        if state is None:
            return False
        if state in automaton.rests:
            return contains(rests[automaton.rests[state]], text[at:])
        state = behind(automaton, state, ord(char))
    if state in automaton.rests:
        return contains(rests[automaton.rests[state]], "")
    return state is not None and bool(automaton.final[state])


def behind(automaton: TextAutomaton, state: int, code: int) -> int | None:
    found = [
        automaton.targets[edge]
        for edge in range(automaton.starts[state], automaton.starts[state + 1])
        if charset.contains(automaton.classes[automaton.labels[edge]], code)
    ]
    assert len(found) < 2, "it is deterministic"
    return found[0] if found else None


def test_lengths_are_counted_only_where_the_automaton_is_walked(small: Vocabulary) -> None:
    """A net's size does not depend on the length, and neither does the number of states made at
    first."""

    def sizes(longest: int) -> tuple[int, int]:
        pattern = r"^(?:\S+\s+){0,29}\S+$"
        schema = {"type": "string", "pattern": pattern, "maxLength": longest, "minLength": 2}
        spec = wire.JsonSchema(json.dumps(schema))
        made = compile_constraint(spec, small)
        assert isinstance(made, RegularConstraint)
        made.mask(made.start)
        return len(regular_net(spec, small).items), made.num_states

    assert sizes(300) == sizes(300_000)


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
