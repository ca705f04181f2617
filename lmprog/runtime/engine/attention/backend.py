"""What an attention backend promises to the model: it owns the key/value memory and its layout
inside a page.

The model knows layers, heads and tensors; the backend knows pages. Nothing here knows requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from lmprog.runtime.engine.attention.float8 import Float8Scales
from lmprog.runtime.scheduling.batch import Batch


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """What differs between the layers of one model: `window` counts the positions a token may look
    back on, itself included (None: all); `softcap` bounds scores by `softcap * tanh(score /
    softcap)` (None: no bound); `sinks` are one more score of each head, which takes its share of
    the softmax and has no value (None: there are none)."""

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Sizes that decide the key/value memory. One `LayerAttention` per layer, in order."""

    layers: tuple[LayerAttention, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    dtype: torch.dtype
    """The type keys and values are kept in, but for `float8`. On a device activations have it too.
    """
    float8: Float8Scales | None = None
    """Keys and values are kept as e4m3 floats, with these scales."""

    @property
    def kept(self) -> torch.dtype:
        """Of a key's and a value's numbers in memory."""
        return self.dtype if self.float8 is None else torch.float8_e4m3fn


class AttentionBackend(Protocol):
    """One step: `plan` once, then `run` for every layer in order. Copies of the batch are done in
    `plan`.
    """

    def plan(self, batch: Batch) -> None:
        """Takes the step's arrays and performs `batch.copies` in all layers, all sources before any
        target.
        """
        ...

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Writes `k` and `v` to their slots, mirrored ones too, then attends causally over the
        pages of each row.

        q [tokens, heads, dim]; k [tokens, kv_heads, dim]; v [tokens, kv_heads, v_dim] -> [tokens,
        heads, v_dim], in q's type. All keys and values of the step are written before any row
        reads.
        """
        ...

    @property
    def bytes_per_page(self) -> int:
        """Memory of one page over all layers, keys and values together."""
        ...
