"""All ranks of a model as threads of this process: their sums are real, their network is a barrier.

An engine like any other for whoever drives it, in any floating type.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from lmprog.runtime.engine.attention import AttentionBackend, make_attention
from lmprog.runtime.engine.model.shape import ModelShape
from lmprog.runtime.engine.model.stored_weights import RandomSource, WeightSource, weight_source
from lmprog.runtime.engine.model.weight_table import expected
from lmprog.runtime.engine.sharded.shard import Shard
from lmprog.runtime.engine.sharded.sharded_engine import ShardedDecoder, shard_weights
from lmprog.runtime.engine.torch_engine.decoder import Decoder
from lmprog.runtime.engine.torch_engine.weights import load_weights, random_weights
from lmprog.runtime.scheduling.batch import Batch

SEED = 3
PAGE_SIZE = 16
NUM_PAGES = 120


class _Table:
    """Where the ranks lay down their parts."""

    def __init__(self, size: int) -> None:
        self.parts: list[Tensor] = [torch.empty(0)] * size
        self.barrier = threading.Barrier(size)


class ThreadRank:
    """One rank's `PartSums`."""

    def __init__(self, rank: int, table: _Table) -> None:
        self._rank, self._table = rank, table
        self.num_sums = self.num_gathers = 0

    def sum(self, part: Tensor) -> None:
        self.num_sums += 1
        part.copy_(torch.stack(self._all(part)).sum(0))

    def gather(self, part: Tensor) -> list[Tensor]:
        self.num_gathers += 1
        parts = self._all(part)
        return parts if self._rank == 0 else []

    def _all(self, part: Tensor) -> list[Tensor]:
        table = self._table
        table.parts[self._rank] = part.clone()
        table.barrier.wait()
        parts = list(table.parts)
        table.barrier.wait()
        return parts


class ThreadedRanks:
    """`size` ranks of a random model, or of the checkpoint in `folder`."""

    states = None

    num_pages = NUM_PAGES

    def __init__(
        self, shape: ModelShape, dtype: torch.dtype, size: int, folder: Path | None = None
    ) -> None:
        table = _Table(size)
        self._folder = folder
        self.ranks = [ThreadRank(rank, table) for rank in range(size)]
        self._forwards = [self._rank(shape, dtype, rank) for rank in self.ranks]
        self._threads = ThreadPoolExecutor(size, initializer=torch.set_num_threads, initargs=(1,))

    def _rank(
        self, shape: ModelShape, dtype: torch.dtype, rank: ThreadRank
    ) -> Callable[[Batch], Tensor]:
        shard = Shard(shape, self.ranks.index(rank), len(self.ranks))
        source: WeightSource = RandomSource(expected(shape), SEED)
        if self._folder is not None:
            source = weight_source(self._folder, shape)
        weights = shard_weights(shard, dtype, source)
        model = ShardedDecoder(shard, weights, shape.context_len, rank)
        return _forward(model, dtype)

    def forward(self, batch: Batch) -> Tensor:
        jobs = [self._threads.submit(forward, batch) for forward in self._forwards]
        results = [job.result() for job in jobs]
        return results[0]


class Whole:
    """The same model without ranks."""

    num_pages = NUM_PAGES
    states = None

    def __init__(self, shape: ModelShape, dtype: torch.dtype, folder: Path | None = None) -> None:
        if folder is None:
            weights = random_weights(shape, dtype, SEED)
        else:
            weights = load_weights(folder, shape, dtype)
        self.forward = _forward(Decoder(shape, weights, shape.context_len), dtype)


def _forward(model: Decoder, dtype: torch.dtype) -> Callable[[Batch], Tensor]:
    attention: AttentionBackend = make_attention(
        "reference", model.attention_shape(dtype), NUM_PAGES, PAGE_SIZE
    )

    def forward(batch: Batch) -> Tensor:
        with torch.inference_mode():
            return model.forward(batch, attention)

    return forward
