"""The line of waiting sequences, kept in the policy's order.

Arrivals and departures cost a binary search; nothing is sorted again in a step. Only `lpm` has keys
that change while a sequence waits (somebody computed its prefix): a few sequences are looked up again each
step, in turn.

Knows keys and sequences; asks the tree through the `look_up` function it is given.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from operator import itemgetter

from lmprog.config import PolicyName
from lmprog.runtime.scheduling.policy import Key, order_for
from lmprog.runtime.scheduling.sequence import Sequence

LOOKED_UP_PER_STEP = 16

_key_of = itemgetter(0)


class WaitingQueue:
    """Waiting sequences in order. A sequence is in the line from `push` to `remove`."""

    def __init__(self, policy: PolicyName, ageing: int, look_up: Callable[[Sequence], int]) -> None:
        self._order = order_for(policy, ageing)
        self._refreshes = policy == "lpm"
        self._sweeps = policy == "dfs"
        self._look_up = look_up
        self._entries: list[tuple[Key, Sequence]] = []
        self._keys: dict[Sequence, Key] = {}
        self._numbers: dict[Sequence, int] = {}
        self._arrivals = 0
        self._sweep = 0
        self._turn = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Sequence]:
        return (sequence for _, sequence in self._entries)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._keys

    @property
    def head(self) -> Sequence | None:
        """Who goes next; stays in the line."""
        return self._entries[0][1] if self._entries else None

    def push(self, sequence: Sequence) -> None:
        self._arrivals += 1
        if self._sweeps:
            if self._entries:
                self._sweep = int(self._entries[0][0][2])
            sequence.sweep = self._sweep + 1
        self._numbers[sequence] = self._arrivals
        self._insert(sequence)

    def remove(self, sequence: Sequence) -> None:
        self._take_out(sequence)
        del self._numbers[sequence]

    def refresh(self) -> None:
        """Looks a few sequences up again, the front and then all in turn, and moves those whose prefix
        has changed.
        """
        if not self._refreshes or not self._entries:
            return
        size = len(self._entries)
        front = [sequence for _, sequence in self._entries[: LOOKED_UP_PER_STEP // 2]]
        turn = [
            self._entries[(self._turn + i) % size][1]
            for i in range(min(size, LOOKED_UP_PER_STEP // 2))
        ]
        self._turn = (self._turn + len(turn)) % size
        for sequence in dict.fromkeys(front + turn):
            found = self._look_up(sequence)
            if found != sequence.matched:
                self._take_out(sequence)
                sequence.matched = found
                self._insert(sequence)

    def _insert(self, sequence: Sequence) -> None:
        key = self._order(sequence, self._numbers[sequence])
        self._keys[sequence] = key
        insort(self._entries, (key, sequence), key=_key_of)

    def _take_out(self, sequence: Sequence) -> None:
        key = self._keys.pop(sequence)
        index = bisect_left(self._entries, key, key=_key_of)
        assert self._entries[index][1] is sequence, (
            "keys are unique and do not change while a sequence stands in the line"
        )
        del self._entries[index]
