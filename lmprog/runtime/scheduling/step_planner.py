"""Which sequences compute how many tokens in a step.

All work (prefill chunks, decodes, forced tokens, scorings) is rows of one plan under one token
budget. Beside decodes, prefills are cut so that the step lasts no longer than it may.

Knows counts and measured costs; which sequences run, and whom to preempt, is `running_sequences`'
matter, where their tokens go that of `page_tables`.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from lmprog.runtime.scheduling.plan import Row
from lmprog.runtime.scheduling.program_admission import Memory
from lmprog.runtime.scheduling.running_sequences import RunningSequences
from lmprog.runtime.scheduling.sequence import Sequence, SequenceState
from lmprog.runtime.scheduling.step_costs import StepCosts
from lmprog.runtime.scheduling.waiting_queue import WaitingQueue


class StepRows(NamedTuple):
    """The rows of a step. Their slots are allocated, and their known tokens are in the tree."""

    rows: list[Row]
    budget: int
    """Tokens that it may have besides."""
    is_bounded: bool
    """See `Plan`."""


class StepPlanner:
    """Gives running sequences rows, and admits others while the budget lasts."""

    def __init__(
        self,
        memory: Memory,
        running: RunningSequences,
        waiting: WaitingQueue,
        costs: StepCosts,
        step_seconds: float,
    ) -> None:
        """`step_seconds`: how long a step with decodes may last."""
        self._config = memory.config
        self._tables = memory.tables
        self._running = running
        self._waiting = waiting
        self._costs = costs
        self._step_seconds = step_seconds

    def rows(self, step: int, now: float) -> StepRows:
        """The rows of a step that begins now."""
        rows: list[Row] = []
        # Decodes first: they are short and somebody waits for each token. Then prefills in the
        # order of admission.
        prefills = self._plan_decodes(rows)
        budget, is_bounded = self.prefill_budget(len(rows))
        for sequence in prefills:
            if not budget or len(rows) == self._config.max_rows:
                break
            if (
                sequence.state is SequenceState.RUNNING
            ):  # may have been preempted for an earlier one
                budget -= self._extend(sequence, budget, rows)
        self._waiting.refresh()
        while budget and len(rows) < self._config.max_rows:
            admitted = self._running.admit_next(step, now)
            if admitted is None:
                break
            budget -= self._extend(admitted, budget, rows)
        return StepRows(rows, budget, is_bounded)

    def _plan_decodes(self, rows: list[Row]) -> list[Sequence]:
        """Adds a row for each sequence with one token left to compute; returns the others."""
        prefills: list[Sequence] = []
        left = min(self._config.token_budget, self._config.max_rows)
        next_slot = self._tables.next_slot
        for sequence in self._running.sequences[:]:  # a preemption changes the list
            if len(sequence.tokens) - sequence.computed != 1:
                prefills.append(sequence)
            elif left and sequence.state is SequenceState.RUNNING:
                row = next_slot(sequence)
                if row is not None:
                    rows.append(row)
                    left -= 1
                else:
                    left -= self._extend(sequence, 1, rows)
        return prefills

    def prefill_budget(self, num_decodes: int) -> tuple[int, bool]:
        """What is left for prefills beside so many decodes, and whether that is cut so that the
        step lasts no longer than it may; at least a page, so that they get on.
        """
        budget = self._config.token_budget - num_decodes
        if not num_decodes or self._step_seconds == inf:
            return budget, False
        left = self._costs.tokens_within(self._step_seconds) - num_decodes
        return min(budget, max(self._config.page_size, left)), True

    def _extend(self, sequence: Sequence, budget: int, rows: list[Row]) -> int:
        """Plans the sequence's next tokens, at most `budget`; returns how many. 0: no memory
        yet.
        """
        tables = self._tables
        if sequence.remaining > 1:
            tables.attach(sequence)  # others may have computed more of it since
        count = min(sequence.remaining, budget, self._config.max_chunk or budget)
        needed = tables.pages_for(sequence, sequence.computed + count)
        if not self._running.make_room(needed, sequence, rows):
            return 0
        rows.append(tables.extend(sequence, count, len(rows)))
        return count
