"""Terms of Outlines are taken as they are. The stand-ins here have the names and fields of its own
classes.
"""

from __future__ import annotations

from typing import Any

import pytest

from lmprog.constraints.compiler import compile_constraint
from lmprog.constraints.constraint import ChoicesSpec, GrammarSpec, JsonSchemaSpec, RegexSpec
from lmprog.constraints.inspect import accepts, byte_vocabulary
from lmprog.constraints.outlines_terms import is_term, spec_of_term
from lmprog.errors import NotSupported


def term(kind: str, **fields: Any) -> Any:
    return type(kind, (), {"__module__": "outlines.types.dsl", **fields})()


def test_simple_terms_become_their_specifications() -> None:
    assert spec_of_term(term("Choice", items=["a", 1])) == ChoicesSpec(("a", "1"))
    assert spec_of_term(term("String", value="a.b")) == ChoicesSpec(("a.b",))
    assert spec_of_term(term("CFG", definition='start: "a"')) == GrammarSpec('start: "a"')
    assert spec_of_term(term("JsonSchema", schema="{}", whitespace_pattern=None)) == JsonSchemaSpec(
        "{}"
    )
    assert spec_of_term(term("Regex", pattern="a|b")) == RegexSpec("(?:a|b)")
    assert is_term(term("Regex", pattern="a"))
    assert not is_term("a")


@pytest.mark.parametrize(
    ("kind", "fields", "good", "bad"),
    [
        ("KleeneStar", {}, ["", "abab"], ["a"]),
        ("KleenePlus", {}, ["ab"], [""]),
        ("Optional", {}, ["", "ab"], ["abab"]),
        ("QuantifyExact", {"count": 2}, ["abab"], ["ab"]),
        ("QuantifyMinimum", {"min_count": 2}, ["abab", "ababab"], ["ab"]),
        ("QuantifyMaximum", {"max_count": 1}, ["", "ab"], ["abab"]),
        ("QuantifyBetween", {"min_count": 1, "max_count": 2}, ["ab", "abab"], ["", "ababab"]),
    ],
)
def test_quantified_terms_repeat_the_whole_term(
    kind: str, fields: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    inner = term("Sequence", terms=[term("String", value="a"), term("Regex", pattern="b")])
    constraint = compile_constraint(
        spec_of_term(term(kind, term=inner, **fields)), byte_vocabulary()
    )
    assert all(accepts(constraint, text) for text in good)
    assert not any(accepts(constraint, text) for text in bad)


def test_alternatives_and_escapes_keep_their_meaning() -> None:
    parts = [
        term("String", value="a+"),
        term("Choice", items=["x.", "y"]),
        term("Regex", pattern="c|d"),
    ]
    constraint = compile_constraint(
        spec_of_term(term("Alternatives", terms=parts)), byte_vocabulary()
    )
    assert all(accepts(constraint, text) for text in ("a+", "x.", "y", "c", "d"))
    assert not any(accepts(constraint, text) for text in ("aa", "xz", ""))


@pytest.mark.parametrize(
    "bad",
    [
        term("Sequence", terms=[term("JsonSchema", schema="{}")]),
        term("JsonSchema", schema="{}", whitespace_pattern=" *"),
        term("Mystery"),
        term("Mystery", term=term("String", value="a")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_term_without_an_equal_is_refused(bad: Any) -> None:
    with pytest.raises(NotSupported):
        spec_of_term(bad)
