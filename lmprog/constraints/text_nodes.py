"""Builds nodes from automata over characters, optionally with length bounds.

Knows nets; knows no expressions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lmprog.constraints.charset import CharSet
from lmprog.constraints.lower import Lowering
from lmprog.constraints.net import EMPTY, FAIL, NetBuilder, Node
from lmprog.errors import GrammarError

MAX_STATES = 20_000


@dataclass(slots=True)
class TextAutomaton:
    """State 0 is the start state. Edges are labelled with character classes."""

    edges: list[dict[int, CharSet]] = field(default_factory=list)
    final: list[bool] = field(default_factory=list)
    rests: dict[int, Node] = field(default_factory=dict)
    """States whose node is known without their edges, which are left out."""


def too_many_states() -> GrammarError:
    return GrammarError(
        f"the conjunction of patterns needs more than {MAX_STATES} states, or too many steps to "
        "find them",
        position=None,
    )


class UnboundedNodes:
    """One node per state: a character, then the node of the next state."""

    def __init__(self, automaton: TextAutomaton, net: NetBuilder, lowering: Lowering) -> None:
        self._automaton = automaton
        self._net = net
        self._lowering = lowering
        self._nodes: list[Node] | None = None

    def node(self, state: int) -> Node:
        if self._nodes is None:
            self._nodes = self._made()
        return self._nodes[state]

    def _made(self) -> list[Node]:
        automaton, net, lowering = self._automaton, self._net, self._lowering
        nodes = [net.hole() for _ in automaton.edges]
        for state, node in enumerate(nodes):
            if state in automaton.rests:
                net.fill(node, automaton.rests[state])
                continue
            edges, final = automaton.edges[state], automaton.final[state]
            ways = [net.seq([lowering.chars(chars), nodes[to]]) for to, chars in edges.items()]
            net.fill(node, net.alt([*ways, *([EMPTY] if final else [])]))
        return nodes


class BoundedNodes:
    """The texts of an automaton that have between `low` and `high` characters.

    One node per state and number of characters so far, longest first. A state with a self-loop
    becomes a counted repetition; a state from which the bounds always hold uses the unbounded node.
    """

    def __init__(
        self,
        automaton: TextAutomaton,
        bounds: tuple[int, int | None],
        unbounded: UnboundedNodes,
        net: NetBuilder,
        lowering: Lowering,
    ) -> None:
        edges = [list(of_state.items()) for of_state in automaton.edges]
        self._final = automaton.final
        self._low, self._high = bounds
        self._unbounded, self._net, self._lowering = unbounded, net, lowering
        self._shortest = _shortest(edges, self._final)
        self._longest = _longest(edges, self._shortest)
        self._live = [
            [(to, chars) for to, chars in of_state if self._shortest[to] is not None]
            for of_state in edges
        ]
        self._loops = [
            final and len(live) == 1 and live[0][0] == state
            for state, (final, live) in enumerate(zip(self._final, self._live, strict=True))
        ]
        """Whether a state is final and leads to itself alone."""

    def node(self) -> Node:
        net, low = self._net, self._low
        nodes: dict[tuple[int, int], Node] = {}
        letters: dict[int, list[tuple[int, Node]]] = {}
        for state, length in reversed(self._reached()):
            if self._is_direct(state, length):
                nodes[state, length] = self._direct(state, length)
                continue
            edges = letters.get(state)
            if edges is None:
                lower = self._lowering.chars
                edges = letters[state] = [(to, lower(chars)) for to, chars in self._live[state]]
            ways = [
                net.seq((letter, rest))
                for to, letter in edges
                if (rest := nodes.get((to, length + 1))) is not None
            ]
            if self._final[state] and length >= low:
                ways.append(EMPTY)
            nodes[state, length] = net.alt(ways)
        return nodes.get((0, 0), FAIL)

    def _reached(self) -> list[tuple[int, int]]:
        """The reachable pairs of state and length, ordered by length."""
        queue = [(0, 0)] if self._may_end(0, 0) else []
        known = set(queue)
        for state, length in queue:  # appended to while iterated
            self._net.check()
            if self._is_direct(state, length):
                continue
            for to, _ in self._live[state]:
                following = (to, length + 1)
                if following not in known and self._may_end(to, length + 1):
                    known.add(following)
                    queue.append(following)
                    if len(queue) > MAX_STATES:
                        raise too_many_states()
        return queue

    def _may_end(self, state: int, length: int) -> bool:
        """Whether the bounds leave any continuation possible."""
        shortest, longest = self._shortest[state], self._longest[state]
        if shortest is None or (self._high is not None and length + shortest > self._high):
            return False
        return longest is None or length + longest >= self._low

    def _is_direct(self, state: int, length: int) -> bool:
        """Whether no characters need to be counted, or those of one repetition."""
        return self._loops[state] or self._always_holds(state, length)

    def _always_holds(self, state: int, length: int) -> bool:
        longest, shortest = self._longest[state], self._shortest[state]
        assert shortest is not None, "only states that can end are asked for"
        is_short = self._high is None or (longest is not None and length + longest <= self._high)
        return is_short and length + shortest >= self._low

    def _direct(self, state: int, length: int) -> Node:
        if self._always_holds(state, length):
            return self._unbounded.node(state)
        high = None if self._high is None else self._high - length
        item = self._lowering.chars(self._live[state][0][1])
        return self._net.repeat(item, max(self._low - length, 0), high)


_Edges = list[list[tuple[int, CharSet]]]


def _shortest(edges: _Edges, final: Sequence[bool]) -> list[int | None]:
    """The fewest characters from each state to acceptance; None if unreachable."""
    sources: list[list[int]] = [[] for _ in edges]
    for state, of_state in enumerate(edges):
        for to, _ in of_state:
            sources[to].append(state)
    out: list[int | None] = [0 if is_final else None for is_final in final]
    queue = [state for state, is_final in enumerate(final) if is_final]
    for state in queue:  # appended to while iterated
        here = out[state]
        assert here is not None, "it was reached"
        for source in sources[state]:
            if out[source] is None:
                out[source] = here + 1
                queue.append(source)
    return out


def _longest(edges: _Edges, shortest: Sequence[int | None]) -> list[int | None]:
    """The most characters from each state to acceptance; None if unbounded."""
    live = [[to for to, _ in of_state if shortest[to] is not None] for of_state in edges]
    sources: list[list[int]] = [[] for _ in edges]
    for state, of_state in enumerate(live):
        for to in of_state:
            sources[to].append(state)
    missing = [len(of_state) for of_state in live]
    out: list[int | None] = [None] * len(edges)
    queue = [state for state, count in enumerate(missing) if count == 0]
    for state in queue:  # appended to while iterated; a state comes after all its successors
        out[state] = max((1 + (out[to] or 0) for to in live[state]), default=0)
        for source in sources[state]:
            missing[source] -= 1
            if missing[source] == 0:
                queue.append(source)
    return out
