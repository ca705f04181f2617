"""The engine of a model that several ranks compute together: rank 0's, which the loop calls, and
what the other ranks do.

Rank 0 decides what a configuration leaves open and says it to the others, who check that they have
the same checkpoint. Then every rank loads its part, and all agree on the number of pages that each
has room for, so that page numbers mean the same everywhere. What goes wrong on any rank before that
is rank 0's error; afterwards it is the end of all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch

from lmprog.config import RuntimeConfig
from lmprog.errors import LmprogError, ModelError
from lmprog.runtime.engine.attention import make_attention, page_bytes
from lmprog.runtime.engine.device.device_engine import DeviceEngine
from lmprog.runtime.engine.device.loading import asked_model
from lmprog.runtime.engine.device.sampling import DeviceLogits, DeviceSampler
from lmprog.runtime.engine.machine.resources import default_threads
from lmprog.runtime.engine.model.checkpoint_digests import checkpoint_digests
from lmprog.runtime.engine.model.joined_weights import WeightSource
from lmprog.runtime.engine.model.locate import DUMMY_SEED, locate
from lmprog.runtime.engine.model.random_weights import RandomSource
from lmprog.runtime.engine.model.recipe import expected
from lmprog.runtime.engine.model.resolution import computable, context_length, data_type, num_pages
from lmprog.runtime.engine.model.shape import ModelShape, read_config
from lmprog.runtime.engine.model.stored_weights import stored_weights
from lmprog.runtime.engine.sharded.rank_group import RankGroup, end_process
from lmprog.runtime.engine.sharded.shard import Shard, shardable_shape
from lmprog.runtime.engine.sharded.sharded_decoder import ShardedDecoder, shard_weights
from lmprog.runtime.engine.sharded.sharded_device import DevicePart
from lmprog.runtime.engine.torch_engine.engine import (
    DTYPES,
    Loaded,
    Threads,
    TorchEngine,
    attention_shape,
)
from lmprog.runtime.engine.torch_engine.sampler import TorchSampler
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
    return DevicePart(replace(config, **same), shard, _source(folder, shard.shape), group)


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
            weights = shard_weights(shard, dtype, _source(folder, shard.shape))
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


def _source(folder: Path | None, shape: ModelShape) -> WeightSource:
    if folder is None:
        return RandomSource(expected(shape), DUMMY_SEED)
    stored = stored_weights(folder, shape)
    stored.check(expected(shape), shape.tied_head)
    return stored
