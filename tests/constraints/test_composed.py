"""Constraints made of others accept what their parts accept, joined."""

from __future__ import annotations

import re

import pytest

from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import GrammarError, UnsatisfiableConstraint

VOCABULARY = Vocabulary.of([*(bytes([byte]) for byte in range(256)), None], [256])
NUMBER = wire.JsonSchema('{"type": "integer", "minimum": 0, "maximum": 20}')
COLOURS = wire.Choices(("red", "green"))


def accepts(spec: wire.Constraint, text: str) -> bool:
    made = compile_constraint(spec, VOCABULARY)
    state = made.advance_bytes(made.start, text.encode())
    return state is not None and made.is_final(state)


@pytest.mark.parametrize(
    ("spec", "pattern"),
    [
        (wire.InOrder((COLOURS, wire.Choices((": ",)), NUMBER)), r"(red|green): (1?\d|20)"),
        (wire.AnyOf((COLOURS, NUMBER)), r"(red|green)|(1?\d|20)"),
        (wire.Repeated(COLOURS, 0, 2), r"(red|green){0,2}"),
        (wire.Repeated(wire.Regex("a|bc"), 2, None), r"(a|bc){2,}"),
        (wire.InOrder(()), r""),
        (wire.AnyOf((wire.InOrder(()), COLOURS)), r"|red|green"),
        (
            wire.Repeated(wire.InOrder((wire.Regex(r"\w"), wire.AnyOf((COLOURS, NUMBER)))), 1, 3),
            r"(\w((red|green)|(1?\d|20))){1,3}",
        ),
    ],
)
def test_a_composed_constraint_accepts_what_the_joined_pattern_does(
    spec: wire.Constraint, pattern: str
) -> None:
    texts = ["", "red", "green", "redgreen", "redredred", "7", "20", "21", "red: 7", "green: 20"]
    texts += ["red: ", "aa", "abc", "a", "bcbca", "xredy7", "xred", "x7y7z7", "x7y7z7w7"]
    for text in texts:
        assert accepts(spec, text) == (re.fullmatch(pattern, text) is not None), text


def test_a_grammar_can_be_a_part_where_our_own_automaton_takes_it() -> None:
    nested, boxes = (wire.Grammar(f'root ::= "a" | "{a}" root "{b}"') for a, b in ("()", "[]"))
    spec = wire.InOrder((COLOURS, wire.AnyOf((nested, boxes))))
    for text, is_taken in (("red((a))", True), ("red[[a]]", True), ("red([a])", False)):
        assert accepts(spec, text) is is_taken
    greedy = wire.Grammar("start: NAME+\nNAME: /[a-z]+/")
    with pytest.raises(GrammarError, match="cannot be a part of another constraint: where NAME"):
        compile_constraint(wire.InOrder((COLOURS, greedy)), VOCABULARY)


def test_a_text_that_was_begun_goes_on_inside_of_its_constraint() -> None:
    spec = wire.JsonSchema('{"type": "object", "properties": {"a": {"type": "integer"}}}')
    for begun, rest in (('{"a": 1', "2}"), ("", '{"a": 12}'), ("Well: ", '{"a": 12}')):
        made = compile_constraint(wire.Continued(spec, begun), VOCABULARY)
        state = made.advance_bytes(made.start, rest.encode())
        assert state is not None
        assert made.is_final(state)
        assert made.advance_bytes(made.start, b"x") is None


def test_what_is_preferred_is_taken_where_it_can_be_enforced() -> None:
    never = wire.JsonSchema('{"type": "string", "pattern": "(.)\\\\1"}')
    assert accepts(wire.Preferred(COLOURS, wire.Regex("a")), "red")
    made = compile_constraint(wire.Preferred(never, wire.Regex("a")), VOCABULARY)
    assert made.advance_bytes(made.start, b"a") is not None
    assert "back-reference" in made.left_out[0]
    with pytest.raises(GrammarError):
        compile_constraint(wire.InOrder((wire.Preferred(never, COLOURS),)), VOCABULARY)


def test_a_part_that_nothing_fits_leaves_nothing_in_a_sequence() -> None:
    never = wire.JsonSchema('{"type": "integer", "minimum": 2, "maximum": 1}')
    assert accepts(wire.AnyOf((never, COLOURS)), "red")
    with pytest.raises(UnsatisfiableConstraint):
        compile_constraint(wire.InOrder((COLOURS, never)), VOCABULARY)


def test_parts_nested_too_deeply_are_refused() -> None:
    spec: wire.Constraint = COLOURS
    for _ in range(2_000):
        spec = wire.InOrder((spec,))
    with pytest.raises(GrammarError, match="nests too deeply"):
        compile_constraint(spec, VOCABULARY)
