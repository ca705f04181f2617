"""Batches of a step, made by hand: rows of the same length, on pages of their own behind a prefix that
they share. Knows the runtime's plan of a step; knows no engine.
"""

from __future__ import annotations

from array import array
from typing import Any, cast

import numpy as np

from lmprog.runtime.scheduling.batch import Batch, build_batch
from lmprog.runtime.scheduling.plan import Plan, Row

PAGE = 16


def batch(rows: int, tokens: int, start: int, shared: int = 0, vocab: int = 2000) -> Batch:
    """`rows` sequences of `tokens` random tokens from position `start`, on the same first pages of
    `shared` positions; the last ones' logits are wanted."""
    same, rng = shared // PAGE, np.random.default_rng(rows)
    each = -(-(start + tokens) // PAGE) - same
    made = [
        Row(
            cast(Any, None),
            array("i", rng.integers(0, vocab, tokens).tolist()),
            start,
            start + tokens,
            array("i", [*range(same), *range(same + row * each, same + (row + 1) * each)]),
            start + tokens - 1,
        )
        for row in range(rows)
    ]
    return build_batch(Plan(tuple(made)), PAGE)


def num_pages(step: Batch) -> int:
    return int(step.pages.max()) + 1
