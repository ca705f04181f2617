"""The line of waiting lanes, kept in the policy's order.

Arrivals and departures cost a binary search; nothing is sorted again in a step. Only `lpm` has keys that change
while a lane waits (somebody computed its prefix): a few lanes are looked up again each step, in turn.

Knows keys and lanes; asks the tree through the `look_up` function it is given.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from operator import itemgetter

from lmprog.config import PolicyName
from lmprog.runtime.policy import Key, order_for
from lmprog.runtime.request import Lane

LOOKED_UP_PER_STEP = 16

_key_of = itemgetter(0)


class Line:
    """Waiting lanes in order. A lane is in the line from `join` to `leave`."""

    def __init__(self, policy: PolicyName, ageing: int, look_up: Callable[[Lane], int]) -> None:
        self._order = order_for(policy, ageing)
        self._renews = policy == "lpm"
        self._sweeps = policy == "dfs"
        self._look_up = look_up
        self._entries: list[tuple[Key, Lane]] = []
        self._keys: dict[Lane, Key] = {}
        self._numbers: dict[Lane, int] = {}
        self._arrivals = 0
        self._sweep = 0
        self._turn = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Lane]:
        return (lane for _, lane in self._entries)

    def __contains__(self, lane: Lane) -> bool:
        return lane in self._keys

    @property
    def head(self) -> Lane | None:
        """Who goes next; stays in the line."""
        return self._entries[0][1] if self._entries else None

    def join(self, lane: Lane) -> None:
        self._arrivals += 1
        if self._sweeps:
            if self._entries:
                self._sweep = int(self._entries[0][0][2])
            lane.sweep = self._sweep + 1
        self._numbers[lane] = self._arrivals
        self._place(lane)

    def leave(self, lane: Lane) -> None:
        self._displace(lane)
        del self._numbers[lane]

    def renew(self) -> None:
        """Looks a few lanes up again, the front and then all in turn, and moves those whose prefix has changed."""
        if not self._renews or not self._entries:
            return
        size = len(self._entries)
        front = [lane for _, lane in self._entries[: LOOKED_UP_PER_STEP // 2]]
        turn = [self._entries[(self._turn + i) % size][1] for i in range(min(size, LOOKED_UP_PER_STEP // 2))]
        self._turn = (self._turn + len(turn)) % size
        for lane in dict.fromkeys(front + turn):
            found = self._look_up(lane)
            if found != lane.matched:
                self._displace(lane)
                lane.matched = found
                self._place(lane)

    def _place(self, lane: Lane) -> None:
        key = self._order(lane, self._numbers[lane])
        self._keys[lane] = key
        insort(self._entries, (key, lane), key=_key_of)

    def _displace(self, lane: Lane) -> None:
        key = self._keys.pop(lane)
        index = bisect_left(self._entries, key, key=_key_of)
        assert self._entries[index][1] is lane, "keys are unique and do not change while a lane stands in the line"
        del self._entries[index]
