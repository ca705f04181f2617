"""FlashInfer's attention on our pages, whose layout is its "HND": paged, and by its cascade.

Every row is an "append" of FlashInfer: its last tokens are the queries, whether one or many, so
that prefills and decodes are the same call, as in our own kernels. The paged attention reads what
rows share once for each of them. The cascade reads whole pages that neighbouring rows share from
the beginning of their texts once for them, in two levels: a level gives every query a stretch of
pages; the last level is causal and has a row's own pages. Layers with a window are read by the
paged attention, since a level knows no positions. Which kernels the wrapper takes, it decides
itself. The package is imported on first use (`pip install 'lmprog[flashinfer]'`). Knows its index
arrays; knows nothing of trees.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lmprog.errors import NotSupported
from lmprog.runtime.engine.attention import AttentionShape, LayerAttention
from lmprog.runtime.scheduling.batch import Batch, Ints

WORKSPACE_BYTES = 128 << 20
"""What FlashInfer recommends; its partial results of split sequences."""
_TYPES = (torch.bfloat16, torch.float16)


def is_installed() -> bool:
    """Whether the package can be imported; it is not imported to find out."""
    return importlib.util.find_spec("flashinfer") is not None


def version() -> str:
    """The installed release; "unknown" where the package does not say."""
    try:
        return importlib.metadata.version("flashinfer-python")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def why_not(shape: AttentionShape) -> str | None:
    """Why FlashInfer cannot serve a model of this shape; None where it can."""
    if shape.dtype not in _TYPES:
        return f"FlashInfer computes in bfloat16 and float16, not in {shape.dtype}"
    if not is_installed():
        return "the package is missing: pip install 'lmprog[flashinfer]'"
    return None


def refuse(name: str, shape: AttentionShape) -> None:
    """Raises NotSupported for the attention of that name, where FlashInfer cannot serve."""
    reason = why_not(shape)
    if reason:
        raise NotSupported(f"attention = {name!r} cannot be used: {reason}")


@dataclass(frozen=True, slots=True)
class PagedRows:
    """A batch in FlashInfer's index arrays, all int32."""

    query_starts: NDArray[np.int32]  # qo_indptr [rows + 1]
    page_starts: NDArray[np.int32]  # paged_kv_indptr [rows + 1]
    pages: NDArray[np.int32]  # paged_kv_indices [page_starts[-1]]
    last_page_lens: NDArray[np.int32]  # paged_kv_last_page_len [rows], 1 .. page_size


def paged_rows(batch: Batch) -> PagedRows:
    """The pages that hold a row's tokens so far; a page table may go on behind them."""
    used = -(-batch.kv_lens // batch.page_size)
    starts = np.zeros(batch.num_rows + 1, np.int32)
    np.cumsum(used, out=starts[1:])
    first_of_row = np.repeat(batch.page_starts[:-1] - starts[:-1], used)
    return PagedRows(
        query_starts=batch.row_starts,
        page_starts=starts,
        pages=batch.pages[np.arange(starts[-1]) + first_of_row].astype(np.int32),
        last_page_lens=(batch.kv_lens - (used - 1) * batch.page_size).astype(np.int32),
    )


class FlashInferPageReader:
    """See `PageReader`. Layers with the same rules share a plan."""

    def __init__(self, shape: AttentionShape, device: torch.device) -> None:
        """Raises NotSupported where the package is missing or has no kernels for the type."""
        refuse("flashinfer", shape)
        self._shape = shape
        self._num_tokens = 0
        make = partial(
            flashinfer().BatchPrefillWithPagedKVCacheWrapper, kv_layout="HND", backend="fa2"
        )
        self._wrappers = {layer: make(workspace(device)) for layer in dict.fromkeys(shape.layers)}

    def begin(self, batch: Batch) -> None:
        rows, shape = paged_rows(batch), self._shape
        self._num_tokens = batch.num_tokens
        for layer, wrapper in self._wrappers.items():
            wrapper.plan(
                qo_indptr=torch.from_numpy(rows.query_starts),
                paged_kv_indptr=torch.from_numpy(rows.page_starts),
                paged_kv_indices=torch.from_numpy(rows.pages),
                paged_kv_last_page_len=torch.from_numpy(rows.last_page_lens),
                head_dim_qk=shape.head_dim,
                window_left=-1 if layer.window is None else layer.window - 1,
                **plan_rules(shape, layer, batch.page_size),
            )

    def read(self, layer: int, pages: torch.Tensor, q: torch.Tensor, out: torch.Tensor) -> None:
        count, scales = self._num_tokens, self._shape.float8
        named: dict[str, Any] = {"out": out[:count]}
        if scales is not None:
            named |= {"k_scale": scales.keys[layer], "v_scale": scales.values[layer]}
        self._wrappers[self._shape.layers[layer]].run(q[:count], pages, **named)


def workspace(device: torch.device) -> torch.Tensor:
    """Memory for a wrapper of FlashInfer, which has its own."""
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)


def plan_rules(shape: AttentionShape, layer: LayerAttention, page_size: int) -> dict[str, Any]:
    """What every `plan` of FlashInfer is told of a layer."""
    return {
        "num_qo_heads": shape.num_heads,
        "num_kv_heads": shape.num_kv_heads,
        "page_size": page_size,
        "causal": True,
        "sm_scale": layer.scale,
        "logits_soft_cap": layer.softcap,
        "q_data_type": shape.dtype,
        "kv_data_type": shape.kept,
    }


def flashinfer() -> ModuleType:
    """The package, imported on first use."""
    return importlib.import_module("flashinfer")


# --- cascade --------------------------------------------------------------------------------------

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
