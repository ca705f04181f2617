"""The scales of keys and values that a checkpoint was given for keeping them as e4m3 floats.

Whoever calibrated it looked at texts, which nothing here does: a checkpoint without scales gets 1
for all, so that what a page holds depends on its tokens alone. Knows names and files.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from lmprog.errors import ModelError
from lmprog.runtime.engine.attention.float8 import Float8Scales
from lmprog.runtime.engine.model.checkpoint import Checkpoint

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
