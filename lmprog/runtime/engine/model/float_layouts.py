"""Weights that a checkpoint keeps as floats of 8 or 4 bits with scales: fp8's and GPT-OSS's mxfp4.

All are given as float32. Knows places of bits.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from lmprog.errors import ModelError
from lmprog.runtime.engine.model.checkpoint import Checkpoint
from lmprog.runtime.engine.model.derived_weights import Derived, Float8Weight
from lmprog.runtime.engine.model.mixture import ExpertNames

Floats = NDArray[np.float32]
_FLOAT32 = np.dtype(np.float32)


def _e4m3() -> Floats:
    """What each byte means: a sign, 4 bits of exponent, 3 of fraction; no infinities, one NaN."""
    byte = np.arange(256)
    exponent, fraction = (byte >> 3) & 15, byte & 7
    normal = (8 + fraction) * 2.0 ** (exponent - 10)
    size = np.where(exponent == 0, fraction * 2.0**-9, normal)
    size[(byte & 127) == 127] = np.nan
    return np.where(byte < 128, size, -size).astype(np.float32)


_BYTES = _e4m3()
_HALVES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""What 4 bits mean: a sign, 2 bits of exponent, 1 of fraction."""


def fp8_weights(
    checkpoint: Checkpoint, block: tuple[int, int] | None
) -> Iterator[tuple[str, Derived]]:
    """weight [outputs, inputs] and its scales: one, one a row, or one a block of rows and columns.
    They are called weight_scale or weight_scale_inv, and are multiplied either way.
    """
    for stored in sorted(checkpoint.names):
        if not stored.endswith(".weight") or checkpoint.dtype(stored) != "F8_E4M3":
            continue
        names = [f"{stored}_{kind}" for kind in ("scale_inv", "scale")]
        scales = next((name for name in names if name in checkpoint.names), None)
        if scales is None:
            raise ModelError(f"the 8-bit weight {stored} has no {names[0]} or {names[1]}")
        outputs, inputs = checkpoint.shape(stored)
        shape = checkpoint.shape(scales)
        down, across = _block(shape, (outputs, inputs), block)
        wanted = (-(-outputs // down), -(-inputs // across))
        if shape not in ((), (1,), wanted):
            raise ModelError(f"{scales} of the size {list(shape)} does not fit {stored}")

        def rows(
            first: int,
            end: int,
            names: tuple[str, str] = (stored, scales),
            block: tuple[int, int] = (down, across),
        ) -> Floats:
            numbers = _BYTES[checkpoint.array(names[0])[first:end]]
            mine = _row_scales(checkpoint, names[1], first, end, block[0])
            made: Floats = numbers * np.repeat(mine, block[1], axis=1)[:, : numbers.shape[1]]
            return made

        def float8(
            names: tuple[str, str] = (stored, scales),
            size: int = outputs,
            block: tuple[int, int] = (down, across),
        ) -> Float8Weight:
            mine = _row_scales(checkpoint, names[1], 0, size, block[0])
            return Float8Weight(checkpoint.array(names[0]), mine, block[1])

        yield stored, Derived((outputs, inputs), _FLOAT32, rows, (stored, scales), float8)


def _row_scales(checkpoint: Checkpoint, name: str, first: int, end: int, down: int) -> Floats:
    """The scales of rows `first .. end`, of which `down` share theirs. # [rows, groups]"""
    scale = checkpoint.array(name)
    if scale.dtype == np.uint16:
        scale = (scale.astype(np.uint32) << 16).view(np.float32)
    scale = scale.astype(np.float32).reshape(-1, scale.shape[-1] if scale.ndim == 2 else 1)
    made: Floats = scale[np.arange(first, end) // down]
    return made


def _block(
    scales: tuple[int, ...], size: tuple[int, int], block: tuple[int, int] | None
) -> tuple[int, int]:
    """Rows and columns that share a scale: all, those of a block, or a row."""
    if len(scales) < 2:
        return size
    return (1, size[1]) if block is None else block


def mxfp4_experts(checkpoint: Checkpoint, names: ExpertNames) -> Iterator[tuple[str, Derived]]:
    """GPT-OSS's experts one by one: `gate_up_proj_blocks` [experts, 2 * inner, hidden / 32, 16] has
    two numbers a byte, low bits first, and rows of gate and its partner in turn; `_scales`
    [experts, rows, blocks] are powers of two; `down_proj_*` alike.
    """
    for stored in sorted(name for name in checkpoint.names if name.endswith("_blocks")):
        prefix, dot, kind = stored.removesuffix("_blocks").rpartition(f".{names.block}.experts.")
        parts = {"gate_up_proj": ("gate", "up"), "down_proj": ("down",)}.get(kind)
        if not dot or parts is None:
            raise ModelError(f"{stored} is no weight of an expert")
        scales = stored.removesuffix("_blocks") + "_scales"
        shape = checkpoint.shape(stored)
        if scales not in checkpoint.names or len(shape) != 4 or shape[3] != 16:
            raise ModelError(f"{stored} of the size {list(shape)} has no scales that fit")
        if checkpoint.shape(scales) != shape[:3] or shape[1] % len(parts):
            raise ModelError(f"{scales} of the size {list(checkpoint.shape(scales))} does not fit")
        for offset, product in enumerate(parts):
            for expert in range(shape[0]):
                place = (expert, offset, len(parts))
                made = _mxfp4(checkpoint, (stored, scales), place)
                yield f"{prefix}.{names.of_expert(expert, product)}", made


def _mxfp4(checkpoint: Checkpoint, names: tuple[str, str], place: tuple[int, int, int]) -> Derived:
    """`place`: the expert, its first row, and how far its rows are apart."""
    expert, offset, step = place
    _, count, blocks, _ = checkpoint.shape(names[0])

    def rows(first: int, end: int) -> Floats:
        mine = slice(offset + first * step, offset + end * step, step)
        stored, scales = (checkpoint.array(name)[expert, mine] for name in names)
        pairs = np.stack((_HALVES[stored & 15], _HALVES[stored >> 4]), axis=-1)
        numbers = pairs.reshape(end - first, blocks, 32)
        powers = np.ldexp(np.float32(1), scales.astype(np.int32) - 127)
        made: Floats = (numbers * powers[..., None]).reshape(end - first, blocks * 32)
        return made

    return Derived((count // step, blocks * 32), _FLOAT32, rows, names)
