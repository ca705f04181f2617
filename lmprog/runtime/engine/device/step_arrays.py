"""What a step sends to the device: a batch and its plans of attention items as named arrays.

Knows batches and plans; knows no kernels and no memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmprog.runtime.engine.device.item_plans import ItemPlans
from lmprog.runtime.engine.device.items import AttentionItems, Tiling
from lmprog.runtime.engine.device.kernels import NUM_COUNTS, Count
from lmprog.runtime.scheduling.batch import Batch

Arrays = dict[str, NDArray[np.int32]]


@dataclass(frozen=True, slots=True)
class StepRules:
    """What decides a step's plans. `windows` are the different ones of the model's layers; none
    where something else than our kernels reads the pages, which need no plan then.
    """

    tiling: Tiling
    windows: tuple[int | None, ...]
    most_parts: int


class StepPlans:
    """The plans of one step after the other, a list of one for each window."""

    def __init__(self, rules: StepRules) -> None:
        self._plans = [
            ItemPlans(rules.tiling, window, rules.most_parts) for window in rules.windows
        ]

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
