"""Random trees of pages as batches: rows that part anywhere, stand in the middle of pages, decode
or bring chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lmprog.runtime.scheduling.batch import Batch


@dataclass(frozen=True)
class Row:
    """`count` new tokens from position `start`, on `pages`."""

    start: int
    count: int
    pages: tuple[int, ...]


def batch_of(
    rows: list[Row], page_size: int, mirrors: list[tuple[int, int]] | None = None
) -> Batch:
    """`mirrors` holds (token of the batch, second slot)."""
    positions = [position for row in rows for position in range(row.start, row.start + row.count)]
    slots = [
        row.pages[position // page_size] * page_size + position % page_size
        for row in rows
        for position in range(row.start, row.start + row.count)
    ]
    mirrors = mirrors or []

    def ints(values: object) -> np.ndarray:
        return np.ascontiguousarray(np.array(values, np.int32))

    total = len(positions)
    return Batch(
        tokens=np.zeros(total, np.int32),
        positions=ints(positions),
        row_starts=ints([0, *np.cumsum([row.count for row in rows])]),
        kv_lens=ints([row.start + row.count for row in rows]),
        page_starts=ints([0, *np.cumsum([len(row.pages) for row in rows])]),
        pages=ints([page for row in rows for page in row.pages]),
        write_tokens=ints([*range(total), *(token for token, _ in mirrors)]),
        write_slots=ints([*slots, *(slot for _, slot in mirrors)]),
        copies=ints([]).reshape(-1, 2),
        logit_tokens=ints([]),
        page_size=page_size,
    )


def random_rows(
    rng: np.random.Generator, *, page_size: int, num_rows: int, longest: int
) -> list[Row]:
    """Rows over a random tree: each takes the first pages of an earlier row (or none) and goes on
    with its own.
    """
    rows: list[Row] = []
    free = list(rng.permutation(num_rows * (longest // page_size + 2)))
    for _ in range(num_rows):
        length = int(rng.integers(1, longest + 1))
        count = min(length, int(rng.choice([1, 1, 1, 1, 2, 5, 33])))
        pages: list[int] = []
        if rows and rng.random() < 0.8:
            other = rows[int(rng.integers(len(rows)))]
            settled = other.start // page_size  # whole pages that nobody writes in this step
            kept = int(rng.integers(0, settled + 1)) if rng.random() < 0.5 else settled
            kept = min(kept, (length - count) // page_size)
            pages = list(other.pages[:kept])
        while len(pages) * page_size < length:
            pages.append(int(free.pop()))
        rows.append(Row(length - count, count, tuple(pages)))
    return rows


def fork(prefix: int, branches: int, own: int, page_size: int, *, new: int = 1) -> list[Row]:
    """`branches` rows on one prefix (whole pages of it are shared), each with `own` tokens more,
    `new` of them new.
    """
    shared = tuple(range(prefix // page_size))
    rows, page = [], len(shared)
    for _ in range(branches):
        length = prefix + own
        more = -(-length // page_size) - len(shared)
        rows.append(Row(length - new, new, (*shared, *range(page, page + more))))
        page += more
    return rows
