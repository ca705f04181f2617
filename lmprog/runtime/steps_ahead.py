"""Steps computed one ahead: the next one is planned and begun while one is being computed.

Where forward pass and samples are only begun by a call and awaited by another, as on a device, what
one step brought is delivered while the next one is computed. The texts are the same as without.

A step ahead is planned without knowing what the one under way samples. Every sequence is expected
to go on with one token, which is fed from one step to the next where they are computed, or with
tokens that are known: more of a prompt, of an option that is scored, or text that a constraint has
forced. Nothing is admitted, preempted, copied or drafted, and nothing enters the tree; where any of
that is called for, there is no such step, and the next one is planned when all tokens are known.
What is sampled is never guessed: masks and penalties are made of known tokens, while the step's
forward pass runs.

A sequence may have ended, or have lost its pages, when its row is done. Such a row is not
*current*: it is left out of requests and results, and what it wrote is where nobody reads.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from lmprog.runtime.scheduling.batch import Batch, PagesFull
from lmprog.runtime.scheduling.generation import Generation
from lmprog.runtime.scheduling.logits_requests import LogitsRequests, Progress, collect_requests
from lmprog.runtime.scheduling.plan import Plan, Row
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.steps import (
    FAILED,
    TRIED,
    AheadEngine,
    AheadSampler,
    AwaitedResults,
    BatchMaker,
    StepFailures,
    forward_known,
    step_without_memory,
)

log = logging.getLogger("lmprog")

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


def may_sample(row: Row) -> bool:
    """Whether the row ends before what is sampled, or its mask is at hand. Else it is computed
    again once it is.
    """
    task = row.sequence.task
    return task.is_plain or row.end < len(row.sequence.tokens) or task.is_ready()


class AheadPlanner:
    """Plans at most `MOST_IN_TURN` steps ahead."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._memory = scheduler.memory
        self._waiting = scheduler.waiting
        self._num_in_turn = 0
        self._num_waiting = 0
        self._is_full = False

        scheduler.hooks.planned.append(self._begin)

    def _begin(self, _: Plan, budget: int) -> None:
        """A step was planned with everything known: who waits now has no place; or was not asked,
        where nothing of the budget is left.
        """
        self._num_in_turn, self._num_waiting = 0, len(self._waiting)
        self._is_full = not budget

    def after(self, plan: Plan, current: list[int], requests: LogitsRequests) -> AheadPlan | None:
        """The step after `plan`, which is being computed, for its `current` rows. None where it
        takes more than that, or there are none. `plan` is committed first.
        """
        ahead = self._after(plan, current, requests)
        if ahead is not None:
            self._scheduler.go_ahead(ahead.rows.plan)
        return ahead

    def _after(self, plan: Plan, current: list[int], requests: LogitsRequests) -> AheadPlan | None:
        if plan.drafts or len(current) != len(self._scheduler.running) or not self._may_go_on():
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
        parts = self._scheduler.planner.bill_of(rows).parts()
        plan = Plan(tuple(rows), is_bounded=is_bounded, parts=parts)
        return AheadPlan(CurrentRows.of(plan), picks)

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
        budget, is_bounded = self._scheduler.planner.prefill_budget(num_decodes)
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


@dataclass(frozen=True, slots=True)
class BegunStep:
    """A step whose results are awaited."""

    rows: CurrentRows
    requests: LogitsRequests
    results: AwaitedResults


class StepsAhead:
    """A turn ends a step when the next one has begun."""

    def __init__(
        self,
        scheduler: Scheduler,
        engine: AheadEngine,
        sampler: AheadSampler,
        batches: BatchMaker,
    ) -> None:
        self._scheduler = scheduler
        self._planner = AheadPlanner(scheduler)
        self.batches = batches
        self._engine = engine
        self._sampler = sampler
        self._begun: BegunStep | None = None
        self._failures = StepFailures(scheduler, engine, self._try)
        self.is_busy = False
        self.num_ahead = 0
        """Steps that were begun before the tokens of the step before were known."""

    def turn(self) -> list[Progress]:
        step, self._begun = self._begun, None
        current = [] if step is None else step.rows.current()
        if step is None or not current:  # what is computed for nobody is not awaited
            plan = self._scheduler.plan()
            self.is_busy = bool(plan.rows)
            if not plan.rows:
                return []
            current = list(range(len(plan.rows)))
            try:
                logits = forward_known(self._scheduler, self._engine, self.batches(plan))
                step = self._sampled(CurrentRows.of(plan), logits)
            except PagesFull as error:
                return step_without_memory(self._scheduler, plan, error)
            except Exception as error:  # one step may fail; the runtime goes on
                log.exception(FAILED)
                return self._failures.take(plan, error)
        plan, requests, logits = step.rows.plan, step.requests, None
        try:
            ahead = self._planner.after(plan, current, requests)
            if ahead is not None:
                try:
                    logits = self._forward_ahead(ahead, step)
                except PagesFull:  # the next step is planned when this one's tokens are known
                    ahead = None
            results = step.results.wait()
        except Exception as error:
            log.exception(FAILED)
            return self._failures.take(step.rows.only(current).plan, error)
        self._failures.in_a_row = 0
        if len(current) < len(plan.rows):
            plan, requests = step.rows.only(current).plan, requests.only(current)
        progress = self._scheduler.commit(plan, requests, results)
        if ahead is not None:
            progress += self._go_on(ahead.rows, logits)
        return progress

    def _forward_ahead(self, ahead: AheadPlan, before: BegunStep) -> Any:
        batch = self.batches(ahead.rows.plan)
        logits = self._engine.forward_after(batch, before.results, ahead.picks)
        self.num_ahead += 1
        return logits

    def _go_on(self, rows: CurrentRows, logits: Any) -> list[Progress]:
        """What is sampled next is asked for, now that all tokens before it are known."""
        current, logit_of = rows.current(), None
        current = [row for row in current if may_sample(rows.plan.rows[row])]
        if not current:
            return []
        if len(current) < len(rows.plan.rows):
            logit_of, rows = rows.logits_of(current), rows.only(current)
        try:
            self._begun = self._sampled(rows, logits, logit_of)
        except Exception as error:
            log.exception(FAILED)
            return self._failures.take(rows.plan, error)
        return []

    def _sampled(
        self, rows: CurrentRows, logits: Any, logit_of: Sequence[int] | None = None
    ) -> BegunStep:
        """`logit_of`: where the logits of these rows are among those of the step; None: in order,
        and there are no others.
        """
        requests = collect_requests(rows.plan)
        if logit_of is not None:
            requests = requests.moved(logit_of)
        results = self._sampler.begin(logits, requests.samples, requests.scores)
        return BegunStep(rows, requests, results)

    def _try(self, batch: Batch) -> None:
        """A step outside of the schedule."""
        self._sampler.begin(self._engine.forward(batch), TRIED, ()).wait()
