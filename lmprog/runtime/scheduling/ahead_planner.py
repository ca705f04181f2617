"""The step after one that is still being computed: planned without knowing what that one samples.

Every sequence is expected to go on with one token, which is fed from one step to the next where
they are computed, or with tokens that are known: more of a prompt, of an option that is scored, or
text that a constraint has forced. Nothing is admitted, preempted, copied or drafted, and nothing
enters the tree; where any of that is called for, there is no such step, and the next one is planned
when all tokens are known. What is sampled is never guessed: masks and penalties are made of known
tokens, while the step's forward pass runs.

A sequence may have ended, or have lost its pages, when its row is done. Such a row is not
*current*: it is left out of requests and results, and what it wrote is where nobody reads.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from lmprog.runtime.scheduling.admission import Memory, RunningSequences
from lmprog.runtime.scheduling.generation import Generation
from lmprog.runtime.scheduling.logits_requests import LogitsRequests
from lmprog.runtime.scheduling.plan import Plan, Row
from lmprog.runtime.scheduling.step_planner import StepPlanner
from lmprog.runtime.scheduling.waiting_queue import WaitingQueue

MOST_IN_TURN = 16
"""Steps planned ahead, one after the other. Then one is planned with everything known, which looks
at all that these leave out: drafts, programs that are over, pages that are back from a second tier.
"""
KNOWN = -1
_UNKNOWN = array("i", [0])


@dataclass(frozen=True, slots=True)
class CurrentRows:
    """A plan, and which lives of its sequences its rows are of."""

    plan: Plan
    resets: tuple[int, ...]
    """By row: how often its sequence had given its pages up."""

    @staticmethod
    def of(plan: Plan) -> CurrentRows:
        return CurrentRows(plan, tuple([row[0].num_resets for row in plan.rows]))

    def current(self) -> list[int]:
        """The rows whose sequences still want what they bring."""
        found: list[int] = []
        for index, (row, resets) in enumerate(zip(self.plan.rows, self.resets, strict=True)):
            sequence = row[0]
            task = sequence.task
            is_over = isinstance(task, Generation) and task.finish is not None
            if sequence.num_resets == resets and not is_over:
                found.append(index)
        return found

    def only(self, rows: list[int]) -> CurrentRows:
        """These rows; there are no drafts, copies and mirrors beside them."""
        plan, resets = self.plan, self.resets
        kept = replace(plan, rows=tuple([plan.rows[index] for index in rows]))
        return CurrentRows(kept, tuple([resets[index] for index in rows]))

    def logits_of(self, rows: list[int]) -> list[int]:
        """The numbers of these rows' logits among those of all rows."""
        found: list[int] = []
        first, wanted = 0, set(rows)
        for index, row in enumerate(self.plan.rows):
            if index in wanted:
                found += range(first, first + row.num_logits)
            first += row.num_logits
        return found


@dataclass(frozen=True, slots=True)
class AheadPlan:
    """A step whose tokens are not all known."""

    rows: CurrentRows
    picks: tuple[int, ...]
    """By row: the sample request of the step before that its token comes from; `KNOWN` for none."""


class _Next(NamedTuple):
    """What comes after a row."""

    row: Row
    tokens: array[int]
    pick: int


class AheadPlanner:
    """Plans at most `MOST_IN_TURN` steps ahead."""

    def __init__(
        self,
        memory: Memory,
        running: RunningSequences,
        waiting: WaitingQueue,
        planner: StepPlanner,
    ) -> None:
        self._memory = memory
        self._running = running
        self._waiting = waiting
        self._planner = planner
        self._num_in_turn = 0
        self._num_waiting = 0
        self._is_full = False

    def begin(self, *, is_full: bool) -> None:
        """A step was planned with everything known: who waits now has no place; or was not asked,
        where the step `is_full`.
        """
        self._num_in_turn, self._num_waiting = 0, len(self._waiting)
        self._is_full = is_full

    def after(self, plan: Plan, current: list[int], requests: LogitsRequests) -> AheadPlan | None:
        """The rows after the current ones of `plan`. None: it takes more than that, or there are
        none.
        """
        if plan.drafts or len(current) != len(self._running.sequences) or not self._may_go_on():
            return None
        steps = self._next_tokens(plan.rows, current, requests)
        if not steps or (len(steps) < len(plan.rows) and len(self._waiting)):
            return None  # more than that is needed, or a place has become free
        tables, is_bounded = self._memory.tables, False
        if self._is_full or max([len(one.tokens) for one in steps]) > 1:
            cut = self._cut(steps)
            if cut is None:
                return None
            steps, is_bounded = cut
        missing = [tables.pages_after(row, len(tokens)) for row, tokens, _ in steps]
        if not self._has_room(sum(missing)):
            return None
        self._num_in_turn += 1
        rows = [
            tables.follow(row, tokens, count)
            for (row, tokens, _), count in zip(steps, missing, strict=True)
        ]
        picks = tuple([pick for _, _, pick in steps])
        return AheadPlan(CurrentRows.of(Plan(tuple(rows), is_bounded=is_bounded)), picks)

    def _next_tokens(
        self, rows: Sequence[Row], current: list[int], requests: LogitsRequests
    ) -> list[_Next]:
        """What comes after the rows that go on. Nothing where one of them takes more than a place
        of its sequence's own.
        """
        tables, found = self._memory.tables, []
        for index in current:
            row = rows[index]
            sequence, _, _, end, _, _ = row
            task, tokens = sequence.task, sequence.tokens
            if end < len(tokens):
                one = _Next(row, tokens[end:], KNOWN)
            else:
                pick = requests.sample_of[index]
                if pick is None or not isinstance(task, Generation):
                    continue
                if task.left <= 1 and not task.is_healing:
                    continue
                one = _Next(row, _UNKNOWN, pick)
            if isinstance(task, Generation) and task.wants_prompt:
                return []
            if not tables.may_follow(row) or tables.is_known_beyond(row):
                return []
            found.append(one)
        return found

    def _cut(self, steps: list[_Next]) -> tuple[list[_Next], bool] | None:
        """As much of what is known as the budget allows, and whether that is cut for time. None
        where not all rows have something, or somebody who was not asked may have a place.
        """
        most = self._memory.config.max_chunk
        num_decodes = sum([len(one.tokens) == 1 for one in steps])
        budget, is_bounded = self._planner.prefill_budget(num_decodes)
        found: list[_Next] = []
        for row, tokens, pick in steps:
            count = 1 if len(tokens) == 1 else min(len(tokens), budget, most or budget)
            if count <= 0:
                return None
            budget -= count if len(tokens) > 1 else 0
            found.append(_Next(row, tokens[:count], pick))
        if budget and self._is_full and len(self._waiting):
            return None
        return found, is_bounded

    def _may_go_on(self) -> bool:
        """Whether nothing has happened that another plan must look at."""
        memory, num_waiting = self._memory, len(self._waiting)
        if memory.config.speculation == "always" or self._num_in_turn >= MOST_IN_TURN:
            return False
        if not num_waiting:
            return True
        is_loading = memory.tier is not None and bool(memory.tier.pages_held())
        return num_waiting == self._num_waiting and not is_loading

    def _has_room(self, num_pages: int) -> bool:
        """Whether there are so many pages; those that nobody uses are freed for it."""
        memory = self._memory
        missing = num_pages - memory.pages.num_free
        if missing <= 0:
            return True
        freed = memory.tree.evict(missing)
        memory.stats.evicted_pages += freed
        return freed >= missing
