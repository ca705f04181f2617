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
from lmprog.constraints.derivatives import plain_matches
from lmprog.constraints.inspect import accepts
from lmprog.constraints.native_texts import native_automaton, native_matches
from lmprog.constraints.net import Node
from lmprog.constraints.regular import RegularConstraint
from lmprog.constraints.schema.flat import Sourced
from lmprog.constraints.schema.strings import search_pattern
from lmprog.constraints.text_set import Lower, TextAutomaton, TextSet
from lmprog.constraints.textset import contains, plain_automaton
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


def test_the_kernel_explores_what_the_plain_twin_does() -> None:
    rng = random.Random(1)
    patterns = [*PATTERNS, "^(ab|[b-é]x?)+$", r"^\w{2,40}$", "^.{3,9}b", "(a|b){2}c*$", "^$"]
    words = [*TEXTS[:12], "é", 'a"b', "ab\U0001f600"]
    num_rests = 0
    for number in range(150):
        within, outside = (
            tuple(
                search_pattern(Sourced(one, "#/pattern"), CompileLimits()).within[0]
                for one in rng.sample(patterns, rng.randint(0, 2))
            )
            for _ in range(2)
        )
        excluded = tuple(rng.sample(words, rng.randint(0, 4)))
        texts = TextSet(within, outside, number % 2, None, excluded)
        left_rests, right_rests = list[TextSet](), list[TextSet]()
        left = native_automaton(texts, never_stop, noted(left_rests))
        right = plain_automaton(texts, never_stop, noted(right_rests))
        if left is None:
            pytest.skip("no C++ compiler")
        assert_same(left, right, left_rests, right_rests)
        num_rests += len(left_rests)
    assert num_rests > 50


def test_the_kernel_matches_what_the_plain_twin_does() -> None:
    rng = random.Random(2)
    patterns = [
        *PATTERNS,
        "^(ab|[b-é]x?)+$",
        r"^\w{2,40}$",
        "^.{3,9}b",
        "(a?){5}a{5}",
        r"^[^\u{10000}]*a$",
    ]
    texts = [*TEXTS, "é", 'a"b', "ab\U0001f600", "\ud800a", "a\ud800", "aaaaaaaa", "bébxé" * 3]
    for pattern in patterns:
        (one,) = search_pattern(Sourced(pattern, "#/pattern"), CompileLimits()).within
        for text in rng.sample(texts, 30):
            found = native_matches(one, text)
            if found is None:
                pytest.skip("no C++ compiler")
            assert found == plain_matches(one, text), (pattern, text)


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
        assert plain_matches(found, text) == bool(re.search(pattern, text)), text


def test_a_match_that_needs_too_many_steps_is_refused() -> None:
    (one,) = search_pattern(Sourced("(a?){3000}b", "#/pattern"), CompileLimits()).within
    if native_matches(one, "aab" * 10) is None:
        pytest.skip("no C++ compiler")
    with pytest.raises(GrammarError, match="too many steps"):
        native_matches(one, "a" * 3000)


def noted(rests: list[TextSet]) -> Lower:
    """Takes a rest down; its node is its place."""

    def lower(rest: TextSet) -> Node:
        rests.append(rest)
        return Node(len(rests) - 1)

    return lower


def assert_same(
    left: TextAutomaton, right: TextAutomaton, left_rests: list[TextSet], right_rests: list[TextSet]
) -> None:
    """States that the same text leads to are alike."""
    assert len(left.final) == len(right.final)
    edges = {low for one in (left, right) for chars in one.classes for low, _ in chars}
    known = {0: 0} if left.final else {}
    queue = list(known)
    for here in queue:  # appended to while iterated
        there = known[here]
        assert left.final[here] == right.final[there]
        assert (here in left.rests) == (there in right.rests)
        if here in left.rests:
            rests = left_rests[left.rests[here]], right_rests[right.rests[there]]
            for text in (*TEXTS, "é", 'a"b', "b\U0001f600"):
                assert contains(rests[0], text) == contains(rests[1], text), (rests, text)
        for code in edges:
            after, other = behind(left, here, code), behind(right, there, code)
            assert (after is None) == (other is None)
            if after is not None and other is not None:
                if after not in known:
                    queue.append(after)
                assert known.setdefault(after, other) == other
    assert len(known) == len(left.final)


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
