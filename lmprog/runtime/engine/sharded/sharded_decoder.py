"""The torch decoder on one rank: what it computes with its part of each layer, it sums with the
others.

All ranks hold the same residual. Two sums a layer, where a half ends (and a small one where queries
are normalized over all heads), and one gathering of logits, whose parts only rank 0 needs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from lmprog.runtime.engine.model.joined_weights import WeightSource, split_weights
from lmprog.runtime.engine.sharded.shard import EMBEDDING, Shard, ShardSource
from lmprog.runtime.engine.torch_engine.decoder import Decoder, Weights, wide
from lmprog.runtime.engine.torch_engine.fusing import Keep, fused
from lmprog.runtime.engine.torch_engine.weights import as_tensor


class PartSums(Protocol):
    """What a rank's decoder needs of the others (`RankGroup`)."""

    def sum(self, part: Tensor) -> None: ...
    def gather(self, part: Tensor) -> list[Tensor]: ...


class ShardedDecoder(Decoder):
    """See `Decoder`. Every rank is given the same batches in the same order."""

    def __init__(self, shard: Shard, weights: Weights, context_len: int, group: PartSums) -> None:
        super().__init__(shard.local_shape, weights, context_len)
        self._part = shard.vocabulary_part
        self._num_ranks = shard.size
        self._group = group

    def _embedded(self, tokens: Tensor) -> Tensor:
        return super()._embedded(tokens).to(self.weights.norm.dtype)

    def _add_half(self, index: int, product: str, inputs: Tensor, x: Tensor) -> None:
        weight, bias, norm = self.weights.layers[index].ending(product)
        part = torch.mm(inputs, weight)
        self._group.sum(part)
        if bias is not None:
            part.add_(bias)
        x.add_(part if norm is None else self._after(part, norm))

    def _whole(self, part: Tensor) -> Tensor:
        self._group.sum(part)
        return part

    def _average(self, means: Tensor) -> None:
        self._group.sum(means)
        means.div_(self._num_ranks)

    def _logits(self, x: Tensor) -> Tensor:
        """Of the whole vocabulary at rank 0; of nothing elsewhere."""
        own = self._capped(wide(torch.mm(x, self.weights.head)))
        if len(own):
            own = F.pad(own, (0, self._part - own.shape[1]))
            parts = self._group.gather(own.contiguous())
            if parts:
                return torch.cat(parts, 1)[:, : self.vocab_size].contiguous()
        return own.new_empty(len(own), self.vocab_size)


def _here(weight: Tensor) -> Tensor:
    return weight


def shard_weights(
    shard: Shard, dtype: torch.dtype, source: WeightSource, send: Keep = _here, keep: Keep = _here
) -> Weights:
    """A rank's part of the weights, made where `send` puts what is read. The embedding stays in the
    memory that `source` has it in, a mapped file where it can be: a step reads the rows of its
    tokens alone.
    """
    parts = ShardSource(split_weights(source, shard.shape), shard)

    def read(name: str) -> Tensor:
        if name == EMBEDDING and not shard.shape.tied_head:
            return torch.empty(0, shard.shape.hidden)  # no part of it is needed as the head
        return send(as_tensor(parts.array(name)))

    local = fused(shard.local_shape, dtype, read, progress=None, keep=keep)
    return replace(local, embedding=as_tensor(source.array(EMBEDDING)))
