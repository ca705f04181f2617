"""Regular expressions as values: the common form of patterns and of string schemas.

Nodes denote languages of *characters*; their encoding as bytes (plain UTF-8, or inside a JSON
string) is chosen when the expression is lowered into a net. Knows no syntax and no bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lmprog.constraints import charset
from lmprog.constraints.charset import CharSet
from lmprog.errors import GrammarError

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
    """`item` at least `low` and at most `high` times; None means unbounded."""

    item: Expression
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Anchor:
    """The start or end of the text, at `position` of the pattern. Removed by `whole` and
    `somewhere`. `of_line`: also that of each line.
    """

    at_start: bool
    position: int
    of_line: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """Matches no text. With `is_wanted` all of the text from here on matches `item` (`is_ahead`),
    or all of it until here does; else it does not.
    """

    item: Expression
    is_ahead: bool
    is_wanted: bool


Expression: TypeAlias = Chars | Seq | Alt | Repeat | Anchor | Look

EMPTY = Seq(())
NOTHING = Alt(())
ANYTHING = Repeat(Chars(charset.ALL), 0, None)


def ahead(item: Expression, is_wanted: bool = True) -> Look:
    return Look(seq([item, ANYTHING]), True, is_wanted)


def behind(item: Expression, is_wanted: bool = True) -> Look:
    return Look(seq([ANYTHING, item]), False, is_wanted)


def word_edge(word: CharSet, is_edge: bool) -> Expression:
    """Where one of the characters before and behind is of a word and the other is not, or both
    or none are."""
    ways = ((True, False), (False, True)) if is_edge else ((True, True), (False, False))
    return alt(seq([behind(Chars(word), one), ahead(Chars(word), other)]) for one, other in ways)


def has_looks(node: Expression) -> bool:
    if isinstance(node, Look):
        return True
    if isinstance(node, Repeat):
        return has_looks(node.item)
    return isinstance(node, Seq | Alt) and any(map(has_looks, node.items))


def seq(items: Iterable[Expression]) -> Expression:
    flat: list[Expression] = []
    for item in items:
        flat.extend(item.items if isinstance(item, Seq) else (item,))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


_MANY = 32
"""Alternatives from which common beginnings are looked for."""
_DEEPEST = 30
"""Beginnings within beginnings; the expression nests as deeply."""


def alt(items: Iterable[Expression]) -> Expression:
    """One of `items`. Single characters become one class; many alternatives that begin alike share
    their beginning, so that a text is not read by each of them.
    """
    return _alt(items, _DEEPEST)


def _alt(items: Iterable[Expression], depth: int) -> Expression:
    found = list(dict.fromkeys(items))
    if len(found) > _MANY and depth:
        found = _sharing_beginnings(found, depth)
    return found[0] if len(found) == 1 else Alt(tuple(found))


def _sharing_beginnings(items: list[Expression], depth: int) -> list[Expression]:
    single = [item for item in items if isinstance(item, Chars)]
    groups: dict[Expression, list[tuple[Expression, ...]]] = {}
    out: list[Expression] = []
    for item in items:
        if isinstance(item, Seq) and item.items and isinstance(item.items[0], Chars):
            groups.setdefault(item.items[0], []).append(item.items)
        elif not isinstance(item, Chars):
            out.append(item)
    if single:
        out.append(Chars(charset.union(*(one.ranges for one in single))))
    for ways in groups.values():
        shared = _num_shared(ways) if len(ways) > 1 else len(ways[0])
        out.append(seq([*ways[0][:shared], _alt((seq(way[shared:]) for way in ways), depth - 1)]))
    return out


def _num_shared(ways: list[tuple[Expression, ...]]) -> int:
    """How many items all of `ways` have in common at their beginning."""
    count = 0
    for column in zip(*ways, strict=False):
        if any(item != column[0] for item in column):
            break
        count += 1
    return count


def text(value: str) -> Expression:
    return seq(Chars(((ord(c), ord(c)),)) for c in value)


@dataclass(frozen=True, slots=True)
class _Branch:
    """A body without anchors, and whether it is anchored at the start or end of the text."""

    at_start: bool
    body: Expression
    at_end: bool


def whole(expression: Expression) -> Expression:
    """The texts that the expression matches entirely (`re.fullmatch`). No anchors remain."""
    return alt(branch.body for branch in _branches(expression))


def somewhere(expression: Expression) -> Expression:
    """The texts that contain a match of the expression, as ECMA-262 reads it. No anchors remain."""
    return alt(
        seq([*([] if b.at_start else [ANYTHING]), b.body, *([] if b.at_end else [ANYTHING])])
        for b in _branches(expression, in_rounds=True)
    )


def _branches(node: Expression, in_rounds: bool = False) -> list[_Branch]:
    """`in_rounds`: whether a repetition may have anchors, which say the very start and end: in
    Python's dialect a line break may follow `$`.
    """
    anchor = first_anchor(node)
    if anchor is None:
        return [_Branch(False, node, False)]
    if isinstance(node, Anchor):
        return [_Branch(node.at_start, EMPTY, not node.at_start)]
    if isinstance(node, Alt):
        return [branch for item in node.items for branch in _branches(item, in_rounds)]
    if isinstance(node, Repeat):
        if node.high == 1:
            nothing = [_Branch(False, EMPTY, False)] if node.low == 0 else []
            return _branches(node.item, in_rounds) + nothing
        if in_rounds and node.high is None and node.low <= 1:
            return _rounds(_branches(node.item, in_rounds), node.low)
        raise _refused("an anchor inside a repetition is not supported", anchor)
    assert isinstance(node, Seq)
    return _sequence_branches(node.items, in_rounds)


def _rounds(ways: list[_Branch], low: int) -> list[_Branch]:
    """Any number of rounds, at least `low`, 0 or 1. Only the first begins at the start, and only
    the last ends at the end; others than these would match nothing there, and add nothing.
    """
    free = alt(way.body for way in ways if not (way.at_start or way.at_end))
    between = EMPTY if free == NOTHING else Repeat(free, 0, None)
    first = [way for way in ways if way.at_start and not way.at_end]
    last = [way for way in ways if way.at_end and not way.at_start]
    out = [way for way in ways if way.at_start and way.at_end]
    if low == 0 or free != NOTHING:
        out.append(_Branch(False, EMPTY if free == NOTHING else Repeat(free, low, None), False))
    out += [_Branch(True, seq([way.body, between]), False) for way in first]
    out += [_Branch(False, seq([between, way.body]), True) for way in last]
    out += [_Branch(True, seq([a.body, between, b.body]), True) for a in first for b in last]
    return out


def _sequence_branches(items: Sequence[Expression], in_rounds: bool) -> list[_Branch]:
    out, ending = [_Branch(False, EMPTY, False)], None
    for item in items:
        following = _branches(item, in_rounds)
        anchor = next((found for found in _anchors(item) if found.at_start), first_anchor(item))
        for left in out:
            for right in following:
                _check_joint(left, right, anchor, ending)
        out = [_joined(left, right) for left in out for right in following]
        if len(out) > _MAX_SPLITS:
            raise _refused("too many combinations of anchors", anchor or ending)
        ending = next((found for found in _anchors(item) if not found.at_start), ending)
    return out


def _check_joint(
    left: _Branch, right: _Branch, anchor: Anchor | None, ending: Anchor | None
) -> None:
    """Raises GrammarError if text would precede a start anchor (`anchor`, on the right) or follow
    an end anchor (`ending`).
    """
    if not (right.at_start and left.body != EMPTY) and not (left.at_end and right.body != EMPTY):
        return
    raise _refused(
        "an anchor in the middle of a pattern is not supported; it may only stand at the very "
        "start or end: found one",
        anchor if right.at_start and left.body != EMPTY else ending,
    )


def _joined(left: _Branch, right: _Branch) -> _Branch:
    return _Branch(
        left.at_start or right.at_start, seq([left.body, right.body]), left.at_end or right.at_end
    )


def _refused(message: str, anchor: Anchor | None) -> GrammarError:
    assert anchor is not None, "only anchors are refused"
    return GrammarError(
        f"{message} at position {anchor.position} of the pattern", position=anchor.position
    )


def first_anchor(node: Expression) -> Anchor | None:
    return next(_anchors(node), None)


def _anchors(node: Expression) -> Iterator[Anchor]:
    if isinstance(node, Anchor):
        yield node
    elif isinstance(node, Repeat):
        yield from _anchors(node.item)
    elif not isinstance(node, Chars | Look):
        for item in node.items:
            yield from _anchors(item)


def lengths(node: Expression) -> tuple[int, int | None]:
    """The fewest and the most characters of a match; None where there is no most."""
    return _lengths(node, {})


def _lengths(node: Expression, known: dict[int, tuple[int, int | None]]) -> tuple[int, int | None]:
    """`known`: by identity, since parts that are written alike are one."""
    found = known.get(id(node))
    if found is not None:
        return found
    if isinstance(node, Chars):
        return 1, 1
    if isinstance(node, Anchor | Look):
        return 0, 0
    if isinstance(node, Repeat):
        low, high = _lengths(node.item, known)
        most = 0 if high == 0 else None if high is None or node.high is None else high * node.high
        found = low * node.low, most
    else:
        parts = [_lengths(item, known) for item in node.items]
        lows, highs = [low for low, _ in parts], [high for _, high in parts if high is not None]
        is_sequence = isinstance(node, Seq)
        low = sum(lows) if is_sequence else min(lows, default=0)
        most = sum(highs) if is_sequence else max(highs, default=0)
        found = low, most if len(highs) == len(parts) else None
    known[id(node)] = found
    return found
