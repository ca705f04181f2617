"""Keys and values kept as e4m3 floats: 8 bits each, and a scale of each layer for all keys, and
for all values.

A number is kept as the e4m3 float next to it divided by the scale. These have 3 bits of fraction
and reach from 2^-9 to 448; what is larger becomes the largest. Knows tensors; knows neither pages
nor where scales come from.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

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
