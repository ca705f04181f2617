"""The plan of attention items: which runs of keys are read once, by which queries, and where
results are merged.

A batch's page tables go in, arrays for `kernels/cuda/tree_attention.cuh` come out. Positions are
cut into chunks at fixed distances from 0; a chunk whose pages several rows share is one segment for
all of them, so its keys and values are read once. Where rows part inside a chunk, the pages before
that are a segment of their own if that saves more reads than merging costs. The queries below a
segment are cut into tiles; a segment with a tile is an item. Each query gets one partial result a
segment, counted along its page table.

Works on whole arrays; knows numpy and batches, no tensors and no device. Two rows whose page tables
are equal up to a page are taken to stand on the same tokens up to there, which is what page tables
mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from lmprog.runtime.scheduling.batch import Batch, Ints

CHUNK = 256
"""Positions of a chunk: also those of the kernels on the processor."""
ITEM_WORDS = 8
"""See `struct Item` in kernels/cuda/args.cuh."""
_ALIGNED = 64
"""Runs begin at multiples of this from their segment's begin: the most keys that any kernel's tile
holds.
"""
_NEVER = np.int64(1) << 40
_Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tiling:
    """How many rows a tile has, a row being a query token and one of the `group` heads of a kv
    head.
    """

    group: int
    small_rows: int = 16
    large_rows: int | None = 64
    """None: there is only the small tile."""
    fold: int | None = 128
    """Rows that part inside a chunk share its beginning where that saves at least so many positions
    of reading. None: never, and then no query's partials depend on the rest of the batch.
    """

    @property
    def small_queries(self) -> int:
        return self.small_rows // self.group

    @property
    def most_queries(self) -> int:
        return (self.large_rows or self.small_rows) // self.group


@dataclass(frozen=True, slots=True)
class AttentionItems:
    """All int32 and contiguous. The fields of an item are those of `struct Item`."""

    small: Ints  # [S, ITEM_WORDS]
    large: Ints  # [L, ITEM_WORDS]
    queries: Ints  # token indices; an item names a run of them
    part_starts: Ints  # [T + 1]: the partials of token t are part_starts[t] .. part_starts[t + 1]
    """No item writes the last of them where heads have sinks: it stands for these."""
    first_parts: Ints  # [T]: ordinal of the token's first partial
    chunk: int

    @property
    def num_parts(self) -> int:
        return int(self.part_starts[-1])


def plan_items(
    batch: Batch,
    tiling: Tiling,
    window: int | None = None,
    most_parts: int | None = None,
    has_sinks: bool = False,
) -> AttentionItems:
    """The items of `batch` for layers that look back on `window` positions.

    Chunks are made longer, by powers of two, until there are at most `most_parts` partials, those
    of sinks not counted; with one chunk a token that is as far as it goes.
    """
    chunk = max(CHUNK, batch.page_size)
    lowest = _lowest(batch.positions, window)
    if most_parts is not None:
        while exceeds(batch, lowest, chunk, most_parts):
            chunk *= 2
    return _Planner(batch, tiling, lowest, chunk, window).plan(has_sinks)


def exceeds(batch: Batch, lowest: _Longs, chunk: int, most_parts: int) -> bool:
    """Whether chunks of this length give too many partials, and longer ones give fewer."""
    if chunk >= int(batch.kv_lens.max(initial=1)):
        return False
    num_parts = int(_counts(batch.positions.astype(np.int64), lowest, chunk).sum())
    return num_parts + len(batch.positions) > most_parts


def _lowest(positions: NDArray[np.integer], window: int | None) -> _Longs:
    """The first position that a token at each of `positions` sees."""
    if window is None:
        return np.zeros(len(positions), np.int64)
    return np.maximum(positions.astype(np.int64) - (window - 1), 0)


def _counts(positions: _Longs, lowest: _Longs, chunk: int) -> _Longs:
    return positions // chunk - lowest // chunk + 1


def ranges(starts: NDArray[np.integer], counts: NDArray[np.integer]) -> _Longs:
    """starts[0] .. starts[0] + counts[0], then the next ones."""
    ends = counts.cumsum()
    places = np.arange(ends[-1] if len(ends) else 0)
    places += (starts - (ends - counts)).repeat(counts)
    return places


def _factors(count: int) -> NDArray[np.uint64]:
    """Random factors: a sum of numbers times these, modulo 2**64, names their sequence."""
    return _many_factors(max(12, (count - 1).bit_length()))[:count]


@cache
def _many_factors(bits: int) -> NDArray[np.uint64]:
    factors = np.random.default_rng(0x1A77).integers(0, 1 << 64, 1 << bits, np.uint64)
    factors.flags.writeable = False
    return factors


@dataclass(frozen=True, slots=True)
class _Groups:
    """Entries with equal keys stand together in `order`; group g begins at starts[g] and has
    sizes[g] of them.
    """

    order: _Longs
    starts: _Longs
    sizes: _Longs


def _grouped(keys: NDArray[np.uint64]) -> _Groups:
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return _Groups(order, starts, np.diff(starts, append=len(keys)))


@dataclass(frozen=True, slots=True)
class _Segments:
    """Runs of positions, each read by a set of rows: `rows[row_starts[i] : row_starts[i] +
    num_rows[i]]`, ascending.
    """

    begin: _Longs
    end: _Longs
    ordinal: _Longs
    rows: _Longs
    row_starts: _Longs
    num_rows: _Longs


class _Planner:
    """One plan. Arrays are int64 on the way: page numbers times sizes want room."""

    def __init__(
        self, batch: Batch, tiling: Tiling, lowest: _Longs, chunk: int, window: int | None
    ) -> None:
        self._batch = batch
        self._tiling = tiling
        self._lowest = lowest
        self._chunk = chunk
        self._lens = batch.kv_lens.astype(np.int64)
        self._page_starts = batch.page_starts.astype(np.int64)
        self._token_starts = batch.row_starts.astype(np.int64)
        self._num_tokens = np.diff(self._token_starts)
        self._first_seen = _lowest(self._lens - self._num_tokens, window)
        self._split = np.full(len(self._lens), _NEVER)
        """Per row: the position inside a chunk up to which it shares that chunk's beginning."""
        self._page_hashes = self._hashes()

    def plan(self, has_sinks: bool) -> AttentionItems:
        positions = self._batch.positions.astype(np.int64)
        segments = self._segments()
        row_of = np.repeat(np.arange(len(self._lens)), self._num_tokens)
        first = self._ordinal(self._lowest, row_of)
        part_starts = np.zeros(len(positions) + 1, np.int64)
        np.cumsum(self._ordinal(positions, row_of) - first + 1 + has_sinks, out=part_starts[1:])
        small, large, queries = self._items(segments, positions)
        return AttentionItems(
            small=np.ascontiguousarray(small, np.int32),
            large=np.ascontiguousarray(large, np.int32),
            queries=queries.astype(np.int32),
            part_starts=part_starts.astype(np.int32),
            first_parts=first.astype(np.int32),
            chunk=self._chunk,
        )

    def _hashes(self) -> NDArray[np.uint64]:
        """Per entry of `batch.pages`: names the row's page table up to and including it."""
        counts = np.diff(self._page_starts)
        factors = _factors(int(counts.max()))
        factor = np.concatenate([factors[:count] for count in counts.tolist()])
        sums = np.cumsum((self._batch.pages + np.int32(1)).astype(np.uint64) * factor)
        before = np.concatenate((np.zeros(1, np.uint64), sums))[self._page_starts[:-1]]
        names: NDArray[np.uint64] = sums - np.repeat(before, counts)
        return names

    def _ordinal(self, positions: _Longs, rows: _Longs) -> _Longs:
        """Which segment of its row's path a position lies in."""
        return positions // self._chunk + (positions >= self._split[rows])

    # --- segments ---

    def _segments(self) -> _Segments:
        """Whole chunks by the rows that share them; then, where rows part inside a chunk, what they
        share of it.
        """
        chunk, page = self._chunk, self._batch.page_size
        first, last = self._first_seen // chunk, (self._lens - 1) // chunk
        counts = last - first + 1
        row = np.repeat(np.arange(len(counts)), counts)
        index = ranges(first, counts)
        is_whole = (index + 1) * chunk <= self._lens[row]
        last_page = self._page_starts[row] + np.where(is_whole, (index + 1) * chunk // page - 1, 0)
        keys = np.where(is_whole, self._page_hashes[last_page], row.astype(np.uint64))
        groups = _grouped(keys)
        rows = row[groups.order]
        lead = groups.order[groups.starts]  # one entry of each group
        begin = index[lead] * chunk
        end = np.minimum(begin + chunk, self._lens[row[lead]])
        shared = self._partings(rows[groups.starts][groups.sizes == 1], begin[groups.sizes == 1])
        split = self._split[row[lead]]
        is_parted = (groups.sizes == 1) & (split >= begin) & (split < begin + chunk)
        begin = np.where(is_parted, split, begin)
        own = _Segments(
            begin, end, self._ordinal(begin, row[lead]), rows, groups.starts, groups.sizes
        )
        return _joined(own, shared)

    def _partings(self, rows: _Longs, begins: _Longs) -> _Segments | None:
        """`rows` read the chunks at `begins` alone; those that do so for the first time may share
        its beginning with each other. Notes in `_split` how far.
        """
        if self._tiling.fold is None or len(self._lens) < 2:
            return None
        chunk, page = self._chunk, self._batch.page_size
        parting = np.full(len(self._lens), _NEVER)
        np.minimum.at(parting, rows, begins)
        alone = np.flatnonzero(
            parting < _NEVER
        )  # a row whose every chunk is shared parts from nobody
        first_page = self._page_starts[:-1] + np.where(parting < _NEVER, parting, 0) // page
        groups = _grouped(self._page_hashes[first_page[alone]])
        chosen = np.repeat(groups.sizes > 1, groups.sizes)
        if not chosen.any():
            return None
        order, sizes = alone[groups.order[chosen]], groups.sizes[groups.sizes > 1]
        starts = np.cumsum(sizes) - sizes
        at = first_page[order][:, None] + np.arange(chunk // page)  # [rows, pages of a chunk]
        table = self._batch.pages[np.minimum(at, len(self._batch.pages) - 1)].astype(np.int64)
        table = np.where(at < self._page_starts[1:][order][:, None], table, -1 - order[:, None])
        equal = table == table[np.repeat(starts, sizes)]
        alike = np.argmin(np.concatenate((equal, np.zeros((len(order), 1), bool)), axis=1), axis=1)
        num_shared = np.minimum.reduceat(alike, starts) * page
        worth = (sizes - 1) * num_shared >= self._tiling.fold
        if not worth.any():
            return None
        members = np.repeat(worth, sizes)
        begin = parting[order[starts]][worth]
        self._split[order[members]] = np.repeat(begin + num_shared[worth], sizes[worth])
        longest = np.maximum.reduceat(self._lens[order], starts)[worth]
        end = np.minimum(begin + num_shared[worth], longest)
        kept = sizes[worth]
        ordinal = begin // chunk
        return _Segments(begin, end, ordinal, order[members], np.cumsum(kept) - kept, kept)

    # --- items ---

    def _items(self, segments: _Segments, positions: _Longs) -> tuple[_Longs, _Longs, _Longs]:
        """Small and large items, and the lists of queries that they name."""
        marks = _factors(len(self._lens))[segments.rows]
        names = np.add.reduceat(marks, segments.row_starts)  # equal sets of rows have one list
        sets = _grouped(names)
        set_of = np.empty(len(names), np.int64)
        set_of[sets.order] = np.repeat(np.arange(len(sets.sizes)), sets.sizes)
        lead = sets.order[sets.starts]
        rows = segments.rows[ranges(segments.row_starts[lead], segments.num_rows[lead])]
        queries = ranges(self._token_starts[rows], self._num_tokens[rows])
        row_ends = np.cumsum(segments.num_rows[lead])
        lengths = np.add.reduceat(self._num_tokens[rows], row_ends - segments.num_rows[lead])

        most = self._tiling.most_queries
        num_tiles = -(-lengths // most)
        first_tile = np.cumsum(num_tiles) - num_tiles
        tile_begin = ranges(np.zeros(len(lengths), np.int64), num_tiles) * most
        tile_count = np.minimum(np.repeat(lengths, num_tiles) - tile_begin, most)
        tile_begin += np.repeat(np.cumsum(lengths) - lengths, num_tiles)
        lowest, at = self._lowest[queries], positions[queries]
        least_low, most_low = (
            np.minimum.reduceat(lowest, tile_begin),
            np.maximum.reduceat(lowest, tile_begin),
        )
        least_at, most_at = np.minimum.reduceat(at, tile_begin), np.maximum.reduceat(at, tile_begin)

        counts = num_tiles[set_of]
        of = np.repeat(np.arange(len(set_of)), counts)  # segment of each (segment, tile)
        tile = ranges(first_tile[set_of], counts)
        end = np.minimum(segments.end[of], most_at[tile] + 1)
        begin = segments.begin[of]
        seen = (begin < end) & (least_low[tile] < end)
        start = begin + np.maximum(least_low[tile] - begin, 0) // _ALIGNED * _ALIGNED
        items = np.empty((len(of), ITEM_WORDS), np.int64)
        items[:, 0] = self._page_starts[segments.rows[segments.row_starts[of]]]
        items[:, 1] = start
        items[:, 2] = end
        items[:, 3] = tile_begin[tile]
        items[:, 4] = tile_count[tile]
        items[:, 5] = segments.ordinal[of]
        items[:, 6] = begin
        items[:, 7] = (end - 1 > least_at[tile]) | (start < most_low[tile])
        is_small = tile_count[tile] <= self._tiling.small_queries
        if self._tiling.large_rows is None:
            is_small[:] = True
        return items[seen & is_small], items[seen & ~is_small], queries


def _joined(own: _Segments, shared: _Segments | None) -> _Segments:
    if shared is None:
        return own
    return _Segments(
        *(
            np.concatenate((mine, more))
            for mine, more in (
                (own.begin, shared.begin),
                (own.end, shared.end),
                (own.ordinal, shared.ordinal),
                (own.rows, shared.rows),
                (own.row_starts, shared.row_starts + len(own.rows)),
                (own.num_rows, shared.num_rows),
            )
        )
    )
