"""Antimirov's partial derivatives of expressions: whether a text matches, and how long matches are.

Knows expressions and characters; knows no automata. The plain twin of
`kernels/include/lmprog_derivatives.h`.
"""

from __future__ import annotations

from collections.abc import Sequence

from lmprog.constraints import charset
from lmprog.constraints.charset import CharSet
from lmprog.constraints.expression import (
    ANYTHING,
    EMPTY,
    Alt,
    Anchor,
    Chars,
    Expression,
    Repeat,
    Seq,
    seq,
)
from lmprog.constraints.native_texts import native_matches
from lmprog.constraints.text_set import MAX_STEPS, too_many_states


def matches(expression: Expression, value: str) -> bool:
    found = native_matches(expression, value)
    return plain_matches(expression, value) if found is None else found


def plain_matches(expression: Expression, value: str) -> bool:
    terms = frozenset([expression])
    num_steps = 0
    for char in value:
        if not terms or ANYTHING in terms:
            break
        num_steps += len(terms)
        if num_steps > MAX_STEPS:
            raise too_many_states()
        terms = frozenset(after for term in terms for after in derivatives(term, ord(char)))
    return any(nullable(term) for term in terms)


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
    if isinstance(node, Anchor):
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


def nullable(node: Expression) -> bool:
    if isinstance(node, Seq):
        return all(nullable(item) for item in node.items)
    if isinstance(node, Alt):
        return any(nullable(item) for item in node.items)
    return isinstance(node, Repeat) and (node.low == 0 or nullable(node.item))


def derivatives(node: Expression, code: int) -> list[Expression]:
    """Antimirov's partial derivatives by one character."""
    assert not isinstance(node, Anchor)
    if isinstance(node, Chars):
        return [EMPTY] if charset.contains(node.ranges, code) else []
    if isinstance(node, Alt):
        return [after for item in node.items for after in derivatives(item, code)]
    if isinstance(node, Repeat):
        if node.high == 0:
            return []
        low = 0 if nullable(node.item) else max(node.low - 1, 0)
        high = None if node.high is None else node.high - 1
        rest: Expression = EMPTY if high == 0 else Repeat(node.item, low, high)
        return [seq([after, rest]) for after in derivatives(node.item, code)]
    out: list[Expression] = []
    for i, item in enumerate(node.items):
        out += [seq([after, *node.items[i + 1 :]]) for after in derivatives(item, code)]
        if not nullable(item):
            break
    return out


def char_classes(expressions: Sequence[Expression]) -> list[CharSet]:
    """Partitions all characters so that no expression distinguishes two of one class."""
    leaves: dict[CharSet, None] = {}
    pending = list(expressions)
    while pending:
        node = pending.pop()
        if isinstance(node, Chars):
            leaves[node.ranges] = None
        elif isinstance(node, Repeat):
            pending.append(node.item)
        elif isinstance(node, Seq | Alt):
            pending += node.items
    classes = [charset.ALL]
    for leaf in leaves:
        divided: list[CharSet] = []
        for one in classes:
            inside = charset.intersect(one, leaf)
            divided += [
                part for part in (inside, charset.subtract(one, leaf) if inside else one) if part
            ]
        classes = divided
    return classes
