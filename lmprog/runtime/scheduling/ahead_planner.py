"""The step after one that is still being computed: planned without knowing what that one samples.

Every sequence is expected to go on with one token, which is fed from one step to the next where
they are computed. So only what surely follows is planned: each row is the next token of a row that
samples, or text that a constraint has forced. Nothing is admitted, preempted, entered into the
tree, copied or drafted; where any of that is called for, there is no such step, and the next one is
planned when all tokens are known. What is sampled is never guessed: masks and penalties are
made of known tokens, while the step's forward pass runs.

A sequence may have ended, or have lost its pages, when its row is done. Such a row is not
*current*: it is left out of requests and results, and what it wrote is where nobody reads.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lmprog.runtime.scheduling.generation import Generation
from lmprog.runtime.scheduling.logits_requests import LogitsRequests
from lmprog.runtime.scheduling.plan import Plan, Row
from lmprog.runtime.scheduling.program_admission import Memory
from lmprog.runtime.scheduling.running_sequences import RunningSequences
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
        return CurrentRows(plan, tuple([row.sequence.num_resets for row in plan.rows]))

    def current(self) -> list[int]:
        """The rows whose sequences still want what they bring."""
        found: list[int] = []
        for index, (row, resets) in enumerate(zip(self.plan.rows, self.resets, strict=True)):
            sequence = row[0]
            task = sequence.task
            if sequence.num_resets == resets and isinstance(task, Generation) and not task.finish:
                found.append(index)
        return found

    def only(self, rows: list[int]) -> CurrentRows:
        """These rows; there are no drafts, copies and mirrors beside them."""
        plan, resets = self.plan, self.resets
        kept = replace(plan, rows=tuple([plan.rows[index] for index in rows]))
        return CurrentRows(kept, tuple([resets[index] for index in rows]))


@dataclass(frozen=True, slots=True)
class AheadPlan:
    """A step whose tokens are not all known."""

    rows: CurrentRows
    picks: tuple[int, ...]
    """By row: the sample request of the step before that its token comes from; `KNOWN` for none."""


class AheadPlanner:
    """Plans at most `MOST_IN_TURN` steps ahead."""

    def __init__(self, memory: Memory, running: RunningSequences, waiting: WaitingQueue) -> None:
        self._memory = memory
        self._running = running
        self._waiting = waiting
        self._num_in_turn = 0
        self._num_waiting = 0

    def begin(self) -> None:
        """A step was planned with everything known: who waits now has no place."""
        self._num_in_turn, self._num_waiting = 0, len(self._waiting)

    def after(self, plan: Plan, current: list[int], requests: LogitsRequests) -> AheadPlan | None:
        """The rows after the current ones of `plan`. None: it takes more than that, or there are
        none.
        """
        if plan.drafts or len(current) != len(self._running.sequences) or not self._may_go_on():
            return None
        steps = self._next_tokens(plan.rows, current, requests)
        if not steps or (len(steps) < len(plan.rows) and len(self._waiting)):
            return None  # more than that is needed, or a place has become free
        tables = self._memory.tables
        missing = [tables.pages_after(row, len(tokens)) for row, tokens, _ in steps]
        if not self._has_room(sum(missing), [len(tokens) for _, tokens, _ in steps]):
            return None
        self._num_in_turn += 1
        rows = [
            tables.follow(row, tokens, count)
            for (row, tokens, _), count in zip(steps, missing, strict=True)
        ]
        picks = tuple([pick for _, _, pick in steps])
        return AheadPlan(CurrentRows.of(Plan(tuple(rows))), picks)

    def _next_tokens(
        self, rows: Sequence[Row], current: list[int], requests: LogitsRequests
    ) -> list[tuple[Row, array[int], int]]:
        """Rows that go on, with the tokens after them and the picks these come from. None of them
        where one takes more than a place of its sequence's own.
        """
        size, found = self._memory.config.page_size, []
        for index in current:
            row = rows[index]
            sequence, _, _, end, _, _ = row
            task, tokens = sequence.task, sequence.tokens
            is_own = sequence.shared * size <= end >= sequence.num_tokens_at_enqueue
            if not (is_own and isinstance(task, Generation)) or task.wants_prompt:
                return []
            if end < len(tokens):
                found.append((row, tokens[end:], KNOWN))  # forced
                continue
            pick = requests.sample_of[index]
            if pick is not None and (task.left > 1 or task.is_healing):
                found.append((row, _UNKNOWN, pick))
        return found

    def _may_go_on(self) -> bool:
        """Whether nothing has happened that another plan must look at."""
        memory, num_waiting = self._memory, len(self._waiting)
        if memory.config.speculation == "always" or self._num_in_turn >= MOST_IN_TURN:
            return False
        if not num_waiting:
            return True
        is_loading = memory.tier is not None and bool(memory.tier.pages_held())
        return num_waiting == self._num_waiting and not is_loading

    def _has_room(self, num_pages: int, lens: list[int]) -> bool:
        """Whether budget and pages suffice; pages that nobody uses are freed for it."""
        memory = self._memory
        config = memory.config
        if sum(lens) > config.token_budget or max(lens) > (config.max_chunk or max(lens)):
            return False
        missing = num_pages - memory.pages.num_free
        if missing <= 0:
            return True
        freed = memory.tree.evict(missing)
        memory.stats.evicted_pages += freed
        return freed >= missing
