"""A table: an automaton over classes of characters as one node of a net, with bounds on the length.

Its states are never multiplied with lengths: a position of the byte automaton holds a state and the
number of characters so far, and is made when it is met. The plain twin of
`kernels/include/lmprog_text_table.h`. Knows how tables lie in arrays; knows no expressions.

A builder's table is low, high (-1: none), the number of states and of edges; by state whether it
is final, and the node of its loop (a state that is final and leads to itself alone is a repetition;
else -1); the first edge of each state and the end of the last; the targets of all edges, and their
nodes. A target of -1 is behind the table: the node is all that follows.

A finished table has the same, but the number of edges, in whose place is the cost of the dearest
class; then come, before the targets, for every number of characters that is still needed, from 0 to
`low`, by state the fewest characters to the end (-1: there is none), and by state the most (-1:
without end). Without bounds the fewest are tokens, each class at its node's cost.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lmprog.constraints.leaves import UNREACHABLE

_NEVER = 1 << 30
"""The kernel counts in 32 bits."""
_HEAD = 4
_Edges = list[list[tuple[int, int]]]
"""By state: targets and nodes."""


@dataclass(frozen=True, slots=True)
class UnfinishedTable:
    low: int
    high: int | None
    final: Sequence[int]
    loops: Sequence[int]
    starts: Sequence[int]
    targets: Sequence[int]
    nodes: Sequence[int]

    def args(self) -> array[int]:
        out = array("i", (self.low, -1 if self.high is None else self.high))
        out.extend((len(self.final), len(self.targets)))
        for part in (self.final, self.loops, self.starts, self.targets, self.nodes):
            out.extend(part)
        return out


def moved_table(args: Sequence[int], moved: Callable[[int], int]) -> list[int]:
    """A builder's table with other numbers of nodes."""
    size, num_edges = args[2], args[3]
    loops, starts = _HEAD + size, _HEAD + 2 * size
    nodes = starts + size + 1 + num_edges
    return [
        *args[:loops],
        *(loop if loop < 0 else moved(loop) for loop in args[loops:starts]),
        *args[starts:nodes],
        *map(moved, args[nodes:]),
    ]


def finished_table(args: Sequence[int], cost: Sequence[int]) -> tuple[list[int], int]:
    """The finished table, without what cannot be spelled, and its cost."""
    low, high, size, num_edges = args[:_HEAD]
    final, loops = args[_HEAD : _HEAD + size], list(args[_HEAD + size : _HEAD + 2 * size])
    starts = args[_HEAD + 2 * size : _HEAD + 3 * size + 1]
    targets = args[_HEAD + 3 * size + 1 :]
    edges: _Edges = [
        [
            (targets[edge], targets[num_edges + edge])
            for edge in range(starts[state], starts[state + 1])
            if cost[targets[num_edges + edge]] < _NEVER
        ]
        for state in range(size)
    ]
    counts = low > 0 or high >= 0
    fewest = [_characters(edges, final) if counts else _tokens(edges, final, cost)]
    edges = [[edge for edge in of if edge[0] < 0 or fewest[0][edge[0]] >= 0] for of in edges]
    loops = [loop if of else -1 for loop, of in zip(loops, edges, strict=True)]
    for _ in range(low):
        before = fewest[-1]
        ways = [[before[to] + 1 for to, _ in of if before[to] >= 0] for of in edges]
        fewest.append([min(of, default=-1) for of in ways])
    span = max((cost[node] for of in edges for _, node in of), default=1)
    flat = [edge for of in edges for edge in of]
    starts = [0]
    for of in edges:
        starts.append(starts[-1] + len(of))
    out = [low, high, size, max(span, 1), *final, *loops, *starts]
    for row in fewest:
        out += row
    out += [*_longest(edges, fewest[0]), *(to for to, _ in flat), *(node for _, node in flat)]
    made = TextTable(out, 0)
    return out, min(made.cost(0, 0), UNREACHABLE) if made.may_end(0, 0) else UNREACHABLE


def _tokens(edges: _Edges, final: Sequence[int], cost: Sequence[int]) -> list[int]:
    """By state, the fewest tokens to the end; -1: there is none."""
    best = [_NEVER] * len(edges)
    sources: list[list[tuple[int, int]]] = [[] for _ in edges]
    queue: list[tuple[int, int]] = []
    for state, of in enumerate(edges):
        ways = [cost[node] for to, node in of if to < 0] + ([0] if final[state] else [])
        if ways:
            best[state] = min(ways)
            queue.append((best[state], state))
        for to, node in of:
            if to >= 0:
                sources[to].append((state, cost[node]))
    heapq.heapify(queue)
    while queue:
        here, state = heapq.heappop(queue)
        if here > best[state]:
            continue
        for source, more in sources[state]:
            if here + more < best[source]:
                best[source] = here + more
                heapq.heappush(queue, (here + more, source))
    return [-1 if one >= _NEVER else one for one in best]


def _characters(edges: _Edges, final: Sequence[int]) -> list[int]:
    """By state, the fewest characters to the end; -1: there is none."""
    sources: list[list[int]] = [[] for _ in edges]
    for state, of in enumerate(edges):
        for to, _ in of:
            sources[to].append(state)
    out = [0 if is_final else -1 for is_final in final]
    queue = [state for state, is_final in enumerate(final) if is_final]
    for state in queue:  # appended to while iterated
        for source in sources[state]:
            if out[source] < 0:
                out[source] = out[state] + 1
                queue.append(source)
    return out


def _longest(edges: _Edges, fewest: Sequence[int]) -> list[int]:
    """By state, the most characters to the end; -1: without end."""
    sources: list[list[int]] = [[] for _ in edges]
    for state, of in enumerate(edges):
        for to, _ in of:
            if to >= 0:
                sources[to].append(state)
    missing = [len(of) for of in edges]
    out = [-1] * len(edges)
    queue = [state for state, count in enumerate(missing) if count == 0 and fewest[state] >= 0]
    for state in queue:  # appended to while iterated; a state comes after all its successors
        out[state] = max((out[to] + 1 for to, _ in edges[state]), default=0)
        for source in sources[state]:
            missing[source] -= 1
            if missing[source] == 0:
                queue.append(source)
    return out


class TextTable:
    """Reads the finished table at a place of some numbers."""

    def __init__(self, numbers: Sequence[int], at: int) -> None:
        self._numbers = numbers
        self.low, high, size, self._span = numbers[at : at + _HEAD]
        self.high = None if high < 0 else high
        self._size = size
        self._final = at + _HEAD
        self._loops, self._starts = self._final + size, self._final + 2 * size
        self._fewest = self._starts + size + 1
        self._longest = self._fewest + (self.low + 1) * size
        self._targets = self._longest + size
        self._nodes = self._targets + numbers[self._fewest - 1]
        self.counts = self.low > 0 or self.high is not None

    def is_final(self, state: int) -> bool:
        return bool(self._numbers[self._final + state])

    def loop(self, state: int) -> int:
        return self._numbers[self._loops + state]

    def may_stop(self, state: int, length: int) -> bool:
        return self.is_final(state) and (length < 0 or length >= self.low)

    def following(
        self, node: int, state: int, length: int, args: Sequence[Sequence[int]]
    ) -> Iterator[tuple[int, tuple[int, int, int] | None]]:
        """The nodes that may follow, each with what comes behind it, if not the end: the node of
        this table with a state and a number of characters, or a repetition with its fewest and most
        further rounds. `args` are those of the net's nodes.
        """
        loop = self.loop(state)
        if loop >= 0:
            is_free = length < 0 or not self.counts
            more = 0 if is_free else max(self.low - length - 1, 0)
            if is_free or self.high is None:
                yield args[loop][0], (loop, more, -1)
            elif self.high > length:
                fewer = self.high - length - 1
                yield args[loop][0], (loop, more, fewer) if fewer else None
            return
        after = length if length < 0 else length + self.counts
        for to, item in self.edges(state):
            if to < 0:
                yield item, None
            elif not self.counts:
                yield item, (node, to, 0)
            elif self.may_end(to, after):
                yield item, (node, to, self.counted(to, after))

    def edges(self, state: int) -> list[tuple[int, int]]:
        """What may follow: the state behind it (-1: behind the table) and the node."""
        first, end = self._numbers[self._starts + state : self._starts + state + 2]
        targets = self._numbers[self._targets + first : self._targets + end]
        return list(
            zip(targets, self._numbers[self._nodes + first : self._nodes + end], strict=True)
        )

    def cost(self, state: int, length: int) -> int:
        if not self.counts:
            return self._fewest_of(0, state)
        return self._span * self._fewest_of(self._needed(length), state)

    def may_end(self, state: int, length: int) -> bool:
        """Whether a text may go on in `state` after so many characters."""
        if length < 0:
            return True
        more = self._fewest_of(self._needed(length), state)
        return more >= 0 and (self.high is None or length + more <= self.high)

    def counted(self, state: int, length: int) -> int:
        """The number of characters as far as it matters: -1 where the bounds hold whatever
        follows.
        """
        if length < 0:
            return length
        most = self._numbers[self._longest + state]
        fits = self.high is None or (most >= 0 and length + most <= self.high)
        return -1 if fits and length + self._fewest_of(0, state) >= self.low else length

    def _needed(self, length: int) -> int:
        return 0 if length < 0 else max(self.low - length, 0)

    def _fewest_of(self, need: int, state: int) -> int:
        return self._numbers[self._fewest + need * self._size + state]
