"""FlashInfer's attention on our pages, whose layout is its "HND": paged, and by the tree of pages.

Every row is an "append" of FlashInfer: its last tokens are the queries, whether one or many, so
that prefills and decodes are the same call, as in our own kernels. The paged attention reads what
rows share once for each of them. The cascade reads every run of pages that rows share once for all
of them, at any depth: such a run is a request of FlashInfer whose queries see all of its keys, what
a row has behind its last one is a causal request, and our own merge joins what the requests of a
token gave. Layers with a window are read by the paged attention, since a run of pages knows no
positions. The package is imported on first use (`pip install 'lmprog[flashinfer]'`). Knows its
index arrays; knows nothing of programs.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Iterable
from ctypes import POINTER, byref, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lmprog.errors import NotSupported
from lmprog.native import library
from lmprog.runtime.engine.attention import AttentionShape, LayerAttention
from lmprog.runtime.engine.device.items import ranges
from lmprog.runtime.engine.device.page_pool import Parts, ReadPlan
from lmprog.runtime.engine.device.step_arrays import goes_on
from lmprog.runtime.engine.native.interface import declare
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
    if any(layer.sinks is not None for layer in shape.layers):
        return "the model has sinks, which it is not asked for here; the tree kernels compute them"
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


def paged_rows(batch: Batch, skipped: Ints | int = 0) -> PagedRows:
    """The pages that hold a row's tokens so far, behind its first `skipped` ones; a page table may
    go on behind them.
    """
    used = -(-batch.kv_lens // batch.page_size)
    counts = used - skipped
    return PagedRows(
        query_starts=batch.row_starts,
        page_starts=_starts(counts),
        pages=batch.pages[ranges(batch.page_starts[:-1] + skipped, counts)].astype(np.int32),
        last_page_lens=(batch.kv_lens - (used - 1) * batch.page_size).astype(np.int32),
    )


class _Wrappers:
    """A wrapper of FlashInfer for each of `layers`, which differ; layers with the same rules share
    a plan.
    """

    def __init__(
        self, shape: AttentionShape, layers: Iterable[LayerAttention], device: torch.device, by: str
    ) -> None:
        self._shape, self._device = shape, device
        make = flashinfer().BatchPrefillWithPagedKVCacheWrapper
        self._wrappers = {
            layer: make(workspace(device), kv_layout="HND", backend=by)
            for layer in dict.fromkeys(layers)
        }

    def plan(self, rows: PagedRows, page_size: int, is_causal: bool = True) -> None:
        shape, pages = self._shape, sent(rows.pages, self._device)
        for layer, wrapper in self._wrappers.items():
            wrapper.plan(
                qo_indptr=torch.from_numpy(rows.query_starts),
                paged_kv_indptr=torch.from_numpy(rows.page_starts),
                paged_kv_indices=pages,
                paged_kv_last_page_len=torch.from_numpy(rows.last_page_lens),
                num_qo_heads=shape.num_heads,
                num_kv_heads=shape.num_kv_heads,
                head_dim_qk=shape.head_dim,
                page_size=page_size,
                causal=is_causal,
                window_left=-1 if layer.window is None else layer.window - 1,
                sm_scale=layer.scale,
                logits_soft_cap=layer.softcap,
                q_data_type=shape.dtype,
                kv_data_type=shape.kept,
            )

    def run(self, layer: int, pages: torch.Tensor, q: torch.Tensor, **named: Any) -> Any:
        scales = self._shape.float8
        if scales is not None:
            named |= {"k_scale": scales.keys[layer], "v_scale": scales.values[layer]}
        return self._wrappers[self._shape.layers[layer]].run(q, pages, **named)


class FlashInferPageReader:
    """See `PageReader`."""

    def __init__(self, shape: AttentionShape, device: torch.device) -> None:
        """Raises NotSupported where the package is missing or has no kernels for the type."""
        refuse("flashinfer", shape)
        self._num_tokens = 0
        self._wrappers = _Wrappers(shape, shape.layers, device, "fa2")

    def plan(self, batch: Batch, most_parts: int) -> ReadPlan:
        return ReadPlan(batch)

    def begin(self, plan: ReadPlan) -> None:
        self._num_tokens = plan.batch.num_tokens
        self._wrappers.plan(paged_rows(plan.batch), plan.batch.page_size)

    def has_parts(self, layer: int) -> bool:
        return False

    def read(
        self, layer: int, pages: torch.Tensor, q: torch.Tensor, out: torch.Tensor, parts: Parts
    ) -> None:
        count = self._num_tokens
        self._wrappers.run(layer, pages, q[:count], out=out[:count])


def workspace(device: torch.device) -> torch.Tensor:
    """Memory for a wrapper of FlashInfer, which has its own."""
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)


def sent(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """A copy on the device, by way of pinned memory, so that nobody waits for it."""
    here = torch.from_numpy(array)
    return here if device.type == "cpu" else here.pin_memory().to(device, non_blocking=True)


def flashinfer() -> ModuleType:
    """The package, imported on first use."""
    return importlib.import_module("flashinfer")


# --- the cascade ----------------------------------------------------------------------------------

_WORTH = 128
"""A run of pages is a request of its own where that saves at least so many positions of reading."""


@dataclass(frozen=True, slots=True)
class SharedRuns:
    """Runs of pages that several rows have behind each other's last common page, as requests."""

    requests: PagedRows
    gather: Ints  # tokens: the queries of one request after the other
    parts: Ints  # which part each of their results is
    part_starts: Ints  # see `ReadPlan`; the first part of a token is its own row's
    depths: Ints  # [rows]: pages of a row that are in requests


@dataclass(frozen=True, slots=True)
class CascadePlan(ReadPlan):
    """`shared` None: nothing is worth a request."""

    shared: SharedRuns | None = None


class _CRows(ctypes.Structure):
    _fields_ = (
        ("num_rows", c_int32),
        ("page_size", c_int32),
        ("row_starts", c_void_p),
        ("positions", c_void_p),
        ("page_starts", c_void_p),
        ("pages", c_void_p),
    )


class _CRuns(ctypes.Structure):
    _fields_ = (
        ("num_requests", c_int32),
        ("num_queries", c_int32),
        ("num_pages", c_int32),
        ("num_numbers", c_int32),
        ("numbers", c_void_p),
    )


@cache
def _runs_library() -> ctypes.CDLL | None:
    """None where it was not brought, and there is no compiler."""
    found = library("runs")
    if found is not None:
        declare(
            found, "lmprog_shared_runs", None, POINTER(_CRows), c_int64, c_int64, POINTER(_CRuns)
        )
    return found


def shared_runs(batch: Batch, most_parts: int, worth: int = _WORTH) -> SharedRuns | None:
    """Of whole pages before new tokens (`kernels/include/lmprog_runs.h`). What saves least is not
    shared until there are at most `most_parts` partial results.
    """
    found, given = _CRuns(), _CRows(batch.num_rows, batch.page_size)
    given.row_starts, given.positions = batch.row_starts.ctypes.data, batch.positions.ctypes.data
    given.page_starts, given.pages = batch.page_starts.ctypes.data, batch.pages.ctypes.data
    opened = _runs_library()
    assert opened is not None, "refuse() comes first"
    opened.lmprog_shared_runs(byref(given), worth, most_parts, byref(found))
    if not found.num_requests:
        return None
    kept = ctypes.string_at(found.numbers, 4 * found.num_numbers)
    numbers = np.frombuffer(bytearray(kept), np.int32)
    count, queries = found.num_requests, found.num_queries
    at = 0

    def take(length: int) -> Ints:
        nonlocal at
        at += length
        return numbers[at - length : at]

    last = np.full(count, batch.page_size, np.int32)
    requests = PagedRows(take(count + 1), take(count + 1), take(found.num_pages), last)
    gather, parts = take(queries), take(queries)
    return SharedRuns(requests, gather, parts, take(batch.num_tokens + 1), take(batch.num_rows))


def _starts(counts: NDArray[Any]) -> Ints:
    starts = np.zeros(len(counts) + 1, np.int32)
    counts.cumsum(dtype=np.int32, out=starts[1:])
    return starts


class FlashInferCascadeReader:
    """See `PageReader`."""

    def __init__(self, shape: AttentionShape, device: torch.device) -> None:
        """Raises NotSupported where the package is missing or has no kernels for the type."""
        refuse("cascade", shape)
        if _runs_library() is None:
            raise NotSupported(
                "attention = 'cascade' cannot be used: what rows share is found by a kernel of the "
                "processor, for which there is neither a wheel nor a C++ compiler"
            )
        self._shape, self._device = shape, device
        windowed = tuple(layer for layer in shape.layers if layer.window is not None)
        others = [layer for layer in shape.layers if layer.window is None]
        self._paged = _Wrappers(shape, windowed, device, "fa2")
        # which kernels are best on the device is left to FlashInfer
        self._shared = _Wrappers(shape, others, device, "auto")
        self._own = _Wrappers(shape, others, device, "auto")
        self._plan: CascadePlan | None = None
        self._last: CascadePlan | None = None
        self._places: tuple[torch.Tensor, ...] = ()

    def plan(self, batch: Batch, most_parts: int) -> CascadePlan:
        last = self._last
        if last is not None and goes_on(last.batch, batch):
            shared = last.shared  # the same rows share the same pages
        else:
            shared = shared_runs(batch, most_parts)
        starts = None if shared is None else shared.part_starts
        self._last = CascadePlan(batch, starts, shared)
        return self._last

    def begin(self, plan: CascadePlan) -> None:
        self._plan, batch, shared = plan, plan.batch, plan.shared
        size = batch.page_size
        self._paged.plan(paged_rows(batch), size)
        if shared is None:
            self._own.plan(paged_rows(batch), size)
            return
        self._own.plan(paged_rows(batch, shared.depths), size)
        self._shared.plan(shared.requests, size, is_causal=False)
        own = shared.part_starts[:-1].astype(np.int64)
        self._places = tuple(sent(one, self._device) for one in (shared.gather, shared.parts, own))

    def has_parts(self, layer: int) -> bool:
        return self._shape.layers[layer].window is None

    def read(
        self, layer: int, pages: torch.Tensor, q: torch.Tensor, out: torch.Tensor, parts: Parts
    ) -> None:
        plan = self._plan
        assert plan is not None, "begin() comes before read()"
        count = plan.batch.num_tokens
        if not self.has_parts(layer):
            self._paged.run(layer, pages, q[:count], out=out[:count])
            return
        if plan.shared is None:
            self._own.run(layer, pages, q[:count], out=out[:count])
            return
        own = self._own.run(layer, pages, q[:count], out=out[:count], return_lse=True)
        gather, shared_at, own_at = self._places
        shared = self._shared.run(layer, pages, q[gather], return_lse=True)
        for places, (values, sums) in ((own_at, own), (shared_at, shared)):
            parts.values[places] = values.float()
            parts.sums[places] = sums
