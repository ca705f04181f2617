"""Terms of Outlines (`outlines.types`) -> specifications, so that its users can bring what they
have.

Recognised by class name and module, so that Outlines is never imported: whoever has a term has it
installed. Terms that combine others become one regular expression. Knows the fields of those terms;
compiles nothing.
"""

from __future__ import annotations

import re
from typing import Any

from lmprog.constraints.constraint import ChoicesSpec, GrammarSpec, JsonSchemaSpec, RegexSpec, Spec
from lmprog.errors import NotSupported


def is_term(value: object) -> bool:
    """Whether this is one of Outlines' terms."""
    return type(value).__module__.split(".")[0] == "outlines"


def spec_of_term(term: Any) -> Spec:
    """Raises NotSupported for a term that has no equal here."""
    kind = type(term).__name__
    if kind == "JsonSchema":
        if getattr(term, "whitespace_pattern", None) is not None:
            raise NotSupported(
                "a whitespace_pattern of one's own is not supported; see the manners of white space"
            )
        return JsonSchemaSpec(term.schema)
    if kind == "Choice":
        return ChoicesSpec(tuple(map(str, term.items)))
    if kind == "CFG":
        return GrammarSpec(term.definition)
    if kind == "String":
        return ChoicesSpec((term.value,))
    return RegexSpec(_pattern(term))


def _pattern(term: Any) -> str:
    kind = type(term).__name__
    if kind == "Regex":
        return f"(?:{term.pattern})"
    if kind == "String":
        return re.escape(str(term.value))
    if kind == "Choice":
        return "(?:" + "|".join(re.escape(str(item)) for item in term.items) + ")"
    if kind == "Alternatives":
        return "(?:" + "|".join(map(_pattern, term.terms)) + ")"
    if kind == "Sequence":
        return "".join(map(_pattern, term.terms))
    return (
        f"(?:{_pattern(getattr(term, 'term', None))}){_quantifier(kind, term)}"
        if hasattr(term, "term")
        else _no(kind)
    )


def _quantifier(kind: str, term: Any) -> str:
    if kind in ("KleeneStar", "KleenePlus", "Optional"):
        return {"KleeneStar": "*", "KleenePlus": "+", "Optional": "?"}[kind]
    if kind == "QuantifyExact":
        return f"{{{term.count}}}"
    if kind == "QuantifyMinimum":
        return f"{{{term.min_count},}}"
    if kind == "QuantifyMaximum":
        return f"{{0,{term.max_count}}}"
    if kind == "QuantifyBetween":
        return f"{{{term.min_count},{term.max_count}}}"
    return _no(kind)


def _no(kind: str) -> str:
    raise NotSupported(f"the Outlines term {kind} has no equal as a part of a regular expression")
