"""Weights of 8 or 4 bits as the products on a device read them (`kernels/cuda/product.cuh`), and
back again in plain torch.

A number is a small one times the scale of its group of inputs. Rounding is that of the native
engine (`kernels/cpu/packing.h`): numbers that are whole steps of one scale keep their integers.
Works on whichever device its tensors are; knows no kernels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

WeightKind = Literal["int8", "int4", "fp8"]
CHUNK_BYTES = 64
INT4_GROUP = 32
_AT_ONCE = 1 << 24
"""Numbers that are rounded at a time."""
_SAMPLE = 8
"""Numbers of a group that tell which scales it may be whole steps of, before all are looked at."""


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """Rows are outputs, each filled up to whole chunks."""

    kind: WeightKind
    words: Tensor  # [outputs, row bytes] uint8
    scales: Tensor  # [outputs, groups] float32
    inputs: int
    group: int
    """Inputs that share a scale; at least `inputs`: all of a row do."""

    @property
    def outputs(self) -> int:
        return len(self.words)

    @property
    def num_bytes(self) -> int:
        return self.words.nbytes + self.scales.nbytes

    def numel(self) -> int:
        return self.outputs * self.inputs

    def rows(self, order: Tensor) -> QuantizedWeight:
        """These outputs, in this order."""
        return self._with(self.words[order], self.scales[order])

    def _with(self, words: Tensor, scales: Tensor) -> QuantizedWeight:
        return QuantizedWeight(self.kind, words, scales, self.inputs, self.group)


def joined(parts: Iterable[QuantizedWeight]) -> QuantizedWeight:
    """One product after the other, of the same inputs and groups."""
    every = list(parts)
    first = every[0]
    words, scales = (
        torch.cat(list(one)) for one in ([p.words for p in every], [p.scales for p in every])
    )
    return QuantizedWeight(first.kind, words, scales, first.inputs, first.group)


def rounded(weight: Tensor, kind: WeightKind) -> QuantizedWeight:
    """`weight` [outputs, inputs] as integers: int8 with one scale an output, int4 with one for 32
    inputs.
    """
    outputs, inputs = weight.shape
    at_once = max(1, _AT_ONCE // max(1, inputs))
    made = [_rounded(weight[at : at + at_once].float(), kind) for at in range(0, outputs, at_once)]
    group = INT4_GROUP if kind == "int4" else _whole(inputs)
    words, scales = (torch.cat(list(parts)) for parts in zip(*made, strict=True))
    return QuantizedWeight(kind, words, scales, inputs, group)


def of_floats(words: Tensor, scales: Tensor, group: int) -> QuantizedWeight:
    """Bits of e4m3 floats [outputs, inputs], and the scales of each output's groups of inputs,
    which are whole chunks or all.
    """
    inputs = words.shape[1]
    return QuantizedWeight("fp8", _filled(words, CHUNK_BYTES), scales.contiguous(), inputs, group)


def unpacked(weight: QuantizedWeight) -> Tensor:
    """The numbers that it means: the plain twin of the kernels. # [outputs, inputs] float32"""
    words, inputs = weight.words, weight.inputs
    if weight.kind == "int4":
        numbers = _nibbles(words)[:, :inputs]
    elif weight.kind == "int8":
        numbers = words[:, :inputs].view(torch.int8).float()
    else:
        numbers = words[:, :inputs].contiguous().view(torch.float8_e4m3fn).float()
    group = min(weight.group, _whole(inputs))
    spread = weight.scales.repeat_interleave(group, dim=1)[:, :inputs]
    return numbers * spread


def _whole(inputs: int) -> int:
    """A group that holds all inputs, of whole chunks."""
    return -(-inputs // CHUNK_BYTES) * CHUNK_BYTES


def _rounded(weight: Tensor, kind: WeightKind) -> tuple[Tensor, Tensor]:
    """Words and scales."""
    outputs = len(weight)
    if kind == "int8":
        steps, scale = _steps(weight, -128, 127)
        return _filled(steps.to(torch.int8).view(torch.uint8), CHUNK_BYTES), scale[:, None]
    filled = _filled(weight, 4 * INT4_GROUP)
    steps, scale = _steps(filled.view(-1, INT4_GROUP), -8, 7)
    numbers = (steps + 8).to(torch.int32).view(outputs, -1, 4, 4, 4, 2)
    # [outputs, chunks, groups, quarters, pairs, 2]: word of a quarter and a group
    places = torch.arange(4, device=weight.device)[:, None] * 4
    places = (places + torch.arange(2, device=weight.device) * 16).to(torch.int32)
    words = (numbers << places).sum((-1, -2), dtype=torch.int64).to(torch.int32)
    turned = words.transpose(-1, -2).contiguous().view(torch.uint8)
    return turned.view(outputs, -1), scale.view(outputs, -1)


def _nibbles(words: Tensor) -> Tensor:
    """# [outputs, inputs filled up] float32: -8 .. 7"""
    turned = words.contiguous().view(torch.int32).view(len(words), -1, 4, 4).transpose(-1, -2)
    places = torch.arange(4, device=words.device)[:, None] * 4
    places = (places + torch.arange(2, device=words.device) * 16).to(torch.int32)
    numbers = (turned[..., None, None] >> places) & 15
    return numbers.reshape(len(words), -1).float() - 8.0


def _filled(rows: Tensor, multiple: int) -> Tensor:
    """With zeros at the end of each row."""
    more = -rows.shape[1] % multiple
    return torch.nn.functional.pad(rows, (0, more)) if more else rows.contiguous()


def _steps(groups: Tensor, low: int, high: int) -> tuple[Tensor, Tensor]:
    """Whole numbers, and the scale of each group, which is a row. # [n, size] float32, [n]"""
    top = groups.gather(1, groups.abs().argmax(1, keepdim=True))[:, 0]
    scale = _scale_of_steps(groups, top, low, high)
    is_found, is_some = scale != 0, top != 0
    usual = top / low if low == -8 else top.abs() / high
    inverse = torch.where(is_found, 1 / scale, (low / top) if low == -8 else high / top.abs())
    steps = (groups * torch.where(is_some, inverse, 0.0)[:, None]).round_().clamp_(low, high)
    return steps, torch.where(is_found, scale, usual)


def _scale_of_steps(groups: Tensor, top: Tensor, low: int, high: int) -> Tensor:
    """The scale of which all numbers of a group are whole multiples low .. high, if the one
    farthest from 0, `top`, is one; else 0. # [n]
    """
    most = torch.arange(low, high + 1, device=groups.device, dtype=torch.float32)
    most = most[most != 0]
    off = 2e-6 * top.abs()
    few = groups[:, :: max(1, groups.shape[1] // _SAMPLE)][:, :_SAMPLE]
    found = torch.zeros_like(top)
    at_once = max(1, _AT_ONCE // (len(most) * _SAMPLE))
    for first in range(0, len(groups), at_once):
        part = slice(first, first + at_once)
        scales = top[part, None] / most  # [part, candidates]
        fits = _are_steps(few[part, None, :], scales[..., None], off[part, None, None], low, high)
        fits &= (top[part] != 0)[:, None]
        found[part] = _first_that_fits(groups[part], scales, fits, off[part], low, high)
    return found


def _first_that_fits(
    groups: Tensor, scales: Tensor, fits: Tensor, off: Tensor, low: int, high: int
) -> Tensor:
    found = torch.zeros_like(off)
    open_rows = fits.any(1).nonzero()[:, 0]
    while len(open_rows):
        candidate = fits[open_rows].to(torch.uint8).argmax(1)
        scale = scales[open_rows, candidate]
        is_right = _are_steps(groups[open_rows], scale[:, None], off[open_rows, None], low, high)
        found[open_rows[is_right]] = scale[is_right]
        fits[open_rows, candidate] = False
        open_rows = open_rows[~is_right]
        open_rows = open_rows[fits[open_rows].any(1)]
    return found


def _are_steps(numbers: Tensor, scale: Tensor, off: Tensor, low: int, high: int) -> Tensor:
    """Whether all numbers of the last dimension are whole multiples low .. high of `scale`."""
    times = (numbers / scale).round()
    near = (times * scale - numbers).abs() <= off
    return (near & (times >= low) & (times <= high)).all(-1)
