"""Products of a step: torch's, and ours where weights have 8 or 4 bits
(`kernels/cuda/product.cuh`); and how weights become such, and are read back in plain torch.

Up to 64 tokens the kernels multiply with small weights as they are. Beyond, weights become
numbers of the activations' type, a tile at a time, and torch multiplies: the same weights then
serve many tokens. Knows weights and addresses; knows no layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lmprog.runtime.engine.device.kernels import (
    Count,
    Kernels,
    ProductArgs,
    UnpackArgs,
    address,
)

WeightKind = Literal["int8", "int4", "fp8"]
CHUNK_BYTES = 64
INT4_GROUP = 32
_AT_ONCE = 1 << 24
"""Numbers that are rounded at a time."""
_SAMPLE = 8
"""Numbers of a group that tell which scales it may be whole steps of, before all are looked at."""


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """Rows are outputs, each filled up to whole chunks.

    A number is a small one times the scale of its group of inputs. Rounding is that of the native
    engine (`kernels/cpu/packing.h`): numbers that are whole steps of one scale keep their
    integers.
    """

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


Product = Tensor | QuantizedWeight
"""A tensor is kept transposed, as `x @ weight` wants it."""
_FEW, _MANY = 16, 32
"""Tokens of a tile (product.cuh)."""
MOST_TOKENS = 64
"""Of a step whose products read small weights as they are."""
_TILE_BYTES = {"cpu": 1 << 15, "cuda": 64 << 20}
"""Memory for weights of which torch makes products; it stays in the second-level cache of a GPU."""


@dataclass(frozen=True, slots=True)
class ProductInputs:
    """Tokens, perhaps more than there are: how many there are stands on the device."""

    x: Tensor  # [tokens, inputs]
    counts: int
    """The address of the step's counts."""
    count_at: Count


class Products:
    """Begins products for the kernels' driver."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._driver = kernels.driver
        self._tile = torch.empty(0)

    def issue(
        self, given: ProductInputs, weight: Product, bias: Tensor | None, out: Tensor
    ) -> None:
        """out [tokens, outputs]; `bias` is where kernels may read it."""
        x = given.x
        if isinstance(weight, QuantizedWeight):
            if len(x) <= MOST_TOKENS:
                self._multiply(given, weight, bias, out)
            else:
                self._multiply_tiles(x, weight, out)
                if bias is not None:
                    self._driver.compute(lambda: out.add_(bias))
        elif bias is None:
            self._driver.compute(lambda: torch.mm(x, weight, out=out))
        else:
            self._driver.compute(lambda: torch.addmm(bias, x, weight, out=out))

    def _multiply(
        self, given: ProductInputs, weight: QuantizedWeight, bias: Tensor | None, out: Tensor
    ) -> None:
        tokens = len(given.x)
        is_few = tokens <= _FEW or self._kernels.key.is_exact
        args = ProductArgs(
            x=address(given.x),
            bias=address(bias),
            out=address(out),
            counts=given.counts,
            count_at=given.count_at,
            outputs=weight.outputs,
            **_described(weight),
        )
        across = -(-tokens // (_FEW if is_few else _MANY))
        blocks = -(-weight.outputs // (32 if is_few else 64)) * across
        name = f"product_{weight.kind}_{'few' if is_few else 'many'}"
        self._kernels.launch(name, args, None if self._kernels.key.is_exact else blocks)

    def _multiply_tiles(self, x: Tensor, weight: QuantizedWeight, out: Tensor) -> None:
        rows = self._room_for(weight)
        for first in range(0, weight.outputs, rows):
            count = min(rows, weight.outputs - first)
            numbers = self._tile[: count * weight.inputs].view(count, weight.inputs)
            args = UnpackArgs(
                out=address(numbers), outputs=count, first=first, **_described(weight)
            )
            self._kernels.launch(f"unpack_{weight.kind}", args)
            self._driver.compute(_product_into(x, numbers, out[:, first : first + count]))

    def make_room(self, dtype: torch.dtype) -> None:
        """For the tiles of weights that have 8 or 4 bits."""
        size = _TILE_BYTES[self._driver.device.type]
        self._tile = self._driver.memory(size).view(dtype)

    def _room_for(self, weight: QuantizedWeight) -> int:
        """Outputs of a tile."""
        rows = self._tile.numel() // weight.inputs
        assert rows > 0, "make_room() comes first, and no weight has more inputs than a tile holds"
        return rows


def _product_into(x: Tensor, numbers: Tensor, out: Tensor):  # type: ignore[no-untyped-def]
    return lambda: torch.mm(x, numbers.t(), out=out)


def _described(weight: QuantizedWeight) -> dict[str, int]:
    return {
        "weights": address(weight.words),
        "scales": address(weight.scales),
        "inputs": weight.inputs,
        "row_bytes": weight.words.shape[1],
        "groups": weight.scales.shape[1],
        "group": weight.group,
    }


def taken_rows(weight: Product, tokens: Tensor, out: Tensor) -> None:
    """The embeddings of tokens; small ones are unpacked by torch."""
    if isinstance(weight, QuantizedWeight):
        out.copy_(unpacked(weight.rows(tokens)))
    else:
        torch.index_select(weight, 0, tokens, out=out)
