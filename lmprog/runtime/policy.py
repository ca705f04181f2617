"""Who goes first among the waiting lanes: pure functions from a lane to a key; the smaller key goes first.

All keys are static while a lane waits, apart from the prefix that is found for it, so an order is kept and not
recomputed. A preempted lane goes before every new one, then a higher priority before a lower one.

- `fcfs`: in order of arrival. A lane waits for those before it.
- `lpm`: longest cached prefix first, with ageing: `matched - ageing * arrival_step`. Every step of waiting is worth
  `ageing` tokens of prefix, and as all lanes age alike the key stays put. Bound: a lane is overtaken only by lanes
  that came at most `ceil(context_len / ageing)` steps after it (`overtaking_bound`).
- `dfs`: a sweep through the waiting lanes in the order of their token sequences, which is a depth-first walk of the
  tree they form: lanes with a common prefix come one after the other. Who comes while a sweep runs waits for the
  next one. Bound: a lane is overtaken only by lanes of its own sweep and the one before it.

Knows lanes; knows no tree, no pages, no clock.
"""

from __future__ import annotations

from collections.abc import Callable

from lmprog.config import PolicyName
from lmprog.runtime.request import Lane

Key = tuple[int, int, float, bytes, int]
"""(not preempted, -priority, rank, tokens, seat or arrival number): compared from left to right."""

Order = Callable[[Lane, int], Key]
"""Key of a lane that is the `int`-th to arrive."""

DFS_PREFIX_TOKENS = 4096
"""dfs: tokens that count for the order; beyond them lanes keep their order of arrival."""


def order_for(policy: PolicyName, ageing: int) -> Order:
    """The order that `policy` names."""
    if policy == "fcfs":
        return fcfs
    if policy == "dfs":
        return dfs
    return lambda lane, number: lpm(lane, number, ageing)


def fcfs(lane: Lane, number: int) -> Key:
    return (*_class(lane), 0.0, b"", number)


def lpm(lane: Lane, number: int, ageing: int) -> Key:
    return (*_class(lane), float(ageing * lane.arrival - lane.matched), b"", number)


def dfs(lane: Lane, number: int) -> Key:
    return (*_class(lane), float(lane.sweep), lane.tokens[:DFS_PREFIX_TOKENS].tobytes(), number)


def overtaking_bound(context_len: int, ageing: int) -> int:
    """lpm: most steps by which a lane that overtakes another may have come after it."""
    return -(-context_len // ageing)


def _class(lane: Lane) -> tuple[int, int]:
    preempted = 0 if lane.seat else 1
    return preempted, -lane.call.priority
