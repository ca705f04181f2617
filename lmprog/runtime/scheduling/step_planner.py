"""Which sequences compute how many tokens in a step.

All work (prefill chunks, decodes, forced tokens, scorings) is rows of one plan under one token
budget. Prefills are cut so that the step lasts no longer than it may: beside decodes a short time,
else `ALONE_SECONDS`. Clients take turns with them, the one that was served least first; within a
client those that run go before those that wait.

Knows counts and measured costs; which sequences run, and whom to preempt, is `admission`'s
matter, where their tokens go that of `page_tables`.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import inf
from typing import NamedTuple

from lmprog.runtime.scheduling.admission import Memory, RunningSequences
from lmprog.runtime.scheduling.plan import Row
from lmprog.runtime.scheduling.sequence import Sequence, SequenceState
from lmprog.runtime.scheduling.step_costs import StepCosts
from lmprog.runtime.scheduling.waiting_queue import ClientShares, WaitingQueue

ALONE_SECONDS = 1.0
"""How long a step without decodes may last: what comes meanwhile waits for its end."""


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
        shares: ClientShares,
        costs: StepCosts,
        step_seconds: float | None,
    ) -> None:
        """`step_seconds`: how long a step with decodes may last; inf: as long as one without; None:
        no step is bounded, since `costs` are no seconds.
        """
        self._config = memory.config
        self._tables = memory.tables
        self._running = running
        self._waiting = waiting
        self._shares = shares
        self._costs = costs
        self._step_seconds = step_seconds

    def rows(self, step: int, now: float) -> StepRows:
        """The rows of a step that begins now."""
        rows: list[Row] = []
        # Decodes first: they are short and somebody waits for each token. Then prefills, each
        # client's in the order of admission.
        prefills = self._plan_decodes(rows)
        budget, is_bounded = self.prefill_budget(len(rows))
        if prefills and self._shares.are_several:
            prefills.sort(key=lambda one: self._shares.served(one.group.client))  # stable
        for sequence in prefills:
            if self._waiting.has_beside(sequence.group.client):
                limit = self._shares.served(sequence.group.client)
                budget = self._admit(rows, budget, (step, now, limit))
            if not budget or len(rows) == self._config.max_rows:
                break
            if (
                sequence.state is SequenceState.RUNNING
            ):  # may have been preempted for an earlier one
                budget -= self._extend(sequence, budget, rows)
        if self._waiting.places:
            self._waiting.refresh()
            budget = self._admit(rows, budget, (step, now, inf))
        return StepRows(rows, budget, is_bounded)

    def _admit(self, rows: list[Row], budget: int, until: tuple[int, float, float]) -> int:
        """Admits sequences while there is budget for them, as `RunningSequences.admit_next` says.
        Returns what is left of the budget.
        """
        while budget and self._waiting.places and len(rows) < self._config.max_rows:
            admitted = self._running.admit_next(*until)
            if admitted is None:
                break
            budget -= self._extend(admitted, budget, rows)
        return budget

    def _plan_decodes(self, rows: list[Row]) -> list[Sequence]:
        """Adds a row for each sequence with one token left to compute; returns the others."""
        prefills: list[Sequence] = []
        planned: dict[Hashable, int] | None = None  # where there are several clients
        last: Hashable = None
        count = 0  # rows of the client that came last
        left = min(self._config.token_budget, self._config.max_rows)
        next_slot = self._tables.next_slot
        for sequence in self._running.sequences[:]:  # a preemption changes the list
            if len(sequence.tokens) - sequence.computed != 1:
                prefills.append(sequence)
            elif left and sequence.state is SequenceState.RUNNING:
                row = next_slot(sequence)
                if row is not None:
                    rows.append(row)
                    client = sequence.group.client
                    if client != last:  # neighbours mostly have the same one
                        if count:
                            planned = {} if planned is None else planned
                            planned[last] = planned.get(last, 0) + count
                        last, count = client, 0
                    count += 1
                    left -= 1
                else:
                    left -= self._extend(sequence, 1, rows)
        if planned is not None:
            planned[last] = planned.get(last, 0) + count
            for client, num_tokens in planned.items():
                self._shares.serve(client, num_tokens)
        elif count:
            self._shares.serve(last, count)
        return prefills

    def prefill_budget(self, num_decodes: int) -> tuple[int, bool]:
        """What is left for prefills beside so many decodes, cut so that the step lasts no longer
        than it may, and whether it is cut for them; at least a page, so that they get on.
        """
        budget, is_bounded = self._config.token_budget - num_decodes, False
        if self._step_seconds is None:
            return budget, False
        if num_decodes and self._step_seconds < inf:
            left, is_bounded = self._costs.tokens_beside(num_decodes, self._step_seconds), True
        else:
            left = self._costs.tokens_alone(ALONE_SECONDS) - num_decodes
        return min(budget, max(self._config.page_size, left)), is_bounded

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
        self._shares.serve(sequence.group.client, count)
        return count
