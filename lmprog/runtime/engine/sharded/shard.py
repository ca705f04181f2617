"""Which part of a model a rank has: heads of attention, columns of the feed-forward, tokens of the
vocabulary.

A product whose outputs are split is followed by one whose inputs are split alike, so that a layer
needs two sums over all ranks and nothing else. Which weights are shared along which axis, the table
of weights says (`weight_table`). Knows shapes; computes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmprog.config import RuntimeConfig
from lmprog.config_check import check_options
from lmprog.errors import InvalidParameter
from lmprog.runtime.engine.device.choice import chosen_device
from lmprog.runtime.engine.model.families import read_native_shape, shardable_families
from lmprog.runtime.engine.model.locate import dummy_shape
from lmprog.runtime.engine.model.mixture import Mixture
from lmprog.runtime.engine.model.shape import ModelShape, read_config
from lmprog.runtime.engine.model.stored_weights import WeightSource
from lmprog.runtime.engine.model.weight_table import Split, splits

_WORD = 8
"""Numbers of 16 bits that a GPU's kernel reads at once."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of rank `rank` of `size`. Several ranks share a key/value head where there are fewer
    of them than ranks: each keeps a copy of it.
    """

    shape: ModelShape
    """Of the whole model."""
    rank: int
    size: int

    @property
    def heads(self) -> slice:
        return _even(self.shape.num_heads, self.rank, self.size)

    @property
    def kv_heads(self) -> slice:
        count = self.shape.num_kv_heads
        if count >= self.size:
            return _even(count, self.rank, self.size)
        first = self.rank * count // self.size
        return slice(first, first + 1)

    @property
    def inner(self) -> slice:
        """In whole words of a GPU, where all of them are whole."""
        return self._columns(self.shape.inner)

    @property
    def expert_inner(self) -> slice:
        """Of each expert of a mixture."""
        return self._columns(0 if self.shape.mixture is None else self.shape.mixture.inner)

    def _columns(self, count: int) -> slice:
        word = _WORD if count % _WORD == 0 else 1
        return _times(_even(count // word, self.rank, self.size), word)

    @property
    def vocabulary(self) -> slice:
        """As many tokens for each rank, but for the last ones."""
        each, last = self.vocabulary_part, self.shape.vocab_size
        return slice(min(self.rank * each, last), min((self.rank + 1) * each, last))

    @property
    def vocabulary_part(self) -> int:
        return -(-self.shape.vocab_size // self.size)

    @property
    def local_shape(self) -> ModelShape:
        """What the rank's own decoder computes."""
        return replace(
            self.shape,
            num_heads=_count(self.heads),
            num_kv_heads=_count(self.kv_heads),
            inner=_count(self.inner),
            mixture=self._local_mixture,
        )

    @property
    def _local_mixture(self) -> Mixture | None:
        """The same experts, each with fewer columns."""
        mixture, inner = self.shape.mixture, _count(self.expert_inner)
        if mixture is None:
            return None
        shared = mixture.shared
        if shared is not None:
            shared = replace(shared, inner=mixture.shared_parts * inner)
        return replace(mixture, inner=inner, shared=shared)

    def part_of(self, split: Split | None) -> tuple[slice, slice]:
        """The rows and columns that the rank has of a weight that is shared so; of a vector the
        rows alone count.
        """
        whole, dim = slice(None), self.shape.head_dim
        if split is None:
            return whole, whole
        match split.of:
            case "heads":
                own = _times(self.heads, dim)
            case "kv_heads":
                own = _times(self.kv_heads, dim)
            case "inner":
                own = self.inner
            case "expert_inner":
                own = self.expert_inner
            case "vocabulary":
                own = self.vocabulary
        return (whole, own) if split.axis else (own, whole)


class ShardSource:
    """Gives a rank's parts of weights. The memory that held the rest is released at once, so that
    the peak is the rank's own parts and one whole weight.
    """

    def __init__(self, source: WeightSource, shard: Shard) -> None:
        self._source = source
        self._shard = shard
        self._splits = splits(shard.shape)

    def array(self, name: str) -> NDArray[Any]:
        whole = self._source.array(name)
        rows, columns = self._shard.part_of(self._splits[name])
        part = np.array(whole[rows, columns] if whole.ndim == 2 else whole[rows], order="C")
        self._source.release(name, 0, len(whole))
        return part


def check_ranks(config: RuntimeConfig) -> None:
    """Raises InvalidParameter for what `tp` ranks cannot do together with other options."""
    if config.tp == 1:
        check_options(config)
        return
    check_options(config, "processor" if config.device in ("cpu", "auto") else "device")
    if config.device.startswith("cuda:"):
        says = "every rank has a GPU of its own, by its number on its machine; device is 'cuda'"
        raise _refused("device", config.device, says)
    rank_device(config, config.tp - 1 if config.tp_ranks == "local" else 0)


def rank_device(config: RuntimeConfig, local: int) -> str:
    """What the rank of that number on its machine computes on; with "auto" the processor. Raises
    NotSupported where it is not there.
    """
    if config.device == "auto":
        return "cpu"
    return chosen_device(f"cuda:{local}" if config.device == "cuda" else config.device)


def shardable_shape(config: RuntimeConfig, folder: Path | None) -> ModelShape:
    """The shape of the checkpoint in `folder`, or of a dummy. Raises InvalidParameter where so many
    ranks cannot compute it, ModelError where nobody can.
    """
    if folder is None:
        shape = dummy_shape(config.model)
    else:
        described = read_config(folder)
        name = described["model_type"]
        if name not in shardable_families():
            known = ", ".join(shardable_families())
            says = f"tp = {config.tp} is for models of our own decoder ({known}), not for {name}"
            raise _refused("tp", config.tp, says)
        shape = read_native_shape(described)
    is_joint = shape.mixture is not None or shape.qk_norm_wide
    if is_joint and config.device not in ("cpu", "auto"):
        what = "mixtures of experts, and heads that are normalized together,"
        says = f"tp = {config.tp}: {what} are computed on the processor only"
        raise _refused("device", config.device, says)
    check_heads(shape, config.tp)
    return shape


def check_heads(shape: ModelShape, size: int) -> None:
    """Raises InvalidParameter where the model's heads cannot be spread over so many ranks."""
    heads, kv_heads = shape.num_heads, shape.num_kv_heads
    fits = heads % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0)
    if not fits:
        possible = [
            n
            for n in range(2, heads + 1)
            if heads % n == 0 and (kv_heads % n == 0 or n % kv_heads == 0)
        ]
        says = (
            f"{heads} heads with {kv_heads} key/value heads cannot be spread evenly over tp = "
            f"{size} ranks"
        )
        allowed = ", ".join(map(str, possible))
        raise InvalidParameter(
            f"{says}; this model allows {allowed}", name="tp", value=size, allowed=allowed
        )


def _refused(name: str, value: str | float, says: str) -> InvalidParameter:
    return InvalidParameter(says, name=name, value=value)


def _even(count: int, rank: int, size: int) -> slice:
    return slice(rank * count // size, (rank + 1) * count // size)


def _times(part: slice, each: int) -> slice:
    return slice(part.start * each, part.stop * each)


def _count(part: slice) -> int:
    return int(part.stop - part.start)
