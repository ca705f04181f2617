"""The engine of a model that several ranks compute together: rank 0's, which the loop calls, and
what the other ranks do.

Rank 0 decides what a configuration leaves open and says it to the others, who check that they have
the same checkpoint. Then every rank loads its part, and all agree on the number of pages that each
has room for, so that page numbers mean the same everywhere. What goes wrong on any rank before that
is rank 0's error; afterwards it is the end of all.

A rank's decoder, on the processor or on a device, sums with the others what it computes with its
part of each layer (`RankGroup` decides what carries that). All ranks hold the same residual. There
are two sums a layer, where a half ends (and a small one where queries are normalized over all
heads), and one gathering of logits, whose parts only rank 0 needs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from lmprog.config import RuntimeConfig
from lmprog.errors import LmprogError, ModelError
from lmprog.runtime.engine.attention import make_attention, page_bytes
from lmprog.runtime.engine.device.device_decoder import DeviceDecoder
from lmprog.runtime.engine.device.device_engine import DeviceEngine
from lmprog.runtime.engine.device.device_weights import WeightTransfer, device_weights
from lmprog.runtime.engine.device.kernels import Kernels
from lmprog.runtime.engine.device.loading import OpenedDevice, asked_model
from lmprog.runtime.engine.device.products import Product, ProductInputs
from lmprog.runtime.engine.device.sampling import DeviceLogits, DeviceSampler
from lmprog.runtime.engine.machine.resources import default_threads
from lmprog.runtime.engine.model.checkpoint_digests import checkpoint_digests
from lmprog.runtime.engine.model.locate import DUMMY_SEED, locate
from lmprog.runtime.engine.model.resolution import computable, context_length, data_type, num_pages
from lmprog.runtime.engine.model.shape import ModelShape, read_config
from lmprog.runtime.engine.model.stored_weights import WeightSource, weight_source
from lmprog.runtime.engine.model.weight_table import EMBEDDING
from lmprog.runtime.engine.sharded.rank_group import RankGroup, end_process
from lmprog.runtime.engine.sharded.shard import Shard, ShardSource, shardable_shape
from lmprog.runtime.engine.torch_engine.decoder import Decoder, Weights, wide
from lmprog.runtime.engine.torch_engine.engine import (
    DTYPES,
    Loaded,
    Threads,
    TorchEngine,
    attention_shape,
)
from lmprog.runtime.engine.torch_engine.sampler import TorchSampler
from lmprog.runtime.engine.torch_engine.weights import Keep, as_tensor, fused
from lmprog.runtime.scheduling.batch import Batch

log = logging.getLogger("lmprog")


@dataclass(frozen=True, slots=True)
class Agreed:
    """What rank 0 says before anything is loaded."""

    dtype: str
    kv_dtype: str
    context_len: int
    checkpoint: str
    """Digests of its weights and its config."""


class ShardedEngine:
    """Rank 0's engine. One thread calls `forward`; the other ranks run `follow` meanwhile."""

    def __init__(
        self,
        own: TorchEngine | DeviceEngine,
        group: RankGroup,
        end: Callable[[str], NoReturn] = end_process,
    ) -> None:
        self._own = own
        self._group = group
        self._end = end
        self.location = own.location
        self.context_len = own.context_len
        self.vocab_size = own.vocab_size
        self.dtype = own.dtype
        self.num_pages = own.num_pages

    @property
    def name(self) -> str:
        return self._own.name

    @property
    def kv_dtype(self) -> str:
        return self._own.kv_dtype

    @property
    def label(self) -> str:
        return f"{self._own.label}, {self._group.size} ranks"

    @property
    def sampler(self) -> TorchSampler | DeviceSampler:
        """What reads the logits."""
        return self._own.sampler if isinstance(self._own, DeviceEngine) else TorchSampler()

    @property
    def device(self) -> str:
        return self._group.device

    def forward(self, batch: Batch) -> torch.Tensor | DeviceLogits:
        """See `TorchEngine` and `DeviceEngine`. An error ends the process: the others are in the
        midst of the step.
        """
        try:
            self._own.finish()  # what is still queued is summed before the others get more
            self._group.give(batch)
            return self._own.forward(batch)
        except Exception:
            log.exception("a step failed on rank 0")
            self._end("a step of several ranks failed on rank 0, and the runtime with it")


def load_sharded_engine(config: RuntimeConfig, group: RankGroup) -> ShardedEngine:
    """The engine on rank 0. Raises ModelError and InvalidParameter for what any rank met."""
    return ShardedEngine(load_shard(config, group), group)


def follow(own: TorchEngine | DeviceEngine, group: RankGroup) -> NoReturn:
    """Computes what rank 0 gives, until the process is ended. Raises what a step raises."""
    while True:
        own.forward(group.take())
        own.finish()


def load_shard(config: RuntimeConfig, group: RankGroup) -> TorchEngine | DeviceEngine:
    """This rank's part of the model. Raises ModelError and its like; rank 0 those of any rank."""
    if group.leads:
        folder = locate(config.model)
        shape = shardable_shape(config, folder)
        said = group.facts(asdict(_decided(config, folder, shape, group.device)))
    else:
        said = group.facts(None)
    agreed = Agreed(**said)
    failure: LmprogError | None = None
    pages = -1
    try:
        part = _loaded(config, agreed, group)
        pages = part.num_pages()
    except LmprogError as error:
        failure = error
    least = group.least(pages)
    if least < 0:
        told = group.messages("" if failure is None else failure.message)
        if failure is not None:
            raise failure
        reasons = [f"rank {rank}: {text}" for rank, text in enumerate(told) if text]
        raise ModelError("; ".join(reasons) or "another rank could not load its part")
    return part.engine(least)


def _loaded(config: RuntimeConfig, agreed: Agreed, group: RankGroup) -> _Part | DevicePart:
    folder = locate(config.model)
    if _checkpoint(config, folder) != agreed.checkpoint:
        raise ModelError(f"its checkpoint of {config.model} is not the one of rank 0")
    shard = Shard(shardable_shape(config, folder), group.rank, group.size)
    if group.device == "cpu":
        return _Part(config, agreed, shard, group)
    same: Any = {"dtype": agreed.dtype}
    return DevicePart(
        replace(config, **same), shard, weight_source(folder, shard.shape, DUMMY_SEED), group
    )


class _Part:
    """A rank's loaded part on the processor, before its pages are counted."""

    def __init__(
        self, config: RuntimeConfig, agreed: Agreed, shard: Shard, group: RankGroup
    ) -> None:
        folder = locate(config.model)
        self._config, self._here = config, group.here
        dtype = DTYPES[agreed.dtype]
        self._threads = max(1, (config.threads or default_threads()) // group.here)
        torch.set_num_threads(self._threads)
        with torch.inference_mode():
            weights = shard_weights(shard, dtype, weight_source(folder, shard.shape, DUMMY_SEED))
            model = ShardedDecoder(shard, weights, agreed.context_len, group)
        self._loaded = Loaded(model, folder, agreed.context_len, dtype, weights.num_weights)
        self._attention = attention_shape(self._loaded, agreed.kv_dtype)

    def num_pages(self) -> int:
        """For which this machine has memory, with all of its ranks."""
        config = self._config
        each = page_bytes(config.attention, self._attention, config.scheduler.page_size)
        return num_pages(config, self._loaded.context_len, each * self._here)

    def engine(self, pages: int) -> TorchEngine:
        config, loaded = self._config, self._loaded
        threads = Threads(self._threads, loaded.num_weights, 0)
        attention = make_attention(
            config.attention, self._attention, pages, config.scheduler.page_size, self._threads
        )
        return TorchEngine(loaded, attention, self._attention, pages, threads)


def _decided(config: RuntimeConfig, folder: Path | None, shape: ModelShape, device: str) -> Agreed:
    if device != "cpu":
        dtype = str(asked_model(config).dtype).removeprefix("torch.")
    elif folder is None:
        dtype = computable(config.dtype or "float32")
    else:
        dtype = data_type(config, read_config(folder), folder, frozenset())
    return Agreed(
        dtype=dtype,
        kv_dtype=config.kv_dtype or dtype,
        context_len=context_length(config, shape.context_len),
        checkpoint=_checkpoint(config, folder),
    )


def _checkpoint(config: RuntimeConfig, folder: Path | None) -> str:
    """The same on every rank, whatever the checkpoint is called there."""
    found = checkpoint_digests(config.model if folder is None else "", folder)
    return f"{found.weights} {found.config} {found.rope}"


# --- what a rank computes -------------------------------------------------------------------------


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
    parts = ShardSource(source, shard)

    def read(name: str) -> Tensor:
        if name == EMBEDDING and not shard.shape.tied_head:
            return torch.empty(0, shard.shape.hidden)  # no part of it is needed as the head
        return send(as_tensor(parts.array(name)))

    local = fused(shard.local_shape, dtype, read, progress=None, keep=keep)
    return replace(local, embedding=as_tensor(source.array(EMBEDDING)))


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
        self.most_logits = opened.budget  # all ranks gather them, and one reads them
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
