"""Who goes first among the waiting sequences: pure functions from a sequence to a key; the smaller key goes
first.

All keys are static while a sequence waits, apart from the prefix that is found for it, so an order is
kept and not recomputed. A preempted sequence goes before every new one, then a higher priority before a
lower one.

- `fcfs`: in order of arrival. A sequence waits for those before it.
- `lpm`: longest cached prefix first, with ageing: `matched - ageing * arrival_step`. Every step of
  waiting is worth `ageing` tokens of prefix, and as all sequences age alike the key stays put. Bound: a
  sequence is overtaken only by sequences that came at most `ceil(context_len / ageing)` steps after it
  (`overtaking_bound`).
- `dfs`: a sweep through the waiting sequences in the order of their token sequences, which is a
  depth-first walk of the tree they form: sequences with a common prefix come one after the other. Who
  comes while a sweep runs waits for the next one. Bound: a sequence is overtaken only by sequences of its
  own sweep and the one before it.

Knows sequences; knows no tree, no pages, no clock.
"""

from __future__ import annotations

from collections.abc import Callable

from lmprog.config import PolicyName
from lmprog.runtime.scheduling.sequence import Sequence

Key = tuple[int, int, float, bytes, int]
"""(not preempted, -priority, rank, tokens, admission order or arrival number): compared from left to right."""

Order = Callable[[Sequence, int], Key]
"""Key of a sequence that is the `int`-th to arrive."""

DFS_PREFIX_TOKENS = 4096
"""dfs: tokens that count for the order; beyond them sequences keep their order of arrival."""


def order_for(policy: PolicyName, ageing: int) -> Order:
    """The order that `policy` names."""
    if policy == "fcfs":
        return fcfs
    if policy == "dfs":
        return dfs
    return lambda sequence, number: lpm(sequence, number, ageing)


def fcfs(sequence: Sequence, number: int) -> Key:
    return (*_class(sequence), 0.0, b"", number)


def lpm(sequence: Sequence, number: int, ageing: int) -> Key:
    return (*_class(sequence), float(ageing * sequence.arrival - sequence.matched), b"", number)


def dfs(sequence: Sequence, number: int) -> Key:
    return (
        *_class(sequence),
        float(sequence.sweep),
        sequence.tokens[:DFS_PREFIX_TOKENS].tobytes(),
        number,
    )


def overtaking_bound(context_len: int, ageing: int) -> int:
    """lpm: most steps by which a sequence that overtakes another may have come after it."""
    return -(-context_len // ageing)


def _class(sequence: Sequence) -> tuple[int, int]:
    preempted = 0 if sequence.admission_order else 1
    return preempted, -sequence.group.priority
