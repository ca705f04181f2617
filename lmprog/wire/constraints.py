"""What a text can be constrained to. Knows no branches and no calls."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from lmprog.wire.message import Message, Whitespace


class Regex(Message, frozen=True):
    pattern: Annotated[str, Meta(max_length=65_536)]


class JsonSchema(Message, frozen=True):
    """`schema` is JSON text, so that the order of its properties is kept. `whitespace_pattern`: a
    regular expression of what stands wherever JSON may have white space, instead of `whitespace`.
    `strict` false: what of the schema cannot be enforced exactly is left out, so that fewer valid
    instances are written and never an invalid one; the answer says what.
    """

    schema: Annotated[str, Meta(max_length=1_048_576)]
    whitespace: Whitespace = "fixed"
    any_order: bool = False
    whitespace_pattern: Annotated[str, Meta(max_length=1024)] | None = None
    strict: bool = True


class Choices(Message, frozen=True):
    texts: Annotated[tuple[str, ...], Meta(min_length=1, max_length=65_536)]


class Grammar(Message, frozen=True):
    """A context-free grammar as text (Lark or GBNF)."""

    text: Annotated[str, Meta(max_length=1_048_576)]


class InOrder(Message, frozen=True):
    """One after the other."""

    parts: Annotated[tuple[Constraint, ...], Meta(max_length=65_536)]


class AnyOf(Message, frozen=True):
    options: Annotated[tuple[Constraint, ...], Meta(min_length=1, max_length=65_536)]


class Repeated(Message, frozen=True):
    """`item` at least `low` and at most `high` times; None means unbounded."""

    item: Constraint
    low: Annotated[int, Meta(ge=0, le=1_000_000)]
    high: Annotated[int, Meta(ge=0, le=1_000_000)] | None


class FreeText(Message, frozen=True):
    """Any text in which none of `avoided` occurs. With `end`: up to and with it, where it, and all
    of `avoided`, occur nowhere before.
    """

    avoided: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=1024)], ...], Meta(max_length=1024)
    ] = ()
    end: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None


Composed: TypeAlias = InOrder | AnyOf | Repeated | FreeText
"""Constraints made of others, and the text between these; a grammar cannot be a part."""
Constraint: TypeAlias = Regex | JsonSchema | Choices | Grammar | Composed
