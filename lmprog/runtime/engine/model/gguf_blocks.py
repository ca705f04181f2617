"""Numbers out of GGUF's blocks, in plain numpy.

A block holds 32 or 256 numbers of a row: small whole numbers, and what they are multiplied with
(and, in some types, what is taken off). Shapes: `blocks` is [number of blocks, bytes of a block],
the result [number of blocks, numbers of a block] in float32. Knows no file and no names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def _halves(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte `at` of each block. # [blocks, 1]"""
    return blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """The low halves of all bytes, then the high ones. # [.., n] -> [.., 2 n]"""
    return np.concatenate((packed & np.uint8(15), packed >> np.uint8(4)), -1)


def _fifth_bits(blocks: Bytes, at: int) -> Bytes:
    """Bit i of the four bytes at `at`, for each of 32 numbers, as 16. # [blocks, 32]"""
    bits = np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little")
    return bits << np.uint8(4)


def _q8_0(blocks: Bytes) -> Floats:
    return _halves(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    return _halves(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: Bytes) -> Floats:
    return _halves(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _halves(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    whole = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return _halves(blocks, 0) * (whole.astype(np.float32) - 16)


def _q5_1(blocks: Bytes) -> Floats:
    whole = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return _halves(blocks, 0) * whole.astype(np.float32) + _halves(blocks, 2)


def _scales_of_eight(packed: Bytes) -> tuple[Floats, Floats]:
    """Eight scales and eight minima of six bits each, out of twelve bytes. # [blocks, 8] each"""
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate((low & 63, (high & 15) | (low >> 6 << 4)), 1)
    minima = np.concatenate((middle & 63, (high >> 4) | (middle >> 6 << 4)), 1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _scaled_eights(blocks: Bytes, whole: NDArray[np.uint8]) -> Floats:
    """`whole` has eight groups of 32 numbers a block; each has a scale and a minimum."""
    scales, minima = _scales_of_eight(blocks[:, 4:16])
    by = (_halves(blocks, 0) * scales)[..., None]
    less = (_halves(blocks, 2) * minima)[..., None]
    return (by * whole.astype(np.float32) - less).reshape(len(blocks), 256)


def _q4_k(blocks: Bytes) -> Floats:
    return _scaled_eights(blocks, _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32))


def _q5_k(blocks: Bytes) -> Floats:
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    fifth = (blocks[:, None, 16:48] >> shifts & np.uint8(1)) << np.uint8(
        4
    )  # bit g of each byte: group g
    return _scaled_eights(blocks, low | fifth)


def _q6_k(blocks: Bytes) -> Floats:
    # Two halves of 128: 64 bytes of low bits, 32 of high pairs, 8 scales of 16 numbers each.
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    shifts = (2 * np.arange(4, dtype=np.uint8))[:, None]
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3) << 4
    whole = (low | high).reshape(-1, 16, 16).astype(np.float32) - 32
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    return ((_halves(blocks, 208) * scales)[..., None] * whole).reshape(len(blocks), 256)


_QUARTERS = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
"""Twice the numbers of four bits: a sign, two bits of exponent and one of fraction."""


def _mxfp4(blocks: Bytes) -> Floats:
    powers = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)
    return powers * _QUARTERS[_nibbles(blocks[:, 1:])]


_READERS: Mapping[str, Callable[[Bytes], Floats]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "MXFP4": _mxfp4,
}


def block_numbers(kind: str, blocks: Bytes) -> Floats:
    """The numbers of whole blocks. # [blocks, bytes of one] -> [blocks, numbers of one]"""
    return _READERS[kind](np.ascontiguousarray(blocks))
