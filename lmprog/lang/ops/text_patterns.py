"""Patterns made of pieces, whose named parts are captured: one regular expression, one call.

Pieces are joined by `+`, with each other and with plain text. What a piece was named is a group of
Python's regular expressions, and what it captured is found in the finished text by Python's own
rules. Knows regular expressions; knows no automata and no branches.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lmprog.errors import ValidationFailed, not_allowed

MOST_TIMES = 1_000


@dataclass(frozen=True, slots=True, eq=False)
class TextPattern:
    """A pattern for `gen`; made by the functions of `lmprog.grammar`, joined by `+`."""

    source: str
    """In Python's syntax, the names as groups."""
    names: tuple[str, ...]
    """What it captures, in order."""
    example: str | None
    """A text of it, for rehearsals; None where a piece gave none."""

    def __post_init__(self) -> None:
        for index, name in enumerate(self.names):
            if name in self.names[:index]:
                raise not_allowed("name", name, "a name that the pattern does not have yet")

    def __add__(self, other: TextPattern | str) -> TextPattern:
        more = text(other) if isinstance(other, str) else other
        if not isinstance(more, TextPattern):
            return NotImplemented
        examples = (self.example, more.example)
        example = None if None in examples else "".join(filter(None, examples))
        return TextPattern(self.source + more.source, self.names + more.names, example)

    def __radd__(self, other: str) -> TextPattern:
        return text(other) + self if isinstance(other, str) else NotImplemented

    def captured(self, found: str) -> dict[str, str | None]:
        """What each name captured in a whole text; None for a part that was left out. Raises
        `ValidationFailed` for a text that does not match.
        """
        match = re.compile(self.source).fullmatch(found)
        if match is None:
            raise ValidationFailed(f"the text {found!r} does not match the pattern", text=found)
        return match.groupdict()


def text(literal: str) -> TextPattern:
    """This very text. A plain string joined by `+` is the same."""
    return TextPattern(re.escape(literal), (), literal)


def regex(expression: str, *, name: str | None = None, example: str | None = None) -> TextPattern:
    """What matches a regular expression. `example` is a text of it, for rehearsals."""
    try:
        compiled = re.compile(expression)
    except re.error as error:
        raise not_allowed("regex", expression, f"a regular expression ({error})") from None
    if compiled.groupindex:
        first = next(iter(compiled.groupindex))
        raise not_allowed(
            "regex", expression, f"one without named groups (name={first!r} captures)"
        )
    if example is not None and compiled.fullmatch(example) is None:
        raise not_allowed("example", example, f"a text that matches {expression}")
    return _named(TextPattern(f"(?:{expression})", (), example), name)


def select(*options: str | TextPattern, name: str | None = None) -> TextPattern:
    """One of several texts or patterns."""
    if not options:
        raise not_allowed("options", "()", "at least one text or pattern")
    patterns = [text(one) if isinstance(one, str) else one for one in options]
    names = tuple(name for one in patterns for name in one.names)
    source = "|".join(one.source for one in patterns)
    return _named(TextPattern(f"(?:{source})", names, patterns[0].example), name)


def optional(piece: str | TextPattern, *, name: str | None = None) -> TextPattern:
    """The piece, or nothing."""
    inner = text(piece) if isinstance(piece, str) else piece
    return _named(TextPattern(f"(?:{inner.source})?", inner.names, inner.example or ""), name)


def one_or_more(piece: str | TextPattern, *, name: str | None = None) -> TextPattern:
    """The piece, as often as the model wants. Names inside are refused: they would capture the last
    time only.
    """
    return repeat(piece, at_least=1, name=name)


def zero_or_more(piece: str | TextPattern, *, name: str | None = None) -> TextPattern:
    """The piece as often as the model wants, or not at all; see `one_or_more`."""
    return repeat(piece, at_least=0, name=name)


def repeat(
    piece: str | TextPattern,
    *,
    at_least: int = 0,
    at_most: int | None = None,
    name: str | None = None,
) -> TextPattern:
    """The piece several times; see `one_or_more`."""
    inner = text(piece) if isinstance(piece, str) else piece
    if inner.names:
        raise not_allowed("piece", inner.names[0], "a piece without names; name the repetition")
    if not 0 <= at_least <= MOST_TIMES:
        raise not_allowed("at_least", str(at_least), f"0 <= x <= {MOST_TIMES}")
    if at_most is not None and not max(at_least, 1) <= at_most <= MOST_TIMES:
        raise not_allowed("at_most", str(at_most), f"{max(at_least, 1)} <= x <= {MOST_TIMES}")
    times = f"{{{at_least},{'' if at_most is None else at_most}}}"
    example = "" if not at_least else None if inner.example is None else inner.example * at_least
    return _named(TextPattern(f"(?:{inner.source}){times}", (), example), name)


def capture(piece: str | TextPattern, name: str) -> TextPattern:
    """The piece, whose text is captured under `name`."""
    return _named(text(piece) if isinstance(piece, str) else piece, name)


def _named(pattern: TextPattern, name: str | None) -> TextPattern:
    if name is None:
        return pattern
    if not name.isidentifier():
        raise not_allowed("name", name, "an identifier of Python")
    return TextPattern(f"(?P<{name}>{pattern.source})", (name, *pattern.names), pattern.example)
