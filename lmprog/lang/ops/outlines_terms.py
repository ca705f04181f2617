"""Converts Outlines terms (`outlines.types`) to constraints.

Outlines is imported only when a term is passed, so it is then installed. Regular terms are
converted by Outlines' own `to_regex`; this module reads the fields of the others.
"""

from __future__ import annotations

import importlib
from typing import Any

from lmprog import wire
from lmprog.errors import InvalidParameter, NotSupported

_MODULE = "outlines.types.dsl"


def is_term(value: object) -> bool:
    """Whether this is an Outlines term; does not import Outlines."""
    return any(
        base.__name__ == "Term" and base.__module__ == _MODULE for base in type(value).__mro__
    )


def constraint_of_term(term: Any) -> wire.Constraint:
    """Raises NotSupported for a term that has no equivalent constraint."""
    dsl = importlib.import_module("outlines.types.dsl")
    if isinstance(term, dsl.JsonSchema):
        return wire.JsonSchema(term.schema, whitespace_pattern=term.whitespace_pattern)
    if isinstance(term, dsl.CFG):
        return wire.Grammar(term.definition)
    if isinstance(term, dsl.String):
        return wire.Choices((term.value,))
    if isinstance(term, dsl.Choice):
        if not term.items:
            raise InvalidParameter("the Outlines term Choice has no items", name="type")
        if all(type(item) is str for item in term.items):
            return wire.Choices(tuple(term.items))
    try:
        return wire.Regex(dsl.to_regex(term))
    except (TypeError, ValueError, NotImplementedError) as error:
        raise NotSupported(
            f"Outlines cannot write the term {type(term).__name__} as a regular expression: {error}"
        ) from error
