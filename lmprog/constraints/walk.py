"""The pure-Python mask engine: walks the vocabulary's tries and the automaton with numpy.

Gives the same results as the native kernel (tests compare them); used if there is no compiler. Does
not use whole buckets as a shortcut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lmprog.constraints.automaton import DEAD, LazyAutomaton
from lmprog.constraints.constraint import NARROW, CompileLimits, MaskRow, bit_row
from lmprog.constraints.leaves import UNREACHABLE
from lmprog.constraints.net import Net
from lmprog.constraints.vocabulary import Trie, Vocabulary


class RawMask(NamedTuple):
    row: MaskRow | None
    """With end-of-sequence in accepting states; perhaps the row of another mask with the same
    tokens. None where `like` says whose mask it is."""
    worst: int
    """The highest cost after an allowed token, or more."""
    like: int = 0
    """Not 0: this mask was not made, it is that of another state."""


class ByteAutomaton(Protocol):
    """The interface of an automaton. States are small integers; 0 is the dead state."""

    @property
    def start(self) -> int: ...

    def run(self, state: int, text: bytes) -> int: ...

    def row(self, state: int) -> list[int]:
        """The next state for each of the 256 bytes."""
        ...

    def forced(self, state: int, most: int) -> bytes:
        """The common prefix, at most `most` bytes, of all continuations; b"" in a final state."""
        ...

    def is_final(self, state: int) -> bool: ...

    def stands_at(self, state: int, leaf_state: int) -> bool:
        """Whether one of the state's positions is there."""
        ...

    def cost(self, state: int) -> int:
        """An upper bound on the tokens to acceptance."""
        ...


class MaskEngine(ByteAutomaton, Protocol):
    """A byte automaton that also computes masks.

    Methods that create states raise `MemoryFull` at the state limit; `collect` then frees memory.
    """

    @property
    def num_states(self) -> int: ...

    @property
    def num_bytes(self) -> int:
        """An estimate of the automaton's memory."""
        ...

    def raw_mask(self, state: int, most: int = UNREACHABLE) -> RawMask:
        """The tokens after which at most `most` more suffice, and end-of-sequence in accepting
        states.
        """
        ...

    def collect(self, needed: Sequence[int], wanted: Sequence[int]) -> list[int]:
        """Discards states, except for the start, the `needed` ones, and as many of the `wanted`
        ones as leave half of the memory free (the first take precedence). Returns the new numbers
        of both, in order; DEAD for those discarded.
        """
        ...


class _Levels:
    """A trie's nodes by depth, with each node's parent."""

    def __init__(self, trie: Trie) -> None:
        self.trie = trie
        depth = trie.nodes["depth"]
        self.levels: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        above = np.array([-1])
        for level in range(1, trie.deepest + 1):
            here = np.nonzero(depth == level)[0]
            self.levels.append((here, np.searchsorted(above, here) - 1))
            above = here


class PlainEngine(LazyAutomaton):
    def __init__(self, net: Net, vocabulary: Vocabulary, limits: CompileLimits) -> None:
        super().__init__(net, limits)
        self._vocabulary = vocabulary
        self._tries = [(bucket.lead, _Levels(bucket.trie)) for bucket in vocabulary.index.buckets]
        self._table = np.zeros((64, 256), np.int64)
        self._filled = np.zeros(64, bool)

    @property
    def num_bytes(self) -> int:
        return self._table.nbytes + 4096 * self.num_states

    def collect(self, needed: Sequence[int], wanted: Sequence[int]) -> list[int]:
        self._filled[:] = False
        return super().collect(needed, wanted)

    def raw_mask(self, state: int, most: int = UNREACHABLE) -> RawMask:
        self.begin_call()
        found: list[NDArray[np.int32]] = []
        worst = 0
        behind_space = self.run(state, b" ")
        for lead, levels in self._tries:
            allowed, cost = self._walk(levels, behind_space if lead else state, most)
            found.append(allowed)
            worst = max(worst, cost)
        if self.is_final(state):
            found.append(np.array(self._vocabulary.eos_ids, np.int32))
        ids = np.sort(np.concatenate(found))
        ids.flags.writeable = False
        num_words = self._vocabulary.num_words
        if len(ids) <= NARROW:
            return RawMask(MaskRow.narrow(ids, num_words), worst)
        bits = bit_row(ids, num_words)
        bits.flags.writeable = False
        return RawMask(MaskRow(bits, None, len(ids)), worst)

    def _walk(self, levels: _Levels, state: int, most: int) -> tuple[NDArray[np.int32], int]:
        trie = levels.trie
        at = np.array([state])
        allowed: list[NDArray[np.int32]] = []
        worst = 0
        for nodes, parents in levels.levels:
            alive = at[parents] != DEAD
            states = np.zeros(len(nodes), np.int64)
            states[alive] = self._step(at[parents[alive]], trie.nodes["byte"][nodes[alive]])
            distinct = np.unique(states)
            costs = np.array([self.cost(one) for one in distinct.tolist()])
            within = costs[np.searchsorted(distinct, states)] <= most
            ends = within & (states != DEAD) & (trie.nodes["own"][nodes] > 0)
            if ends.any():
                worst = max(worst, int(costs[np.searchsorted(distinct, states[ends])].max()))
                first, own = trie.nodes["first"][nodes[ends]], trie.nodes["own"][nodes[ends]]
                allowed += [
                    trie.order[int(a) : int(a + n)] for a, n in zip(first, own, strict=True)
                ]
            at = states
            if not at.any():
                break
        return (np.concatenate(allowed) if allowed else np.zeros(0, np.int32)), worst

    def _step(self, states: NDArray[np.int64], symbols: NDArray[np.uint16]) -> NDArray[np.int64]:
        for state in np.unique(states).tolist():
            if state >= len(self._filled):
                grow = max(state + 1, 2 * len(self._filled)) - len(self._filled)
                self._table = np.concatenate([self._table, np.zeros((grow, 256), np.int64)])
                self._filled = np.concatenate([self._filled, np.zeros(grow, bool)])
            if not self._filled[state]:
                self._table[state] = self.row(state)
                self._filled[state] = True
        return self._table[states, symbols]
