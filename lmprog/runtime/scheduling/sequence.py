"""A call in flight and its sequences: what the scheduler moves forward.

A *call* is one gen or select. It runs on one or more *sequences*, each a growing token sequence whose
keys and values are computed: one sequence for each of a gen's `n` results, one for each option of a
select. A sequence is what a branch's cursor looks like while it runs. What is done with a sequence's logits
is its *task* (`generation.Generation` or `generation.Scoring`); the scheduler only asks it where
logits are wanted.

This module knows lengths and states. It knows no text, no tensors, and decides nothing.
"""

from __future__ import annotations

import enum
from array import array
from dataclasses import dataclass, field

from lmprog.errors import LmprogError
from lmprog.radix import Node
from lmprog.runtime.scheduling.generation import Generation, Scoring
from lmprog.runtime.scheduling.namespaces import SHARED_NAMESPACE, Namespace


class SequenceState(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(slots=True)
class GroupTiming:
    """Seconds on the runtime's clock; None until that moment has come."""

    submitted: float
    admitted: float | None = None
    """When its first step began."""
    first_token: float | None = None
    ended: float | None = None


@dataclass(eq=False, slots=True)
class SequenceGroup:
    """One gen or select: its sequences, and the work that they have in common."""

    priority: int = 0
    sequences: list[Sequence] = field(default_factory=list)
    timing: GroupTiming = field(default_factory=lambda: GroupTiming(0.0))
    prompt_len: int = 0
    cached: int = 0
    computed: int = 0
    preemptions: int = 0


class Sequence:
    """One growing token sequence of a call.

    Positions `0 .. computed` have keys and values, in `pages` (page index -> page). The first
    `shared` pages belong to the tree and are kept alive by the lock on `node`; the others are the
    sequence's own until it enters the tree.
    """

    __slots__ = (
        "admission_order",
        "arrival",
        "call",
        "computed",
        "error",
        "is_continuation",
        "matched",
        "namespace",
        "node",
        "num_memory_preemptions",
        "num_tokens_at_enqueue",
        "pages",
        "shared",
        "state",
        "sweep",
        "task",
        "tokens",
    )

    def __init__(
        self,
        call: SequenceGroup,
        tokens: array[int],
        task: Generation | Scoring,
        namespace: Namespace = SHARED_NAMESPACE,
    ) -> None:
        self.call = call
        self.tokens = tokens
        self.task = task
        self.namespace = namespace
        self.is_continuation = False
        """Its branch was computed before, up to somewhere, and goes on now."""
        self.state = SequenceState.WAITING
        self.node: Node | None = None
        self.pages: array[int] = array("i")
        self.shared = 0
        self.computed = 0
        self.num_tokens_at_enqueue = len(tokens)
        """Tokens that stood when the sequence joined the line last; what is generated since enters the
        tree at its end.
        """
        self.matched = 0
        """Prefix length found in the tree when it was last looked up while waiting; a hint for the
        policy.
        """
        self.arrival = 0
        """Number of the scheduler's step in which the sequence was submitted."""
        self.admission_order = 0
        """Order of first admission; the sequence with the highest admission order is preempted first."""
        self.num_memory_preemptions = 0
        """How often it was preempted because memory ran out."""
        self.sweep = 0
        """dfs: number of the sweep that it belongs to."""
        self.error: LmprogError | None = None

    @property
    def logits_from(self) -> int:
        """The first position whose logits are still wanted; nothing from there on may be taken from
        the cache.
        """
        return self.task.logits_from(len(self.tokens))

    @property
    def remaining(self) -> int:
        """Known tokens that have no keys and values yet."""
        return len(self.tokens) - self.computed
