"""What a step sends to the device: a batch and its plans of attention items as named arrays.

The plans of consecutive steps are patched while the same rows decode. From one such step to the
next each row has one position more. Its last item reads on, or ends with its chunk, and a new item
begins there; page tables may have grown by a page, which moves where tables begin. All else stands.
Whether a batch goes on so is seen from its arrays alone, so nobody has to say; a batch that does
not is planned anew. Knows numpy and batches; knows no kernels and no memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lmprog.runtime.engine.device.items import (
    ITEM_WORDS,
    AttentionItems,
    Tiling,
    exceeds,
    plan_items,
)
from lmprog.runtime.engine.device.kernels import NUM_COUNTS, Count
from lmprog.runtime.scheduling.batch import Batch, Ints

Arrays = dict[str, NDArray[np.int32]]


@dataclass(frozen=True, slots=True)
class StepRules:
    """What decides a step's plans. `windows` are the different ones of the model's layers; none
    where something else than our kernels reads the pages, which need no plan then.
    """

    tiling: Tiling
    windows: tuple[int | None, ...]
    most_parts: int
    """Those of sinks not counted."""
    has_sinks: bool = False


class StepPlans:
    """The plans of one step after the other, a list of one for each window."""

    def __init__(self, rules: StepRules) -> None:
        self._plans = [ItemPlans(rules, window) for window in rules.windows]

    def of(self, batch: Batch) -> list[AttentionItems]:
        return [plans.of(batch) for plans in self._plans]


def step_arrays(batch: Batch, plans: list[AttentionItems]) -> Arrays:
    """Small arrays first; those that grow with contexts last. Arrays of window number w end in
    w.
    """
    arrays: Arrays = {
        "tokens": batch.tokens,
        "positions": batch.positions,
        "write_tokens": batch.write_tokens,
        "write_slots": batch.write_slots,
        "logit_tokens": batch.logit_tokens,
    }
    if not plans:
        arrays["counts0"] = _counts(batch, None)
        return arrays
    for number, plan in enumerate(plans):
        arrays[f"counts{number}"] = _counts(batch, plan)
        arrays[f"part_starts{number}"] = plan.part_starts
        arrays[f"first_parts{number}"] = plan.first_parts
    for number, plan in enumerate(plans):
        arrays[f"small{number}"] = plan.small
        arrays[f"large{number}"] = plan.large
        arrays[f"queries{number}"] = plan.queries
    arrays["pages"] = batch.pages
    return arrays


def _counts(batch: Batch, plan: AttentionItems | None) -> NDArray[np.int32]:
    counts = np.zeros(NUM_COUNTS, np.int32)
    counts[Count.TOKENS] = batch.num_tokens
    counts[Count.WRITES] = len(batch.write_tokens)
    if plan is not None:
        counts[Count.SMALL_ITEMS] = len(plan.small)
        counts[Count.LARGE_ITEMS] = len(plan.large)
    counts[Count.LOGITS] = len(batch.logit_tokens)
    return counts


# --- plans of consecutive steps -------------------------------------------------------------------

_PAGES, _START, _END, _QUERY, _COUNT, _ORDINAL, _BEGIN, _IS_MASKED = range(ITEM_WORDS)
"""Words of an item, as in `struct Item`."""
_Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _DecodePlan:
    """A plan of a step in which each row has one token, and what the next step's needs of it."""

    items: AttentionItems
    small_rows: _Longs  # [S]: a row on whose page table the item reads
    large_rows: _Longs  # [L]
    last: _Longs  # [R]: the small item in which the row's newest position lies


class ItemPlans:
    """For one window of the model's layers. One batch after the other."""

    def __init__(self, rules: StepRules, window: int | None) -> None:
        self._rules = rules
        self._window = window
        self._batch: Batch | None = None
        self._plan: _DecodePlan | None = None
        self.num_patched = 0
        """Plans that were patched, not made anew."""

    def of(self, batch: Batch) -> AttentionItems:
        """The items of `batch`, as `plan_items` makes them, but perhaps in another order."""
        before, plan = self._batch, self._plan
        self._batch = batch
        if before is not None and plan is not None and self._goes_on(before, batch, plan.items):
            self._plan = plan = _patched(plan, batch)
            self.num_patched += 1
            return plan.items
        rules = self._rules
        items = plan_items(batch, rules.tiling, self._window, rules.most_parts, rules.has_sinks)
        self._plan = _decode_plan(batch, items)
        return items

    def _goes_on(self, before: Batch, batch: Batch, items: AttentionItems) -> bool:
        """Whether each row decodes one token more on its page table, and sees all before it."""
        if not goes_on(before, batch):
            return False
        if self._window is not None and int(batch.kv_lens.max()) > self._window:
            return False
        lowest = np.zeros(batch.num_tokens, np.int64)
        return not exceeds(batch, lowest, items.chunk, self._rules.most_parts)


def goes_on(before: Batch, batch: Batch) -> bool:
    """Whether each row decodes one token more, and its page table is what it was, with at most one
    page more that no other has got.
    """
    if batch.num_rows != before.num_rows or batch.num_tokens != batch.num_rows:
        return False
    if not np.array_equal(batch.kv_lens, before.kv_lens + np.int32(1)):
        return False
    if len(batch.pages) == len(before.pages):
        return np.array_equal(batch.page_starts, before.page_starts) and np.array_equal(
            batch.pages, before.pages
        )
    grown = np.diff(batch.page_starts) - np.diff(before.page_starts)
    if int(grown.min()) < 0 or int(grown.max()) > 1:
        return False
    new = batch.page_starts[1:][grown == 1] - 1
    pages = batch.pages[new]
    return len(np.unique(pages)) == len(pages) and np.array_equal(
        np.delete(batch.pages, new), before.pages
    )


def _decode_plan(batch: Batch, items: AttentionItems) -> _DecodePlan | None:
    """None where the next step's plan cannot be made of this one."""
    if batch.num_tokens != batch.num_rows or not batch.num_rows:
        return None
    small, large = items.small, items.large
    if small[:, _IS_MASKED].any() or large[:, _IS_MASKED].any():
        return None
    query = items.queries[small[:, _QUERY]]  # a token, and so a row
    newest = (small[:, _COUNT] == 1) & (small[:, _END] == batch.kv_lens[query])
    at = np.flatnonzero(newest)
    last = np.full(batch.num_rows, -1, np.int64)
    last[query[at]] = at
    if len(at) != batch.num_rows or int(last.min()) < 0:
        return None
    starts = batch.page_starts[:-1]
    small_rows, large_rows = (
        np.searchsorted(starts, part[:, _PAGES], "right") - 1 for part in (small, large)
    )
    return _DecodePlan(items, small_rows, large_rows, last)


def _patched(plan: _DecodePlan, batch: Batch) -> _DecodePlan:
    """The plan of the next step, which `batch` is."""
    items, last, starts = plan.items, plan.last, batch.page_starts[:-1]
    small, large = items.small.copy(), items.large.copy()
    small_rows, part_starts = plan.small_rows, items.part_starts
    small[last, _END] = batch.kv_lens
    begun = np.flatnonzero(batch.positions % items.chunk == 0)
    if len(begun):
        old = last[begun]
        small[old, _END] = batch.positions[begun]
        more = _begun(small[old], batch.positions[begun])
        last = last.copy()
        last[begun] = np.arange(len(small), len(small) + len(begun))
        small = np.concatenate((small, more))
        small_rows = np.concatenate((small_rows, begun))
        part_starts = _with_one_more(part_starts, begun)
    small[:, _PAGES] = starts[small_rows]
    large[:, _PAGES] = starts[plan.large_rows]
    made = replace(items, small=small, large=large, part_starts=part_starts)
    return _DecodePlan(made, small_rows, plan.large_rows, last)


def _begun(old: Ints, begin: Ints) -> Ints:
    """The items of the chunks that begin after those of the items `old`; one position each."""
    more = old.copy()
    more[:, _START] = more[:, _BEGIN] = begin
    more[:, _END] = begin + 1
    more[:, _ORDINAL] += 1
    return more


def _with_one_more(part_starts: Ints, tokens: _Longs) -> Ints:
    """Each of `tokens` has one partial more."""
    added = np.zeros(len(part_starts), np.int32)
    added[tokens + 1] = 1
    return part_starts + np.cumsum(added, dtype=np.int32)
