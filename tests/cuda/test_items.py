"""The plan of attention items: every position that a query may see is read exactly once for it."""

from __future__ import annotations

import numpy as np
import pytest

from lmprog.runtime.engine.device.items import CHUNK, AttentionItems, Tiling, plan_items
from lmprog.runtime.scheduling.batch import Batch
from tests.cuda.trees import Row, batch_of, fork, random_rows

TILINGS = [
    Tiling(group=4),
    Tiling(group=1),
    Tiling(group=2, large_rows=None, fold=None),
    Tiling(group=16, fold=1),
]


def read_once(batch: Batch, items: AttentionItems, window: int | None, num_sinks: int = 0) -> None:
    """Raises where a query misses a position, reads one twice or from another page, or where
    partials do not fit. `num_sinks`: partials of each token that no item writes.
    """
    tokens = len(batch.positions)
    seen: list[list[tuple[int, int]]] = [[] for _ in range(tokens)]  # (position, page slot)
    parts: list[list[int]] = [[] for _ in range(tokens)]
    for base, begin, end, query, count, ordinal, first, is_masked in np.concatenate(
        (items.small, items.large)
    ).tolist():
        for token in items.queries[query : query + count].tolist():
            position = int(batch.positions[token])
            lowest = max(0, position - window + 1) if window else 0
            if position < first or lowest >= end:
                continue  # the kernel writes nothing for it
            visible = [at for at in range(begin, end) if lowest <= at <= position]
            assert visible, "a partial of nothing"
            assert is_masked or len(visible) == end - begin
            seen[token] += [(at, int(batch.pages[base + at // batch.page_size])) for at in visible]
            parts[token].append(ordinal)
    for row in range(batch.num_rows):
        pages = batch.pages[batch.page_starts[row] : batch.page_starts[row + 1]].tolist()
        for token in range(batch.row_starts[row], batch.row_starts[row + 1]):
            position = int(batch.positions[token])
            lowest = max(0, position - window + 1) if window else 0
            wanted = [(at, pages[at // batch.page_size]) for at in range(lowest, position + 1)]
            assert sorted(seen[token]) == wanted, f"token {token} of row {row}"
            first = int(items.first_parts[token])
            num_parts = int(items.part_starts[token + 1] - items.part_starts[token])
            assert sorted(parts[token]) == list(range(first, first + num_parts - num_sinks)), (
                f"token {token} of row {row}"
            )


def positions_read(items: AttentionItems) -> int:
    return int(sum((item[2] - item[1]) for item in np.concatenate((items.small, items.large))))


@pytest.mark.parametrize("seed", range(60))
def test_every_position_is_read_once_for_every_query_that_sees_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    page_size = int(rng.choice([1, 8, 16, 64, 512]))
    rows = random_rows(
        rng,
        page_size=page_size,
        num_rows=int(rng.integers(1, 9)),
        longest=int(rng.choice([20, 300, 900])),
    )
    window = [None, 1, 7, 100, 300, 5000][int(rng.integers(6))]
    batch = batch_of(rows, page_size)
    most = [None, 2 * len(batch.positions), 40][int(rng.integers(3))]
    items = plan_items(batch, TILINGS[seed % len(TILINGS)], window, most)
    read_once(batch, items, window)


def test_a_shared_prefix_is_read_once_for_all_branches() -> None:
    batch = batch_of(fork(prefix=1024, branches=16, own=64, page_size=16), 16)
    items = plan_items(batch, Tiling(group=4))
    assert positions_read(items) == 1024 + 16 * 64  # 16 branches of 4 heads fill one tile
    batch = batch_of(fork(prefix=1024, branches=32, own=64, page_size=16), 16)
    assert (
        positions_read(plan_items(batch, Tiling(group=4))) == 2 * 1024 + 32 * 64
    )  # two tiles, side by side


def test_branches_that_part_inside_a_chunk_share_its_beginning_where_that_pays() -> None:
    batch = batch_of(fork(prefix=CHUNK + 96, branches=8, own=10, page_size=16), 16)
    shared = plan_items(batch, Tiling(group=4, fold=128))
    assert positions_read(shared) == CHUNK + 96 + 8 * 10
    folded = plan_items(batch, Tiling(group=4, fold=8 * 96))
    assert positions_read(folded) == CHUNK + 8 * (96 + 10)
    assert folded.num_parts < shared.num_parts
    for items in (shared, folded):
        read_once(batch, items, None)


def test_without_folding_a_query_has_the_same_partials_whatever_else_is_in_the_batch() -> None:
    rows = random_rows(np.random.default_rng(3), page_size=16, num_rows=8, longest=900)
    together = plan_items(batch_of(rows, 16), Tiling(group=2, fold=None))
    at = 0
    for row in rows:
        alone = plan_items(batch_of([row], 16), Tiling(group=2, fold=None))
        counts = np.diff(together.part_starts)[at : at + row.count]
        assert counts.tolist() == np.diff(alone.part_starts).tolist()
        at += row.count


def test_chunks_grow_where_partials_would_not_fit() -> None:
    batch = batch_of([Row(0, 2000, tuple(range(125)))], 16)
    assert plan_items(batch, Tiling(group=4)).num_parts > 2 * 2000
    items = plan_items(batch, Tiling(group=4), most_parts=2 * 2000)
    assert items.num_parts <= 2 * 2000
    assert items.chunk == 2048
    read_once(batch, items, None)


def test_a_row_whose_every_chunk_is_shared_parts_from_nobody() -> None:
    pages = tuple(range(2 * CHUNK // 16 + 1))
    rows = [
        Row(CHUNK - 1, 1, pages[: CHUNK // 16]),
        Row(2 * CHUNK, 1, pages),
        Row(2 * CHUNK, 1, (*pages[:-1], 99)),
    ]
    batch = batch_of(rows, 16)
    read_once(batch, plan_items(batch, Tiling(group=4, fold=1)), None)
