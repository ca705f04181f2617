"""FlashInfer's cascade attention on our pages: whole pages that neighbouring rows share from the
beginning of their texts are read once for them, in two levels.

A level gives every query a stretch of pages; the last level is causal and has a row's own pages.
Layers with a window are read by the paged attention, since a level knows no positions. Which
kernels the wrapper takes, it decides itself. Knows its index arrays; knows nothing of trees.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lmprog.errors import NotSupported
from lmprog.runtime.engine.attention import AttentionShape
from lmprog.runtime.engine.device.flashinfer_reader import (
    FlashInferPageReader,
    PagedRows,
    flashinfer,
    paged_rows,
    plan_rules,
    refuse,
    workspace,
)
from lmprog.runtime.scheduling.batch import Batch, Ints

_LEVELS = 2


def cascade_levels(batch: Batch) -> tuple[PagedRows, PagedRows]:
    """What groups of neighbouring rows share, and what each row has behind that. A group that
    shares nothing has no pages, and a last page of no tokens.
    """
    rows = paged_rows(batch)
    common = _common_pages(batch)
    share_of, first_rows = _shared(common)
    shares = share_of[first_rows]
    groups = PagedRows(
        query_starts=_ended(batch.row_starts[first_rows], batch.num_tokens),
        page_starts=_starts(shares),
        pages=_gathered(batch, first_rows, np.zeros_like(shares), shares),
        last_page_lens=np.where(shares > 0, batch.page_size, 0).astype(np.int32),
    )
    own = np.diff(rows.page_starts) - share_of
    each = np.arange(batch.num_rows)
    return groups, PagedRows(
        query_starts=rows.query_starts,
        page_starts=_starts(own),
        pages=_gathered(batch, each, share_of, own),
        last_page_lens=rows.last_page_lens,
    )


def _common_pages(batch: Batch) -> NDArray[np.int64]:
    """Whole pages before their new tokens that a row and the one before have in common, from the
    first on; of the first row none. # [rows]
    """
    before = batch.positions[batch.row_starts[:-1]].astype(np.int64) // batch.page_size
    most = np.minimum(before[1:], before[:-1])
    starts = _starts(most)
    place = np.arange(starts[-1]) - np.repeat(starts[:-1], most)
    left, right = (np.repeat(batch.page_starts[at], most) for at in (slice(-2), slice(1, -1)))
    differs = batch.pages[left + place] != batch.pages[right + place]
    # a pair's first difference, else all of its pages
    at = np.where(differs, place, np.iinfo(np.int64).max)
    common = most.copy()
    some = most > 0
    if some.any():
        found = np.minimum.reduceat(at, starts[:-1][some])
        common[some] = np.minimum(most[some], found)
    return np.concatenate((np.zeros(1, np.int64), common))


def _shared(common: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many pages each row shares with its group, and the first row of each group: where
    neighbours with that many pages or more in common are together, of the powers of two the one
    that saves most.
    """
    best, best_saved = (np.zeros_like(common), np.arange(len(common))), 0
    least = 1
    while least <= common.max(initial=0):
        first_rows = np.flatnonzero(common < least)
        shares = np.where(common < least, np.iinfo(np.int64).max, common)
        of_group = np.minimum.reduceat(shares, first_rows)
        sizes = np.diff(_ended(first_rows, len(common)))
        of_group = np.where(sizes > 1, of_group, 0)
        saved = int((of_group * (sizes - 1)).sum())
        if saved > best_saved:
            best, best_saved = (np.repeat(of_group, sizes), first_rows), saved
        least *= 2
    return best


def _gathered(
    batch: Batch, rows: NDArray[Any], skipped: NDArray[Any], counts: NDArray[Any]
) -> Ints:
    """`counts` pages of each of `rows`, behind the first `skipped` ones."""
    starts = _starts(counts)
    first = np.repeat(batch.page_starts[rows] + skipped - starts[:-1], counts)
    found: Ints = batch.pages[np.arange(starts[-1]) + first].astype(np.int32)
    return found


def _starts(counts: NDArray[Any]) -> Ints:
    return np.concatenate((np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)))


def _ended(starts: NDArray[Any], end: int) -> Ints:
    return np.append(starts, end).astype(np.int32)


class FlashInferCascadeReader:
    """See `PageReader`. Layers with the same rules share a plan."""

    def __init__(self, shape: AttentionShape, device: torch.device) -> None:
        """Raises NotSupported where the package is missing or has no kernels for the type."""
        refuse("cascade", shape)
        if shape.float8 is not None:
            raise NotSupported(
                "attention = 'cascade' takes no scales of keys and values, which kv_dtype = 'fp8' "
                "has; flashinfer does"
            )
        self._shape = shape
        self._num_tokens = 0
        self._windowed = tuple(layer for layer in shape.layers if layer.window is not None)
        self._paged = None
        if self._windowed:
            self._paged = FlashInferPageReader(replace(shape, layers=self._windowed), device)
        make = partial(flashinfer().MultiLevelCascadeAttentionWrapper, _LEVELS, kv_layout="HND")
        unbounded = dict.fromkeys(one for one in shape.layers if one.window is None)
        self._wrappers = {
            layer: make(float_workspace_buffer=workspace(device)) for layer in unbounded
        }

    def begin(self, batch: Batch) -> None:
        self._num_tokens = batch.num_tokens
        if self._paged is not None:
            self._paged.begin(batch)
        levels, shape = cascade_levels(batch), self._shape
        for layer, wrapper in self._wrappers.items():
            wrapper.plan(
                qo_indptr_arr=[torch.from_numpy(one.query_starts) for one in levels],
                paged_kv_indptr_arr=[torch.from_numpy(one.page_starts) for one in levels],
                paged_kv_indices_arr=[torch.from_numpy(one.pages) for one in levels],
                paged_kv_last_page_len=[torch.from_numpy(one.last_page_lens) for one in levels],
                head_dim=shape.head_dim,
                **plan_rules(shape, layer, batch.page_size),
            )

    def read(self, layer: int, pages: torch.Tensor, q: torch.Tensor, out: torch.Tensor) -> None:
        own, count = self._shape.layers[layer], self._num_tokens
        if self._paged is not None and own.window is not None:
            self._paged.read(self._windowed.index(own), pages, q, out)
            return
        out[:count].copy_(self._wrappers[own].run(q[:count], pages))
