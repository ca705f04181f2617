"""The leaves of a net: small deterministic byte automata, stored as arrays.

A net is assembled from whole leaves, never edge by edge. Texts, and all names but some, stay what
they are until then. Knows bytes; knows neither nodes nor tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

UNREACHABLE = 1 << 40
"""The cost of what can never end."""

Edge: TypeAlias = tuple[int, int, int]
"""First byte, last byte, target state."""
States: TypeAlias = Sequence[tuple[bool, Iterable[Edge]]]
"""Per state: whether it is final, and its edges. State 0 is the start."""


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """State q has `num_edges[q]` edges; the edges of all states are consecutive in `edges`."""

    edges: NDArray[np.int32]  # [edges, 3]
    num_edges: NDArray[np.int32]  # [states]
    final: NDArray[np.uint8]  # [states]
    cost: NDArray[np.int64]  # [states] fewest bytes to acceptance
    is_any_character: bool = False
    """Whether this is one character of a JSON string, whichever it is and however it is written."""

    @property
    def num_states(self) -> int:
        return len(self.final)

    def states(self) -> Iterator[tuple[bool, list[Edge]]]:
        edges = self.edges.tolist()
        at = 0
        for final, count in zip(self.final.tolist(), self.num_edges.tolist(), strict=True):
            yield bool(final), [(low, high, to) for low, high, to in edges[at : at + count]]
            at += count

    def spelled(self, single: frozenset[int]) -> Leaf:
        """The same leaf restricted to the bytes that have a token of their own."""
        return leaf(
            [
                (
                    final,
                    [
                        (byte, byte, to)
                        for low, high, to in edges
                        for byte in range(low, high + 1)
                        if byte in single
                    ],
                )
                for final, edges in self.states()
            ]
        )


@dataclass(frozen=True, slots=True)
class AllBut:
    """The contents of all JSON strings that are none of `names`; see `exclusion.py`.

    Names consist of printable ASCII characters without quotes and backslashes.
    """

    names: tuple[bytes, ...]

    @property
    def num_states(self) -> int:
        """At most; a few that do not depend on the names are not counted."""
        return sum(map(len, self.names)) + 1


LeafSource: TypeAlias = bytes | AllBut | Leaf
"""What a leaf is made of: exactly these bytes, for instance."""


def leaf(states: States) -> Leaf:
    flat: list[Edge] = []
    counts: list[int] = []
    for _, edges in states:
        before = len(flat)
        flat.extend(edges)
        counts.append(len(flat) - before)
    final = [is_final for is_final, _ in states]
    return Leaf(
        np.array(flat, np.int32).reshape(-1, 3),
        np.array(counts, np.int32),
        np.array(final, np.uint8),
        np.array(_costs(flat, counts, final), np.int64),
    )


@functools.lru_cache(maxsize=4096)
def text_leaf(value: bytes) -> Leaf:
    """Exactly these bytes."""
    size = len(value)
    edges = np.empty((size, 3), np.int32)
    edges[:, 0] = edges[:, 1] = np.frombuffer(value, np.uint8)
    edges[:, 2] = np.arange(1, size + 1)
    counts, final = np.ones(size + 1, np.int32), np.zeros(size + 1, np.uint8)
    counts[size], final[size] = 0, 1
    return Leaf(edges, counts, final, np.arange(size, -1, -1))


def _costs(flat: Sequence[Edge], counts: Sequence[int], final: Sequence[bool]) -> list[int]:
    """Fewest bytes to acceptance, breadth first from the final states."""
    cost = [0 if done else UNREACHABLE for done in final]
    sources: list[list[int]] = [[] for _ in final]
    at = 0
    for state, count in enumerate(counts):
        for _, _, to in flat[at : at + count]:
            sources[to].append(state)
        at += count
    queue = [state for state, done in enumerate(final) if done]
    for state in queue:  # appended to while iterated
        for source in sources[state]:
            if cost[source] == UNREACHABLE:
                cost[source] = cost[state] + 1
                queue.append(source)
    return cost
