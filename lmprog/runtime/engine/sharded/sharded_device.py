"""A rank's part of a model on a device: the decoder there, and how it is loaded.

What a rank computes with its part of each layer is summed with the others as it lies, on the device
(`RankGroup` decides what carries it). Knows weights and pages of its own part; knows no batches.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from lmprog.config import RuntimeConfig
from lmprog.runtime.engine.device.device_decoder import DeviceDecoder
from lmprog.runtime.engine.device.device_engine import DeviceEngine
from lmprog.runtime.engine.device.device_weights import device_weights
from lmprog.runtime.engine.device.kernels import Kernels
from lmprog.runtime.engine.device.loading import OpenedDevice, asked_model
from lmprog.runtime.engine.device.products import Product, ProductInputs
from lmprog.runtime.engine.device.weight_transfer import WeightTransfer
from lmprog.runtime.engine.model.joined_weights import WeightSource
from lmprog.runtime.engine.sharded.rank_group import RankGroup
from lmprog.runtime.engine.sharded.shard import Shard
from lmprog.runtime.engine.sharded.sharded_decoder import PartSums, shard_weights
from lmprog.runtime.engine.torch_engine.decoder import Weights


class ShardedDeviceDecoder(DeviceDecoder):
    """See `DeviceDecoder`. Every rank is given the same steps in the same order."""

    def __init__(
        self,
        opened: OpenedDevice,
        shard: Shard,
        weights: Weights,
        context_len: int,
        group: PartSums,
    ) -> None:
        kernels: Kernels = opened.kernels
        placed = device_weights(weights, kernels.driver)
        super().__init__(kernels, shard.local_shape, placed, context_len, opened.budget)
        self._part = shard.vocabulary_part
        self._group = group

    def _end_half(
        self, given: ProductInputs, weight: Product, bias: Tensor | None, out: Tensor
    ) -> None:
        self._products.issue(given, weight, None, out)
        self._driver.compute(lambda: self._group.sum(out))
        if bias is not None:
            self._driver.compute(lambda: out.add_(bias))

    def _compute_logits(self, given: ProductInputs, logits: Tensor) -> None:
        """Of the whole vocabulary at rank 0; elsewhere they stay undefined."""
        self._driver.compute(lambda: self._gather(given.x, logits))

    def _gather(self, x: Tensor, logits: Tensor) -> None:
        head = self._weights.head
        assert isinstance(head, Tensor), "a part of a model has weights of its own type"
        own = torch.mm(x, head).float()
        parts = self._group.gather(F.pad(own, (0, self._part - own.shape[1])))
        if parts:
            logits.copy_(torch.cat(parts, 1)[:, : self.shape.vocab_size])


class DevicePart:
    """A rank's part on its device, before its pages are counted."""

    def __init__(
        self, config: RuntimeConfig, shard: Shard, source: WeightSource, group: RankGroup
    ) -> None:
        """Memory for keys and values that was asked for is of all ranks of a machine together."""
        if config.kv_memory_mb is not None:
            config = replace(config, kv_memory_mb=max(1, config.kv_memory_mb // group.here))
        asked = replace(asked_model(config), shape=shard.local_shape, weight_kind=None)
        self._opened = OpenedDevice(config, asked, group.device)
        with torch.inference_mode():
            transfer = WeightTransfer(self._opened.driver)
            weights = shard_weights(shard, asked.dtype, source, transfer.sent, transfer.kept)
            embedding = transfer.sent(weights.embedding).to(asked.dtype)
            weights = replace(weights, embedding=transfer.kept(embedding))
            self._decoder = ShardedDeviceDecoder(
                self._opened, shard, weights, asked.context_len, group
            )

    def num_pages(self) -> int:
        """For which the device has memory."""
        return self._opened.num_pages()

    def engine(self, pages: int) -> DeviceEngine:
        """Without graphs: whether sums can be in one, nobody could try yet."""
        with torch.inference_mode():
            return self._opened.engine(self._decoder, pages, is_captured=False)
