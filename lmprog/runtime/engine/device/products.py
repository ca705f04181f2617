"""Products of a step: torch's, and ours where weights have 8 or 4 bits.

Up to 64 tokens the kernels multiply with small weights as they are. Beyond, weights become numbers
of the activations' type, a tile at a time, and torch multiplies: the same weights then serve many
tokens. Knows weights and addresses; knows no layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmprog.runtime.engine.device.kernels import (
    Count,
    Kernels,
    ProductArgs,
    UnpackArgs,
    address,
)
from lmprog.runtime.engine.device.quantized_weight import QuantizedWeight, unpacked

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
