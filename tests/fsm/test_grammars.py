"""Context-free grammars through llguidance: the same interface, guides that are integers, errors of our own."""

from __future__ import annotations

import sys

import pytest

from lmprog.errors import GrammarError, NotSupported
from lmprog.runtime.fsm import llguidance_engine
from lmprog.runtime.fsm.compiler import compile_constraint
from lmprog.runtime.fsm.constraint import Grammar
from lmprog.runtime.fsm.vocabulary import Vocabulary
from tests.fsm.conftest import EOS

pytest.importorskip("llguidance")

NESTED = 'start: "a" start "b" | "c"'
GBNF = 'root ::= "a" root "b" | "c"'


@pytest.mark.parametrize("text", [NESTED, GBNF])
def test_a_grammar_takes_its_texts(text: str, small: Vocabulary) -> None:
    constraint = compile_constraint(Grammar(text), small)
    assert constraint.engine == "llguidance"
    for good in (b"c", b"acb", b"aaaacbbbb"):
        state = constraint.advance_bytes(constraint.start, good)
        assert state is not None
        assert constraint.is_final(state)
        assert constraint.is_done(state)
    for bad in (b"b", b"acbb", b"ab"):
        assert constraint.advance_bytes(constraint.start, bad) is None
    half = constraint.advance_bytes(constraint.start, b"aac")
    assert half is not None
    assert not constraint.is_final(half)
    assert constraint.forced(half) == b"bb"


def test_masks_agree_with_advances_and_forks_are_independent(small: Vocabulary) -> None:
    constraint = compile_constraint(Grammar(NESTED), small)
    state = constraint.advance_bytes(constraint.start, b"a")
    assert state is not None
    row = constraint.mask(state)
    for token in range(len(small)):
        if row.allows(token):
            assert token == EOS or constraint.advance(state, token)
        else:
            with pytest.raises(ValueError, match="not allowed"):
                constraint.advance(state, token)
    left, right = constraint.advance(state, 1 + ord("a")), constraint.advance(state, 1 + ord("c"))
    assert constraint.mask(left).allows(1 + ord("c"))
    assert not constraint.mask(right).allows(1 + ord("c"))


def test_end_of_sequence_is_allowed_exactly_in_accepting_states(small: Vocabulary) -> None:
    constraint = compile_constraint(Grammar('start: "a" ("b" "c")*'), small)
    state = constraint.start
    for letter, final in [(b"a", True), (b"b", False), (b"c", True)]:
        after = constraint.advance_bytes(state, letter)
        assert after is not None
        state = after
        assert constraint.mask(state).allows(EOS) == constraint.is_final(state) == final


def test_a_forgotten_matcher_is_made_again(small: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llguidance_engine, "_MAX_MATCHERS", 2)
    constraint = compile_constraint(Grammar(NESTED), small)
    states = [constraint.start]
    for _ in range(12):
        states.append(constraint.advance(states[-1], 1 + ord("a")))
    middle = constraint.advance_bytes(states[3], b"c")
    assert middle is not None
    assert constraint.forced(middle) == b"bbb"


@pytest.mark.parametrize("text", ["start: x", "root ::= (", "", "start: ("])
def test_a_bad_grammar_is_refused(text: str, small: Vocabulary) -> None:
    with pytest.raises(GrammarError):
        compile_constraint(Grammar(text), small)


def test_without_llguidance_the_refusal_says_what_to_install(
    small: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(NotSupported, match="install"):
        compile_constraint(Grammar(NESTED), small)
