"""Members of which each comes at most once: what may follow those that were used.

What was used is one number: a bit for each member, and above these how often the one came that may
come again. The plain twin of `kernels/include/lmprog_once.h`. Knows costs; knows no bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lmprog.constraints.leaves import UNREACHABLE
from lmprog.constraints.net import NO_LIMIT, NO_NODE, ONCE

BEGUN, READING = range(2)
"""Where the text is: a member has to follow; READING + i: in member i. The one that may come again
has the number behind the last.
"""


class _Left(NamedTuple):
    required: int
    """Members that have to follow."""
    needed: int
    """The same, with those that are missing to the fewest."""
    room: int
    """How many may follow."""
    has_again: bool
    """Whether the one that may come again did so."""


class OnceNode:
    """One such node of a net."""

    def __init__(self, items: Sequence[int], of: Sequence[int], node_cost: Sequence[int]) -> None:
        begin, size, self._num_required = of
        self._low, self._high, again, self.separator = items[begin : begin + 4]
        self._members = [*items[begin + 4 : begin + 4 + size], again]
        self._costs = [UNREACHABLE if one == NO_NODE else node_cost[one] for one in self._members]
        self._between = node_cost[self.separator]
        self._has_again = again != NO_NODE
        self._size = size

    def after(self, used: int, member: int) -> int:
        if member < self._size:
            return used | 1 << member
        if self._high == NO_LIMIT and used >> self._size:
            return used  # no bound needs to know more
        return used + (1 << self._size)

    def may_end(self, used: int) -> bool:
        return self._left(used).needed <= 0

    def choices(self, used: int) -> Iterator[tuple[int, int]]:
        """The members that may follow, each with its node."""
        left = self._left(used)
        if left.room <= 0:
            return
        last = self._size if left.room > left.required else self._num_required
        for member in range(last):
            if not used >> member & 1:
                yield member, self._members[member]
        needed = max(left.needed, 0) if left.has_again else left.required
        if self._has_again and left.room > needed:
            yield self._size, self._members[self._size]

    def may_go_on(self, used: int) -> bool:
        return any(True for _ in self.choices(used))

    def cost(self, used: int, where: int) -> int:
        """What is needed from there on, without the rest of the member that is being read."""
        if where >= READING:
            used = self.after(used, where - READING)
        left = self._left(used)
        wanted = max(left.needed, int(where == BEGUN))
        again = self._costs[-1] if not left.has_again or left.needed <= 0 else UNREACHABLE
        open_ones = [i for i in range(self._size) if not used >> i & 1]
        costs = [self._costs[i] for i in open_ones[: left.required]]
        others = sorted([*(self._costs[i] for i in open_ones[left.required :]), again])
        costs += others[: wanted - left.required]
        return min(sum(costs) + self._between * (wanted - (where == BEGUN)), UNREACHABLE)

    def _left(self, used: int) -> _Left:
        members, again = used & (1 << self._size) - 1, used >> self._size
        count = members.bit_count()
        required = self._num_required - (members & (1 << self._num_required) - 1).bit_count()
        needed = max(required, self._low - count - min(again, 1))
        room = UNREACHABLE if self._high == NO_LIMIT else self._high - count - again
        return _Left(required, needed, room, again > 0)


def once_nodes(
    kinds: Sequence[int],
    args: Sequence[Sequence[int]],
    items: Sequence[int],
    node_cost: Sequence[int],
) -> dict[int, OnceNode]:
    """Those of a net."""
    return {
        node: OnceNode(items, args[node], node_cost)
        for node, kind in enumerate(kinds)
        if kind == ONCE
    }
