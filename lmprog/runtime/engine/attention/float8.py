"""Keys and values kept as e4m3 floats: 8 bits each, and a scale of each layer for all keys, and for
all values, as the checkpoint gives them.

A number is kept as the e4m3 float next to it divided by the scale. These have 3 bits of fraction
and reach from 2^-9 to 448; what is larger becomes the largest. Whoever calibrated a checkpoint
looked at texts, which nothing here does: one without scales gets 1 for all, so that what a page
holds depends on its tokens alone. Knows tensors, names and files; knows no pages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lmprog.errors import ModelError
from lmprog.runtime.engine.model.checkpoint import Checkpoint

MOST = 448.0
"""The largest e4m3 float."""


@dataclass(frozen=True, slots=True)
class Float8Scales:
    """What kept numbers are multiplied with: one scale a layer, in order."""

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
