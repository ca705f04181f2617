"""Regular expressions as values: what every pattern and every string of a schema is turned into.

Nodes stand for languages of *characters*; how a character is written as bytes (plain UTF-8, or inside a JSON
string) is decided when the expression is lowered into a net. Knows no syntax and no bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lmprog.errors import GrammarError
from lmprog.runtime.fsm import charset
from lmprog.runtime.fsm.charset import CharSet

_MAX_SPLITS = 256


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    ranges: CharSet


@dataclass(frozen=True, slots=True)
class Seq:
    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`item` at least `low` and at most `high` times; None is without end."""

    item: Expression
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Anchor:
    """The start or the end of the text, at `position` of the pattern. Resolved away by `whole` and `somewhere`."""

    at_start: bool
    position: int


Expression: TypeAlias = Chars | Seq | Alt | Repeat | Anchor

EMPTY = Seq(())
NOTHING = Alt(())
ANYTHING = Repeat(Chars(charset.ALL), 0, None)


def seq(items: Iterable[Expression]) -> Expression:
    flat: list[Expression] = []
    for item in items:
        flat.extend(item.items if isinstance(item, Seq) else (item,))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def alt(items: Iterable[Expression]) -> Expression:
    found = list(dict.fromkeys(items))
    return found[0] if len(found) == 1 else Alt(tuple(found))


def text(value: str) -> Expression:
    return seq(Chars(((ord(c), ord(c)),)) for c in value)


@dataclass(frozen=True, slots=True)
class _Branch:
    """A body without anchors, and whether it has to start or end where the text does."""

    at_start: bool
    body: Expression
    at_end: bool


def whole(expression: Expression) -> Expression:
    """The texts that the expression matches from end to end (`re.fullmatch`). No anchors remain."""
    return alt(branch.body for branch in _branches(expression))


def somewhere(expression: Expression) -> Expression:
    """The texts in which the expression matches somewhere (`re.search`). No anchors remain."""
    return alt(
        seq([*([] if b.at_start else [ANYTHING]), b.body, *([] if b.at_end else [ANYTHING])])
        for b in _branches(expression)
    )


def _branches(node: Expression) -> list[_Branch]:
    anchor = first_anchor(node)
    if anchor is None:
        return [_Branch(False, node, False)]
    if isinstance(node, Anchor):
        return [_Branch(node.at_start, EMPTY, not node.at_start)]
    if isinstance(node, Alt):
        return [branch for item in node.items for branch in _branches(item)]
    if isinstance(node, Repeat):
        if node.high == 1:
            return _branches(node.item) + ([_Branch(False, EMPTY, False)] if node.low == 0 else [])
        raise GrammarError("an anchor inside a repetition is not supported", position=anchor.position)
    assert isinstance(node, Seq)
    return _sequence_branches(node.items, anchor)


def _sequence_branches(items: Sequence[Expression], anchor: Anchor) -> list[_Branch]:
    out = [_Branch(False, EMPTY, False)]
    for item in items:
        following = _branches(item)
        out = [_joined(left, right, anchor) for left in out for right in following]
        if len(out) > _MAX_SPLITS:
            raise GrammarError("too many combinations of anchors", position=anchor.position)
    return out


def _joined(left: _Branch, right: _Branch, anchor: Anchor) -> _Branch:
    if (right.at_start and left.body != EMPTY) or (left.at_end and right.body != EMPTY):
        raise GrammarError(
            "an anchor in the middle of a pattern is not supported; it may only stand at the very start or end",
            position=anchor.position,
        )
    return _Branch(left.at_start or right.at_start, seq([left.body, right.body]), left.at_end or right.at_end)


def first_anchor(node: Expression) -> Anchor | None:
    if isinstance(node, Anchor):
        return node
    if isinstance(node, Chars):
        return None
    if isinstance(node, Repeat):
        return first_anchor(node.item)
    return next((found for item in node.items if (found := first_anchor(item))), None)
