"""What an attention backend promises to the model: it owns the key/value memory and its layout
inside a page. And what backends have in common: the memory of all pages as tensors on one
device, and numbers kept as e4m3 floats.

The model knows layers, heads and tensors; the backend knows pages. Nothing here knows requests,
nor which pages are in use (`radix.PageAllocator` does).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch

from lmprog.errors import ModelError
from lmprog.runtime.engine.machine.resources import aligned, allocate
from lmprog.runtime.engine.model.checkpoint import Checkpoint
from lmprog.runtime.scheduling.batch import Batch

MOST = 448.0
"""The largest e4m3 float."""


@dataclass(frozen=True, slots=True)
class Float8Scales:
    """What kept numbers are multiplied with: one scale a layer, in order.

    Keys and values have 8 bits each, and a scale of each layer for all keys, and for all values,
    as the checkpoint gives them. A number is kept as the e4m3 float next to it divided by the
    scale. These have 3 bits of fraction and reach from 2^-9 to 448; what is larger becomes the
    largest. Whoever calibrated a checkpoint looked at texts, which nothing here does: one without
    scales gets 1 for all, so that what a page holds depends on its tokens alone.
    """

    keys: tuple[float, ...]
    values: tuple[float, ...]


def in_float8(x: torch.Tensor, scale: float) -> torch.Tensor:
    """The numbers that are read again where `x` was kept. float32"""
    return e4m3(x, scale).float() * scale


def e4m3(x: torch.Tensor, scale: float) -> torch.Tensor:
    """What is kept of `x`."""
    # torch itself makes what is too large not a number
    return (x.float() * (1.0 / scale)).clamp(-MOST, MOST).to(torch.float8_e4m3fn)


# --- scales of a checkpoint -----------------------------------------------------------------------

_LAYER = "model.layers.{}.self_attn."
_NAMES = {
    "key": ("k_scale", "k_proj.k_scale", "kv_scale"),
    "value": ("v_scale", "v_proj.v_scale", "kv_scale"),
}
"""As compressed-tensors, ModelOpt and AutoFP8 write them, in the order of preference."""


def kept_scales(location: Path | None, num_layers: int) -> Float8Scales:
    """Of the checkpoint at `location`. Raises ModelError for scales that are no such, or that only
    some layers have.
    """
    if location is None or location.is_file():  # random weights, GGUF
        return Float8Scales((1.0,) * num_layers, (1.0,) * num_layers)
    checkpoint = Checkpoint(location)
    keys, values = (_scales(checkpoint, num_layers, names) for names in _NAMES.values())
    return Float8Scales(keys, values)


def _scales(checkpoint: Checkpoint, num_layers: int, names: tuple[str, ...]) -> tuple[float, ...]:
    found: dict[int, float] = {}
    for layer in range(num_layers):
        for name in names:
            full = _LAYER.format(layer) + name
            if full in checkpoint.names:
                found[layer] = _scale(checkpoint, full)
                break
    if found and len(found) < num_layers:
        missing = next(layer for layer in range(num_layers) if layer not in found)
        raise ModelError(
            f"{checkpoint.folder} has {names[0]} for {len(found)} layers, not for layer {missing}"
        )
    return tuple(found.get(layer, 1.0) for layer in range(num_layers))


def _scale(checkpoint: Checkpoint, name: str) -> float:
    array = checkpoint.array(name)
    if array.size != 1:
        raise ModelError(f"{name} has {array.size} scales; one for all heads of a layer is read")
    number = array.reshape(-1)
    if checkpoint.dtype(name) == "BF16":
        number = (number.astype(np.uint32) << 16).view(np.float32)
    elif checkpoint.dtype(name) not in ("F32", "F16"):
        raise ModelError(f"{name} is of the type {checkpoint.dtype(name)}; a float is read")
    scale = float(number[0])
    if not (math.isfinite(scale) and scale > 0):
        raise ModelError(f"{name} is {scale}; a scale is positive")
    return scale


class HeadSizes(NamedTuple):
    """Of one layer: query heads, heads of keys and values, and numbers of a key and of a value."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """What differs between the layers of one model: `window` counts the positions a token may look
    back on, itself included (None: all); `softcap` bounds scores by `softcap * tanh(score /
    softcap)` (None: no bound); `sinks` are one more score of each head, which takes its share of
    the softmax and has no value (None: there are none); `heads` are its own (None: those of the
    shape); `source` is the earlier layer whose keys and values it reads, of as many and as large
    heads (None: it has its own)."""

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: tuple[float, ...] | None = None
    heads: HeadSizes | None = None
    source: int | None = None


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

    def heads_of(self, layer: int) -> HeadSizes:
        sizes = self.num_heads, self.num_kv_heads, self.head_dim, self.v_head_dim
        return self.layers[layer].heads or HeadSizes(*sizes)

    @property
    def keeping(self) -> list[int]:
        """The layers with keys and values of their own."""
        return [at for at, layer in enumerate(self.layers) if layer.source is None]


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
        pages of each row. A layer with a source writes nothing.

        q [tokens, heads, dim]; k [tokens, kv_heads, dim]; v [tokens, kv_heads, v_dim] -> [tokens,
        heads, v_dim], in q's type. All keys and values of the step are written before any row
        reads.
        """
        ...

    @property
    def bytes_per_page(self) -> int:
        """Memory of one page over all layers, keys and values together."""
        ...


class KvPool:
    """One block of memory on one device, handed out front to back as typed views that keep it
    alive.

    On the CPU the operating system gives pages of memory only when they are first written, and is
    asked for huge ones.
    """

    def __init__(self, num_bytes: int, device: str | torch.device = "cpu") -> None:
        self.num_bytes = num_bytes
        self._taken = 0
        self._memory = _allocate(num_bytes, torch.device(device))

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """The next bytes as a contiguous tensor. Its content is undefined; the caller owns it from
        now on.
        """
        size = dtype.itemsize
        for extent in shape:
            size *= extent
        start, end = self._taken, self._taken + size
        if end > self.num_bytes:
            raise ValueError(f"the pool holds {self.num_bytes} bytes, {end} were asked for")
        self._taken = aligned(end)
        return self._memory[start:end].view(dtype).view(shape)


def _allocate(num_bytes: int, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.empty(num_bytes, dtype=torch.uint8, device=device)
    return torch.frombuffer(allocate(num_bytes), dtype=torch.uint8)[:num_bytes]
