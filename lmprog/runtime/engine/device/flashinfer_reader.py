"""FlashInfer's paged attention on our pages, whose layout is its "HND".

Every row is an "append" of FlashInfer: its last tokens are the queries, whether one or many, so
that prefills and decodes are the same call, as in our own kernels. The package is imported on first
use (`pip install 'lmprog[flashinfer]'`). Knows its index arrays; knows nothing of trees: what rows
share is read once for each of them.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lmprog.errors import NotSupported
from lmprog.runtime.engine.attention import AttentionShape, LayerAttention
from lmprog.runtime.scheduling.batch import Batch

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
