"""A constraint works for ever in constant memory: held states stay, all others may be forgotten."""

from __future__ import annotations

import gc
import random
from collections.abc import MutableSet
from weakref import WeakSet

import numpy as np
import pytest

from benchmarks.constrained import endure, sentences
from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.constraint import CompileLimits, Constraint, State
from lmprog.constraints.regular import RegularConstraint
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import GrammarError

SENTENCES = r"([A-Z].{5,150}\. ?){2,6}"
TIGHT = CompileLimits(max_states=3000)


def generate(
    constraint: Constraint,
    vocabulary: Vocabulary,
    text: bytes,
    met: MutableSet[State] | None = None,
) -> State:
    """Walks `text` as a generation does: a mask before every token."""
    state = constraint.start
    for token in vocabulary.greedy(text):
        assert constraint.mask(state, 500).allows(token)
        state = constraint.advance(state, token)
        if met is not None:
            met.add(state)
    return state


@pytest.mark.parametrize("case", ["sentences", "question"])
@pytest.mark.parametrize("which", ["small", "real"])
def test_generations_never_use_a_constraint_up_and_its_memory_stays_bounded(
    case: str, which: str, request: pytest.FixtureRequest
) -> None:
    found = endure(case, request.getfixturevalue(which), 40, TIGHT)
    assert found.num_failed == 0
    # What one call adds comes on top of the limit, never more.
    assert found.most_states <= 2 * TIGHT.max_states
    assert found.num_collections > 3


def test_states_that_somebody_holds_survive_and_allow_the_same(
    small: Vocabulary, rng: random.Random
) -> None:
    tight = compile_constraint(wire.Regex(SENTENCES), small, TIGHT)
    roomy = compile_constraint(wire.Regex(SENTENCES), small)
    assert isinstance(tight, RegularConstraint)
    held: list[tuple[State, State]] = []
    for _ in range(30):
        text = sentences(rng).encode()
        for end in (3, len(text) // 2, len(text)):
            prefix = text[:end].decode(errors="ignore").encode()
            pair = generate(tight, small, prefix), generate(roomy, small, prefix)
            held.append(pair)
        for one, other in held:
            left, right = tight.mask(one), roomy.mask(other)
            assert np.array_equal(left.bits, right.bits)
            assert tight.is_final(one) == roomy.is_final(other)
            assert tight.distance(one) == roomy.distance(other)
    assert tight.num_collections > 3


def test_masks_used_last_are_still_there_after_states_were_forgotten(small: Vocabulary) -> None:
    constraint = compile_constraint(wire.Regex(SENTENCES), small, TIGHT)
    assert isinstance(constraint, RegularConstraint)
    row = constraint.mask(constraint.start)
    rng = random.Random(1)
    while constraint.num_collections == 0:
        generate(constraint, small, sentences(rng).encode())
        constraint.mask(constraint.start)
    assert constraint.mask(constraint.start) is row


def test_what_nobody_holds_is_freed_with_the_constraint(small: Vocabulary) -> None:
    constraint = compile_constraint(wire.Regex(SENTENCES), small)
    states = WeakSet[State]()
    generate(constraint, small, sentences(random.Random(2)).encode(), states)
    assert len(states) > 20
    gc.disable()  # references alone must do
    try:
        del constraint
        assert not states
    finally:
        gc.enable()


def test_a_long_pattern_with_a_length_bound_is_taken_token_by_token(real: Vocabulary) -> None:
    schema = r'{"type":"string","maxLength":300,"pattern":"^(?:\\S+\\s+){0,29}\\S+$"}'
    constraint = compile_constraint(wire.JsonSchema(schema), real)
    text = '"' + "The quick brown fox jumps over the lazy dog again " * 2 + 'end"'
    assert constraint.is_final(generate(constraint, real, text.encode()))


def test_one_step_that_needs_too_much_fails_by_itself_and_says_so(small: Vocabulary) -> None:
    constraint = compile_constraint(wire.Regex(".*a.{24}"), small, CompileLimits(max_states=50))
    long = bytes(random.Random(3).choice(b"ab") for _ in range(2000))
    with pytest.raises(GrammarError, match="one token of this generation needs too much"):
        constraint.advance_bytes(constraint.start, long)
    assert constraint.advance_bytes(constraint.start, b"ab") is not None  # others go on


def test_states_of_a_grammar_left_to_llguidance_are_freed_too(small: Vocabulary) -> None:
    pytest.importorskip("llguidance")
    text = 'start: a | "x"\na: b "y"\nb: a | "z" | "w"'  # begins with itself by way of another rule
    limits = CompileLimits(max_mask_bytes=0)  # then only the last few masks are kept
    constraint = compile_constraint(wire.Grammar(text), small, limits)
    assert constraint.engine == "llguidance"
    states = WeakSet[State]()
    last = generate(constraint, small, b"z" + b"y" * 400, states)
    assert len(states) > 400, "the way to a held state is held"
    del last
    generate(constraint, small, b"w" + b"y" * 300)  # its masks and matchers replace the others
    assert not states
