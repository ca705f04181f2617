"""The torch decoder with LoRA adapters: the base's products for all rows at once, then what each
adapter adds to the rows that are its own.

The plain twin of the native engine's adapters. Low-rank products are in float32, whatever type the
model is computed in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lmprog.runtime.engine.adapters.adapter_folder import Adapter, LowRank
from lmprog.runtime.engine.attention.backend import AttentionBackend
from lmprog.runtime.engine.model.shape import ModelShape
from lmprog.runtime.engine.model.weight_table import products
from lmprog.runtime.engine.torch_engine.decoder import Decoder, Weights
from lmprog.runtime.engine.torch_engine.weights import Read, fused_low_rank
from lmprog.runtime.scheduling.batch import Batch, Ints


@dataclass(frozen=True, slots=True)
class FusedLowRank:
    """`x @ down @ up` is added to what the fused product gives for x."""

    down: Tensor  # [inputs, ranks]
    up: Tensor  # [ranks, outputs]


FusedLayers = tuple[Mapping[str, FusedLowRank], ...]


class AdaptedDecoder(Decoder):
    """See `Decoder`. `batch.adapters` has each row's adapter: 0 for none, else its number from 1
    on.
    """

    def __init__(
        self,
        shape: ModelShape,
        weights: Weights,
        context_len: int,
        adapters: Sequence[FusedLayers],
    ) -> None:
        super().__init__(shape, weights, context_len)
        self._adapters = adapters
        self._groups: list[tuple[FusedLayers, Tensor]] = []
        """Of the step being computed: an adapter, and the places of its tokens."""
        self._wanted: list[tuple[FusedLayers, Tensor]] = []
        """The same among the tokens whose logits are wanted."""

    def forward(self, batch: Batch, attention: AttentionBackend) -> Tensor:
        of_tokens = token_adapters(batch)
        self._groups = self._grouped(of_tokens)
        self._wanted = self._grouped(of_tokens[batch.logit_tokens])
        return super().forward(batch, attention)

    def _grouped(self, of_tokens: Ints) -> list[tuple[FusedLayers, Tensor]]:
        return [
            (self._adapters[number - 1], torch.from_numpy(np.flatnonzero(of_tokens == number)))
            for number in np.unique(of_tokens)
            if number
        ]

    def _adapt(self, index: int, product: str, inputs: Tensor, outputs: Tensor) -> Tensor:
        is_late = index == len(self.weights.layers) - 1 and product != "qkv"
        for layers, places in self._wanted if is_late else self._groups:
            part = layers[index].get(product)
            if part is not None:
                added = inputs[places].float() @ part.down @ part.up
                outputs.index_add_(0, places, added.to(outputs.dtype))
        return outputs


def token_adapters(batch: Batch) -> Ints:
    """Each token's adapter. # [T]"""
    if batch.adapters is None:
        return np.zeros(batch.num_tokens, np.int32)
    return np.repeat(batch.adapters, np.diff(batch.row_starts))


def fused_adapter(adapter: Adapter, shape: ModelShape, read: Read | None) -> FusedLayers:
    """The adapter in the form of the fused weights; `read` gives the base's norms, None where they
    are not folded into its products.
    """
    layers = []
    for index, layer in enumerate(adapter.layers):
        outputs = {
            name: sum(part.rows for part in matrix.parts)
            for name, matrix in products(shape, index).items()
        }
        made: dict[str, FusedLowRank] = {}
        for name, part in layer.items():
            down, up = fused_low_rank(shape, read, index, name, _dense(part, outputs[name]))
            made[name] = FusedLowRank(down, up)
        layers.append(made)
    return tuple(layers)


def _dense(part: LowRank, outputs: int) -> tuple[Tensor, Tensor]:
    """`down` [R, inputs], and `up` [outputs, R] with zeros where a weight has no outputs."""
    up = torch.zeros(outputs, len(part.down))
    for one in part.raised:
        rows, ranks = one.up.shape
        up[one.first : one.first + rows, one.rank_first : one.rank_first + ranks] = (
            torch.from_numpy(one.up)
        )
    return torch.from_numpy(part.down), up
