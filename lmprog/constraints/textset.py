"""Sets of texts as deterministic automata over characters: conjunction, exclusion and length bounds
of expressions.

Used where a schema says "and" or "not" of strings. Characters are first divided into classes that
no expression tells apart; then states, one set of partial derivatives per expression and a length,
are explored from the start, within a limit, and trimmed. Knows expressions; knows no bytes and no
JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lmprog.constraints import charset
from lmprog.constraints.charset import CharSet
from lmprog.constraints.expression import EMPTY, Alt, Anchor, Chars, Expression, Repeat, Seq, seq
from lmprog.constraints.lower import Lowering
from lmprog.constraints.net import EMPTY as EMPTY_NODE
from lmprog.constraints.net import FAIL, NetBuilder, Node
from lmprog.errors import GrammarError

_MAX_STATES = 20_000

_Terms = frozenset[Expression]
_State = tuple[int, tuple[_Terms, ...]]


@dataclass(frozen=True, slots=True)
class TextSet:
    """The texts that all of `within` and none of `outside` match, with `low` to `high` characters
    (None: no end).
    """

    within: tuple[Expression, ...] = ()
    outside: tuple[Expression, ...] = ()
    low: int = 0
    high: int | None = None

    def and_also(self, other: TextSet) -> TextSet:
        highs = [high for high in (self.high, other.high) if high is not None]
        return TextSet(
            self.within + other.within,
            self.outside + other.outside,
            max(self.low, other.low),
            min(highs) if highs else None,
        )


@dataclass(slots=True)
class _Automaton:
    """State 0 is the start. Edges lead to states by class of characters."""

    edges: list[dict[int, CharSet]] = field(default_factory=list)
    final: list[bool] = field(default_factory=list)


def lower_text_set(texts: TextSet, net: NetBuilder, lowering: Lowering) -> Node:
    """The node of a set of texts: directly where one expression or a length says it all, else by
    its automaton.
    """
    if texts.high is not None and texts.high < texts.low:
        return FAIL
    if not texts.outside:
        if not texts.within:
            return lowering.lower(Repeat(Chars(charset.ALL), texts.low, texts.high))
        if len(texts.within) == 1:
            direct = _bounded(texts.within[0], texts.low, texts.high)
            if direct is not None:
                return lowering.lower(direct)
    return _lower_automaton(_explore(texts), net, lowering)


def contains(texts: TextSet, value: str) -> bool:
    """Whether the set holds one text."""
    if len(value) < texts.low or (texts.high is not None and len(value) > texts.high):
        return False
    return all(matches(one, value) for one in texts.within) and not any(
        matches(one, value) for one in texts.outside
    )


def matches(expression: Expression, value: str) -> bool:
    terms: _Terms = frozenset([expression])
    for char in value:
        terms = frozenset(after for term in terms for after in derivatives(term, ord(char)))
    return any(_nullable(term) for term in terms)


def _bounded(expression: Expression, low: int, high: int | None) -> Expression | None:
    """The expression with a length bound worked into it, where that is simple."""
    if low == 0 and high is None:
        return expression
    if isinstance(expression, Repeat) and isinstance(expression.item, Chars):
        highs = [bound for bound in (expression.high, high) if bound is not None]
        first, last = max(expression.low, low), min(highs) if highs else None
        return Repeat(expression.item, first, last) if last is None or first <= last else Alt(())
    return None


def _nullable(node: Expression) -> bool:
    if isinstance(node, Seq):
        return all(_nullable(item) for item in node.items)
    if isinstance(node, Alt):
        return any(_nullable(item) for item in node.items)
    return isinstance(node, Repeat) and (node.low == 0 or _nullable(node.item))


def derivatives(node: Expression, code: int) -> list[Expression]:
    """What may follow one character (Antimirov's partial derivatives)."""
    assert not isinstance(node, Anchor)
    if isinstance(node, Chars):
        return [EMPTY] if charset.contains(node.ranges, code) else []
    if isinstance(node, Alt):
        return [after for item in node.items for after in derivatives(item, code)]
    if isinstance(node, Repeat):
        if node.high == 0:
            return []
        low = 0 if _nullable(node.item) else max(node.low - 1, 0)
        high = None if node.high is None else node.high - 1
        rest: Expression = EMPTY if high == 0 else Repeat(node.item, low, high)
        return [seq([after, rest]) for after in derivatives(node.item, code)]
    out: list[Expression] = []
    for i, item in enumerate(node.items):
        out += [seq([after, *node.items[i + 1 :]]) for after in derivatives(item, code)]
        if not _nullable(item):
            break
    return out


def char_classes(expressions: Sequence[Expression]) -> list[CharSet]:
    """All characters, divided so that no expression tells two of one class apart."""
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


def _explore(texts: TextSet) -> _Automaton:
    """Breadth first from the start, then without what cannot reach acceptance."""
    every = texts.within + texts.outside
    classes = char_classes(every)
    longest = texts.high if texts.high is not None else texts.low
    # What must match is followed one by one; of what must not, any match counts, so it is one set.
    start: _State = (0, (*(frozenset([one]) for one in texts.within), frozenset(texts.outside)))
    known: dict[_State, int] = {start: 0}
    queue = [start]
    out = _Automaton()
    stepped: dict[tuple[_Terms, int], _Terms] = {}
    for state in queue:
        length, parts = state
        out.final.append(texts.low <= length and _accepts(parts, len(texts.within)))
        edges: dict[int, CharSet] = {}
        for chars in classes if texts.high is None or length < texts.high else ():
            code = chars[0][0]
            after = tuple(_step(part, code, stepped) for part in parts)
            if not all(after[: len(texts.within)]):
                continue
            following: _State = (min(length + 1, longest), after)
            number = known.get(following)
            if number is None:
                number = known[following] = len(queue)
                queue.append(following)
                if number > _MAX_STATES:
                    raise GrammarError(
                        f"the conjunction of patterns needs more than {_MAX_STATES} states",
                        position=None,
                    )
            edges[number] = charset.union(edges.get(number, ()), chars)
        out.edges.append(edges)
    return out


def _accepts(parts: Sequence[_Terms], num_within: int) -> bool:
    accepted = [any(_nullable(term) for term in part) for part in parts]
    return all(accepted[:num_within]) and not accepted[num_within]


def _step(terms: _Terms, code: int, stepped: dict[tuple[_Terms, int], _Terms]) -> _Terms:
    key = (terms, code)
    found = stepped.get(key)
    if found is None:
        found = stepped[key] = frozenset(
            after for term in terms for after in derivatives(term, code)
        )
    return found


def _lower_automaton(automaton: _Automaton, net: NetBuilder, lowering: Lowering) -> Node:
    """One node per state: a character and the next state's node. Dead states are trimmed with the
    net.
    """
    nodes = [net.hole() for _ in automaton.edges]
    for node, edges, final in zip(nodes, automaton.edges, automaton.final, strict=True):
        ways = [net.seq([lowering.chars(chars), nodes[to]]) for to, chars in edges.items()]
        net.fill(node, net.alt([*ways, *([EMPTY_NODE] if final else [])]))
    return nodes[0]
