"""Terms of Outlines, made with its own classes, confine as they say."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
from outlines import types as outlines
from outlines.types.dsl import Choice, String

import lmprog
from lmprog import wire
from lmprog.errors import InvalidParameter, NotSupported
from lmprog.lang.ops.outlines_terms import constraint_of_term, is_term
from lmprog.testing import Scripted

AB = String("a") + outlines.Regex("b|c")


def test_terms_with_a_constraint_of_their_own_become_it() -> None:
    schema = '{"type": "object"}'
    assert constraint_of_term(outlines.JsonSchema(schema)) == wire.JsonSchema(schema)
    assert constraint_of_term(outlines.CFG('start: "a"')) == wire.Grammar('start: "a"')
    assert constraint_of_term(Choice(["a.", "b"])) == wire.Choices(("a.", "b"))
    assert constraint_of_term(String("a.b")) == wire.Choices(("a.b",))


@pytest.mark.parametrize("value", ["a", int, outlines.Regex, re.compile("a"), None, Scripted])
def test_only_terms_are_terms(value: object) -> None:
    assert not is_term(value)


@pytest.mark.parametrize(
    ("term", "good", "bad"),
    [
        (outlines.Regex("a|b"), ["a", "b"], ["ab", ""]),
        (AB, ["ab", "ac"], ["a", "abc"]),
        (outlines.zero_or_more(AB), ["", "abac"], ["a"]),
        (outlines.one_or_more(AB), ["ab"], [""]),
        (outlines.optional(AB), ["", "ab"], ["abac"]),
        (outlines.exactly(2, AB), ["acab"], ["ab"]),
        (outlines.at_least(2, AB), ["abab", "ababab"], ["ab"]),
        (outlines.at_most(1, AB), ["", "ab"], ["abab"]),
        (outlines.between(1, 2, AB), ["ab", "abac"], ["", "ababab"]),
        (String("a+") | Choice(["x.", "y"]) | AB, ["a+", "x.", "y", "ac"], ["aa", "xz", ""]),
        (Choice(["a", 1.5]), ["a", "1.5"], ["1x5", "b"]),
        (outlines.integer, ["-7", "0"], ["7.5", "07"]),
        (outlines.date, ["2024-02-28"], ["2024-2-28"]),
        (outlines.sentence, ["All is well."], ["all is well"]),
        ("id: " + outlines.JsonSchema({"type": "boolean"}), ["id: true"], ["id: 1", "true"]),
    ],
    ids=lambda value: type(value).__name__ if is_term(value) else "",
)
def test_a_term_takes_what_outlines_says_it_takes(
    term: Any, good: list[str], bad: list[str]
) -> None:
    made = lmprog.constraint(term)
    for text in [*good, *bad]:
        assert made.accepts(text) == term.matches(text) == (text in good), text


def test_a_schema_and_a_grammar_of_outlines_confine() -> None:
    schema = outlines.JsonSchema({"type": "array", "items": {"type": "integer"}})
    assert lmprog.constraint(schema).accepts("[1, 2]")
    compact = lmprog.constraint(type=schema, whitespace="compact")
    assert compact.accepts("[1,2]")
    assert not compact.accepts("[1, 2]")
    grammar = lmprog.constraint(outlines.CFG('start: "(" start ")" | "x"'))
    assert grammar.accepts("((x))")
    assert not grammar.accepts("((x)")


def test_a_generation_takes_a_term_for_its_type_and_gives_text() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> list[str]:
        s += "x" + lmprog.gen("a", dtype=AB)
        schema: Any = outlines.JsonSchema({"type": "integer"})
        return [s["a"], s.gen(schema).value]

    with Scripted(["ab", "7"]) as scripted:
        assert program.using(backend=scripted).run().value == ["ab", "7"]
    assert [
        asked.op.constraint for asked in scripted.asked if isinstance(asked.op, wire.Generate)
    ] == [constraint_of_term(AB), wire.JsonSchema('{"type": "integer"}')]


def test_a_term_stands_alone() -> None:
    with pytest.raises(InvalidParameter, match="cannot be combined"):
        lmprog.gen("a", dtype=AB, regex="a")
    with pytest.raises(InvalidParameter, match="the first argument and regex"):
        lmprog.constraint(AB, regex="a")
    with pytest.raises(InvalidParameter, match="no items"):
        lmprog.constraint(Choice([]))


@pytest.mark.parametrize(
    "term",
    [
        "a" + outlines.CFG('start: "a"'),
    ],
    ids=["a grammar as a part"],
)
def test_a_term_that_cannot_be_a_constraint_is_refused(term: Any) -> None:
    with pytest.raises(NotSupported):
        lmprog.constraint(term)
    with pytest.raises(NotSupported):
        lmprog.gen("a", dtype=term)


def test_a_pattern_of_white_space_is_taken_over() -> None:
    made = lmprog.constraint(outlines.JsonSchema('{"const": [1, 2]}', whitespace_pattern=" ?"))
    assert made.accepts("[1 ,2 ]")
    assert made.accepts("[1,2]")
    assert not made.accepts("[1,  2]")


def test_outlines_is_not_imported_without_a_term() -> None:
    code = (
        "import sys, lmprog; lmprog.constraint(type=int); lmprog.gen('a', dtype=int); "
        "assert 'outlines' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
