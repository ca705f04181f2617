"""Blocks read number by number, as the formats are described: the twin of `model/gguf_blocks`."""

from __future__ import annotations

import struct


def _half(block: bytes, at: int) -> float:
    return float(struct.unpack_from("<e", block, at)[0])


def _nibble(block: bytes, first: int, i: int) -> int:
    """Of 32 numbers in 16 bytes: the low halves are numbers 0 to 15."""
    byte = block[first + i % 16]
    return byte & 15 if i < 16 else byte >> 4


def _fifth(block: bytes, first: int, i: int) -> int:
    return (struct.unpack_from("<I", block, first)[0] >> i & 1) << 4


def _scale_and_minimum(packed: bytes, group: int) -> tuple[int, int]:
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    low = packed[group + 4]
    return low & 15 | packed[group - 4] >> 6 << 4, low >> 4 | packed[group] >> 6 << 4


def _of_256(block: bytes, i: int, first: int, fifth: int) -> float:
    group, inner = i // 32, i % 32
    scale, minimum = _scale_and_minimum(block[4:16], group)
    byte = block[first + i // 64 * 32 + inner]
    whole = (byte & 15 if group % 2 == 0 else byte >> 4) + fifth
    return _half(block, 0) * scale * whole - _half(block, 2) * minimum


def _pair(block: bytes, first: int, i: int) -> int:
    """Of 256 numbers of two bits: 128 in each 32 bytes, the lowest pairs first."""
    half, rest = divmod(i, 128)
    return block[first + half * 32 + rest % 32] >> 2 * (rest // 32) & 3


def _q2_k(block: bytes, i: int) -> float:
    both = block[i // 16]
    less = _half(block, 82) * (both >> 4)
    return _half(block, 80) * (both & 15) * _pair(block, 16, i) - less


def _q3_k(block: bytes, i: int) -> float:
    group = i // 16
    low = block[96 + group % 8]
    low = low & 15 if group < 8 else low >> 4
    scale = (low | (block[104 + group % 4] >> 2 * (group // 4) & 3) << 4) - 32
    third = block[i % 32] >> (i // 32) & 1
    return _half(block, 108) * scale * (_pair(block, 32, i) - (0 if third else 4))


_UNEVEN = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def _iq4_xs(block: bytes, i: int) -> float:
    group = i // 32
    high = struct.unpack_from("<H", block, 2)[0] >> 2 * group & 3
    low = block[4 + group // 2] >> 4 * (group % 2) & 15
    whole = _UNEVEN[_nibble(block, 8 + 16 * group, i % 32)]
    return _half(block, 0) * ((low | high << 4) - 32) * whole


def _q6_k(block: bytes, i: int) -> float:
    half, rest = divmod(i, 128)
    quarter, inner = divmod(rest, 32)
    low = block[half * 64 + inner + (32 if quarter % 2 else 0)]
    low = low & 15 if quarter < 2 else low >> 4
    high = block[128 + half * 32 + inner] >> (2 * quarter) & 3
    (scale,) = struct.unpack_from("b", block, 192 + i // 16)
    return _half(block, 208) * scale * ((low | high << 4) - 32)


_OF_256 = {"Q2_K": _q2_k, "Q3_K": _q3_k, "IQ4_XS": _iq4_xs}


def number(kind: str, block: bytes, i: int) -> float:
    """Number `i` of a block."""
    if kind == "Q8_0":
        return _half(block, 0) * float(struct.unpack_from("b", block, 2 + i)[0])
    if kind == "Q4_0":
        return _half(block, 0) * (_nibble(block, 2, i) - 8)
    if kind == "Q4_1":
        return _half(block, 0) * _nibble(block, 4, i) + _half(block, 2)
    if kind == "Q5_0":
        return _half(block, 0) * ((_nibble(block, 6, i) | _fifth(block, 2, i)) - 16)
    if kind == "Q5_1":
        return _half(block, 0) * (_nibble(block, 8, i) | _fifth(block, 4, i)) + _half(block, 2)
    if kind == "IQ4_NL":
        return _half(block, 0) * _UNEVEN[_nibble(block, 2, i)]
    if kind in _OF_256:
        return _OF_256[kind](block, i)
    if kind == "Q4_K":
        return _of_256(block, i, 16, 0)
    if kind == "Q5_K":
        return _of_256(block, i, 48, (block[16 + i % 32] >> (i // 32) & 1) << 4)
    if kind == "MXFP4":
        nibble = _nibble(block, 1, i)
        exponent, fraction = nibble >> 1 & 3, nibble & 1
        size = (1 + fraction / 2) * 2.0 ** (exponent - 1) if exponent else fraction / 2
        return (-size if nibble & 8 else size) * 2.0 ** (block[0] - 127)
    return _q6_k(block, i)
