"""The order of admission and of preemption: pure functions from a sequence to a key. The smaller
key goes first.

Keys do not change while a sequence waits, apart from the length of its cached prefix, so the queue
is kept in order and never sorted again. Preempted sequences go before new ones. A level of priority
is worth `ageing` seconds of waiting, so priorities never stop a call for ever.

- `fcfs`: in order of arrival. A sequence is overtaken only by sequences of a priority higher by `p`
  that came at most `p * ageing` seconds after it.
- `lpm`: longest cached prefix first. A prefix that is cached is worth its part of the context times
  `ageing` seconds, so the bound is `(p + 1) * ageing` seconds.
- `dfs`: a sweep through the waiting sequences in the order of their tokens, which is a depth-first
  walk of the tree they form: sequences with a common prefix are neighbours. Sequences that arrive
  during a sweep wait for the next one; a level of priority is worth a sweep. A sequence is
  overtaken only by those of its own sweep or, by priority, of `p` later ones.

These bounds are for the calls of one client. `admission` adds one `ageing` for programs that are in
memory already.

Knows sequences; knows no tree, no pages, no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lmprog.config import PolicyName
from lmprog.runtime.scheduling.sequence import Sequence

Key = tuple[int, float, bytes, int]
"""(not preempted, rank, tokens, arrival number), compared from left to right."""

PREEMPTIONS_BY_AGE = 2
"""Preemptions of a sequence by older programs; then only sequences admitted earlier preempt it."""
DFS_PREFIX_TOKENS = 4096
"""dfs: tokens that count for the order; beyond them sequences keep their order of arrival."""


@dataclass(frozen=True, slots=True)
class AdmissionOrder:
    """Keys under one policy. `margin`: by how much of rank a program in memory goes first."""

    policy: PolicyName
    ageing: float
    context_len: int

    @property
    def margin(self) -> float:
        return 1.0 if self.policy == "dfs" else self.ageing

    @property
    def key(self) -> Callable[[Sequence, int], Key]:
        """Key of a sequence that is the `int`-th to arrive."""
        return {"fcfs": self.fcfs, "lpm": self.lpm, "dfs": self.dfs}[self.policy]

    def fcfs(self, sequence: Sequence, number: int) -> Key:
        rank = sequence.queued_at - self.ageing * sequence.group.priority
        return _class(sequence), rank, b"", number

    def lpm(self, sequence: Sequence, number: int) -> Key:
        bonus = sequence.group.priority + sequence.matched / self.context_len
        return _class(sequence), sequence.queued_at - self.ageing * bonus, b"", number

    def dfs(self, sequence: Sequence, number: int) -> Key:
        tokens = sequence.tokens[:DFS_PREFIX_TOKENS].tobytes()
        return _class(sequence), float(sequence.sweep - sequence.group.priority), tokens, number

    def overtaking_bound(self, priority_difference: int) -> float:
        """fcfs and lpm: most seconds by which a sequence that overtakes another may have come after
        it, if its priority is higher by so much. Programs in memory are reckoned with.
        """
        prefix = 1 if self.policy == "lpm" else 0
        return self.ageing * (1 + prefix + max(0, priority_difference))


def _class(sequence: Sequence) -> int:
    return 0 if sequence.admission_order else 1


def preemption_order(sequence: Sequence) -> tuple[bool, int, int]:
    """The greatest is preempted first: the youngest program's, unless it was often enough."""
    is_protected = sequence.num_memory_preemptions >= PREEMPTIONS_BY_AGE
    age = 0 if is_protected else abs(sequence.group.program or 0)
    return not is_protected, age, sequence.admission_order
