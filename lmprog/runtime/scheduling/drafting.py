"""Drafts in the rows of a plan: where they are worth it, in what memory, and what became of them.

A drafted row is a row like any other, with more tokens and the logits of several. It takes only
what other rows leave: of the token budget, and of pages that are free or that nobody uses. Knows
rows, pages and measured worth; what is guessed is `drafts`' matter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Rows
from functools import partial

from lmprog.runtime.scheduling.admission import Memory
from lmprog.runtime.scheduling.draft_worth import (
    MOST,
    SHORTEST,
    WRITTEN,
    DraftAccounts,
    DraftChances,
    DraftCosts,
    DraftRecord,
    StepKind,
    Worth,
)
from lmprog.runtime.scheduling.drafts import (
    DraftModel,
    DraftSource,
    GrowingDraft,
    GuessWorth,
    continuation,
    draft,
)
from lmprog.runtime.scheduling.generation import Generation
from lmprog.runtime.scheduling.plan import Plan, Row, RowDraft
from lmprog.runtime.scheduling.sequence import Sequence

log = logging.getLogger("lmprog")

UNWATCHED = 9
"""While drafting pauses, so many steps are passed over before the next one that is measured."""


class Drafting:
    """Adds drafts to the rows of a step, and takes back what was not right."""

    def __init__(
        self, memory: Memory, clock: Callable[[], float], source: DraftSource = continuation
    ) -> None:
        self._memory = memory
        self._mode = memory.config.speculation
        self._clock = clock
        self.source = source
        self.model: DraftModel | None = None
        """What drafts in place of the source, where there is one."""
        self.costs = DraftCosts()
        self.chances = DraftChances()
        self.accounts = DraftAccounts()
        self._least = 0.0
        """The chance from which on a token is drafted in this step."""
        self._most_each = MOST
        """Tokens that may be drafted for each row of it."""
        self._looked = 0.0
        """Seconds that it took to look for drafts of this step."""
        self._num_unwatched = 0
        """Steps before the next one of which anything is noted."""
        self._is_watched = self._mode == "auto"

    def add(self, rows: list[Row], budget: int) -> dict[int, RowDraft]:
        """Lengthens rows by drafts of at most `budget` tokens in all; returns these by row."""
        if not rows:
            return {}
        began = self._clock()
        if self._mode == "auto":
            self._is_watched = not self._num_unwatched
            if not self._is_watched:
                self._num_unwatched -= 1
                return {}
        tasks: dict[int, Generation] = {}
        for index, row in enumerate(rows):
            task = row.sequence.task
            if isinstance(task, Generation) and self._may_follow(row, task):
                tasks[index] = task
        if not tasks or (self._mode == "auto" and not self._may_draft(rows)):
            return {}
        if self.model is None:
            drafted = self._guessed(rows, tasks, budget)
        else:
            drafted = self._written(self.model, rows, tasks, budget)
        found: dict[int, RowDraft] = {}
        for index, one in drafted.items():
            if self._has_pages(rows[index], one):
                rows[index] = self._memory.tables.lengthen(rows[index], one.tokens)
                found[index] = one
        self._looked = self._clock() - began
        return found

    def _may_draft(self, rows: list[Row]) -> bool:
        """Whether drafts may pay in a step of these rows. Beside prompts, which take any time,
        they are not judged, so there only where they have paid.
        """
        kind = decoding_kind(rows)
        has_prompts = kind is None
        if kind is None:
            kind = StepKind(len(rows), all(row.sequence.task.is_plain for row in rows))
        if not self.accounts.may_draft(kind, has_prompts) or self.costs.usual(kind) is None:
            self._num_unwatched = 0 if self.accounts.is_open(kind) else UNWATCHED
            return False
        ratio = self.costs.ratio(kind)
        self._least = ratio / self.accounts.saved_by_one(kind)
        self._most_each = self.accounts.most_each(kind, ratio)
        return True

    def _guessed(
        self, rows: list[Row], tasks: Mapping[int, Generation], budget: int
    ) -> dict[int, RowDraft]:
        """By row: what the source guesses after it, where that is worth a draft."""
        found: dict[int, RowDraft] = {}
        worth: dict[bool, Worth] = {}
        for index, task in tasks.items():
            row, is_plain = rows[index], task.is_plain
            sequence = row.sequence
            if is_plain not in worth:
                worth[is_plain] = self._worth(is_plain)
            least, asks, best = worth[is_plain]
            asks = asks and _samples_forced(task)
            if budget <= 0 or not (least or asks) or not self._may_be_right(sequence, best):
                continue
            most = partial(self._most, sequence, is_plain)
            asked = GuessWorth(least, asks, most)
            drafted = draft(sequence.tokens, task, self._room(row, budget), self.source, asked)
            if drafted is not None:
                found[index] = drafted
                budget -= len(drafted.tokens)
        return found

    def _written(
        self, model: DraftModel, rows: list[Row], tasks: Mapping[int, Generation], budget: int
    ) -> dict[int, RowDraft]:
        """By row: what `model` drafts after it, all of it at once. A model that fails is not asked
        again.
        """
        growing: dict[int, GrowingDraft] = {}
        for index, task in tasks.items():
            row = rows[index]
            if self._may_be_right(row.sequence, self.chances.of(task.is_plain, WRITTEN)):
                most = self._most(row.sequence, task.is_plain, WRITTEN)
                room = self._room(row, budget // len(tasks))
                growing[index] = GrowingDraft(row, task, min(most, task.left - 1, room), room)
        try:
            model.extend(list(growing.values()))
        except Exception:  # texts need no drafts
            log.exception("the draft model failed; it is not used any more")
            self.model = None
            return {}
        whole = {index: one.whole() for index, one in growing.items()}
        return {index: drafted for index, drafted in whole.items() if drafted is not None}

    def _worth(self, is_plain: bool) -> Worth:
        """What is worth a draft, of requests that are plain or not."""
        if self._mode == "always":
            return Worth(SHORTEST, True, 1.0)
        return self.chances.worth(is_plain, self._least)

    def _may_be_right(self, sequence: Sequence, chance: float) -> bool:
        """Whether the sequence's own drafts were right often enough."""
        record = sequence.drafts
        factor = 1.0 if record is None else record.factor
        if self._mode == "always" or factor * chance >= self._least:
            return True
        if record is not None:
            record.forget()
        return False

    def _most(self, sequence: Sequence, is_plain: bool, evidence: int) -> int:
        """How many tokens of a guess are worth a draft."""
        if self._mode == "always":
            return MOST
        factor = 1.0 if sequence.drafts is None else sequence.drafts.factor
        num_worth = self.chances.num_worth(is_plain, evidence, self._least, factor)
        return min(self._most_each, num_worth)

    def _room(self, row: Row, budget: int) -> int:
        """How many tokens may be added to `row`."""
        chunk = self._memory.config.max_chunk
        return min(budget, chunk - row.num_tokens if chunk else budget)

    def committed(self, plan: Plan, accepted: Mapping[int, int], began: float) -> None:
        """The results of a step that began then are applied."""
        if plan.drafts:
            self.settle(plan, accepted)
        self.observe(plan, accepted, self._clock() - began)

    def observe(self, plan: Plan, accepted: Mapping[int, int], seconds: float) -> None:
        """A step lasted so long, in which so many drafted tokens of these rows were right. Steps
        that read prompts or forced text, which take any time, tell nothing of drafts.
        """
        looked, self._looked = self._looked, 0.0
        kind = decoding_kind(plan.rows) if self._is_watched and plan.rows else None
        if kind is None:
            return
        costs, drafts = self.costs, plan.drafts
        num_drafted = sum([len(one.tokens) for one in drafts.values()]) if drafts else 0
        usual, has_forced = costs.usual(kind), plan.num_tokens > kind.num_rows + num_drafted
        if not num_drafted:
            lost = looked / usual if usual else 0.0
            self.accounts.credit(kind, lost, 1 + self._num_unwatched)
            if not has_forced:
                costs.observe_plain(kind, seconds - looked)
        elif usual is not None and not has_forced:
            num_steps = costs.observe(kind, num_drafted, seconds - looked) + looked / usual
            paces = [
                _record(row.sequence).see_step(accepted.get(index, 0))
                for index, row in enumerate(plan.rows)
            ]
            self.accounts.see_paces(kind, paces)
            self.accounts.book(kind, sum(accepted.values()), num_steps)

    def settle(self, plan: Plan, accepted: Mapping[int, int]) -> None:
        """The first `accepted` drafted tokens of these rows were right; what was computed of the
        others is not the sequence's.
        """
        stats = self._memory.stats
        for index, drafted in plan.drafts.items():
            sequence, num_right = plan.rows[index].sequence, accepted.get(index, 0)
            num_wrong = sum(drafted.lengths[num_right:])
            sequence.computed -= num_wrong
            num_drafted = len(drafted.lengths)
            expected = self.chances.learn(
                sequence.task.is_plain, drafted.evidence, num_right, num_drafted
            )
            _record(sequence).learn(expected, num_right, num_drafted)
            self._memory.tables.give_back(sequence)
            group = sequence.group
            group.computed -= num_wrong
            group.drafted += num_drafted
            group.accepted += num_right
            stats.drafted_tokens += num_drafted
            stats.accepted_tokens += num_right

    def _may_follow(self, row: Row, task: Generation) -> bool:
        """Whether `row` samples what need not end the text, in pages of the sequence's own."""
        sequence = row.sequence
        return (
            row.end - row.logits_from == 1
            and row.end == len(sequence.tokens)
            and task.left > 1
            and not task.is_healing
            and sequence.shared * self._memory.config.page_size <= row.start
        )

    def _has_pages(self, row: Row, drafted: RowDraft) -> bool:
        """Frees pages that nobody uses, where they are needed for the draft."""
        memory = self._memory
        needed = memory.tables.pages_after(row, len(drafted.tokens))
        if needed > memory.pages.num_free:
            memory.stats.evicted_pages += memory.tree.evict(needed - memory.pages.num_free)
        return needed <= memory.pages.num_free


def _record(sequence: Sequence) -> DraftRecord:
    """What became of the sequence's drafts."""
    if sequence.drafts is None:
        sequence.drafts = DraftRecord()
    return sequence.drafts


def _samples_forced(task: Generation) -> bool:
    """Whether what its constraint forces is sampled all the same."""
    return task.settings.forcing is not None and task.settings.jump is None


def decoding_kind(rows: Rows[Row]) -> StepKind | None:
    """The kind of a step of these rows; None where one reads a prompt. Runs in each step."""
    is_plain = True
    for row in rows:
        sequence = row[0]
        if row[2] < sequence.num_tokens_at_enqueue - 1:
            return None
        if not sequence.task.is_plain:
            is_plain = False
    return StepKind(len(rows), is_plain)
