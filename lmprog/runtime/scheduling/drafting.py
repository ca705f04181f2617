"""Drafts in the rows of a plan: where they are worth it, in what memory, and what became of them.

A drafted row is a row like any other, with more tokens and the logits of several. It takes only
what other rows leave: of the token budget, and of pages that are free or that nobody uses. Knows
rows, pages and measured worth; what is guessed is `drafts`' matter.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from lmprog.runtime.scheduling.draft_worth import (
    AT_FIRST,
    FORGOTTEN,
    DraftCosts,
    DraftTrials,
    after_draft,
    most_worth,
)
from lmprog.runtime.scheduling.drafts import DraftSource, RowDraft, draft
from lmprog.runtime.scheduling.generation import Generation
from lmprog.runtime.scheduling.growing_drafts import DraftModel, GrowingDraft
from lmprog.runtime.scheduling.plan import Plan, Row
from lmprog.runtime.scheduling.program_admission import Memory
from lmprog.runtime.scheduling.prompt_lookup import continuation

log = logging.getLogger("lmprog")


class Drafting:
    """Adds drafts to the rows of a step, and takes back what was not right."""

    def __init__(self, memory: Memory, source: DraftSource = continuation) -> None:
        self._memory = memory
        self._mode = memory.config.speculation
        self.source = source
        self.model: DraftModel | None = None
        """What drafts in place of the source, where there is one."""
        self.costs = DraftCosts()
        self.trials = DraftTrials()
        self._has_looked = False
        """Drafts were looked for in the step that is under way."""

    def add(self, rows: list[Row], budget: int) -> dict[int, RowDraft]:
        """Lengthens rows by drafts of at most `budget` tokens in all; returns these by row."""
        found: dict[int, RowDraft] = {}
        self._has_looked = False
        if self._mode == "off" or not rows:
            return found
        least = 0.0
        if self._mode == "auto":
            may_look = self.trials.may_look(len(rows))
            if not may_look or self.costs.needs_plain(len(rows)):
                return found
            least = self.costs.ratio(len(rows))
        worth: dict[int, int] = {}
        for index, row in enumerate(rows):
            sequence, _, _, end, _, logits_from = row
            if end - logits_from != 1:
                continue
            if sequence.acceptance < least:
                sequence.acceptance += (AT_FIRST - sequence.acceptance) * FORGOTTEN
                continue
            worth[index] = most_worth(sequence.acceptance, least)
        self._has_looked = bool(worth)
        written = {} if self.model is None else self._written(self.model, rows, worth, budget)
        for index, most in worth.items():
            row = rows[index]
            drafted = self._draft(row, most, budget) if self.model is None else written.get(index)
            if drafted is not None and self._has_pages(row, drafted):
                rows[index] = self._memory.tables.lengthen(row, drafted.tokens)
                found[index] = drafted
                budget -= len(drafted.tokens)
        return found

    def _written(
        self, model: DraftModel, rows: list[Row], worth: Mapping[int, int], budget: int
    ) -> dict[int, RowDraft]:
        """By row: what `model` drafts after it, all of it at once. A model that fails is not asked
        again.
        """
        growing: dict[int, GrowingDraft] = {}
        for index, most in worth.items():
            row, task = rows[index], rows[index].sequence.task
            if isinstance(task, Generation) and self._may_follow(row, task):
                room = self._room(row, budget // len(worth))
                growing[index] = GrowingDraft(row, task, min(most, task.left - 1, room), room)
        try:
            model.extend(list(growing.values()))
        except Exception:  # texts need no drafts
            log.exception("the draft model failed; it is not used any more")
            self.model = None
            return {}
        whole = {index: one.whole() for index, one in growing.items()}
        return {index: drafted for index, drafted in whole.items() if drafted is not None}

    def _room(self, row: Row, budget: int) -> int:
        """How many tokens may be added to `row`."""
        chunk = self._memory.config.max_chunk
        return min(budget, chunk - row.num_tokens if chunk else budget)

    def observe(self, plan: Plan, num_accepted: int, seconds: float) -> None:
        """A step lasted so long, in which so many drafted tokens were right. Steps that read
        prompts tell nothing of drafts, and those with forced tokens not what a drafted one costs.
        """
        num_rows, has_looked, self._has_looked = len(plan.rows), self._has_looked, False
        if self._mode != "auto" or not num_rows or any(map(_reads_prompt, plan.rows)):
            return
        num_drafted = sum(len(one.tokens) for one in plan.drafts.values())
        if has_looked:
            self.trials.observe(num_rows, num_rows + num_accepted, seconds, num_drafted)
        else:
            self.trials.observe_plain(num_rows, seconds)
        is_plain = plan.num_tokens - num_drafted == num_rows
        if is_plain and (num_drafted or not has_looked):
            self.costs.observe(num_rows, num_drafted, seconds)

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
            sequence.acceptance = after_draft(sequence.acceptance, num_right, num_drafted)
            self._memory.tables.give_back(sequence)
            group = sequence.group
            group.computed -= num_wrong
            group.drafted += num_drafted
            group.accepted += num_right
            stats.drafted_tokens += num_drafted
            stats.accepted_tokens += num_right

    def _draft(self, row: Row, most: int, budget: int) -> RowDraft | None:
        """A draft after `row` of at most `most` sampled tokens, and `budget` in all."""
        sequence, task = row.sequence, row.sequence.task
        if not isinstance(task, Generation) or not self._may_follow(row, task):
            return None
        if budget <= 0:
            return None
        room = self._room(row, budget)
        return draft(sequence.tokens, task, min(most, task.left - 1), room, self.source)

    def _may_follow(self, row: Row, task: Generation) -> bool:
        """Whether `row` samples what need not end the text, in pages of the sequence's own."""
        sequence = row.sequence
        return (
            row.end == len(sequence.tokens)
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


def _reads_prompt(row: Row) -> bool:
    return row.start < row.sequence.num_tokens_at_enqueue - 1
