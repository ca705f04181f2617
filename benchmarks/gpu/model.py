"""A roofline of a decode step: bytes, operations and launches, and how long they take at best.

    python -m benchmarks.gpu.model

Nothing here is measured: it says what the kernels would have to reach, to be compared with a GPU
when there is one. The plan of items is the real one, so its tiles, chunks and partials are counted
and not assumed. Knows shapes and figures of hardware.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lmprog.runtime.engine.batch import Batch
from lmprog.runtime.engine.device.items import AttentionItems, Tiling, plan_items

PAGE = 16


@dataclass(frozen=True, slots=True)
class Hardware:
    """Figures of a GPU. The defaults are an H200's as others measured or assumed them."""

    bytes_per_second: float = 4.3e12  # copy bandwidth of its memory
    cache_bytes_per_second: float = 5.5e12  # assumed, of the second-level cache
    operations_per_second: float = 450e12  # assumed, of attention on matrix units
    launch_seconds: float = 2e-6  # assumed, of a kernel in a graph


@dataclass(frozen=True, slots=True)
class Shape:
    """A model; the defaults are those of Llama 3 8B in 16 bits."""

    layers: int = 32
    heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    weight_bytes: float = 15e9

    @property
    def position_bytes(self) -> int:
        """Keys and values of one position in one layer."""
        return 2 * self.kv_heads * self.dim * 2


@dataclass(frozen=True, slots=True)
class Step:
    """Seconds of a decode step at best, and what they are made of."""

    paged: float  # attention that reads every branch's keys for itself
    once: float  # attention that reads each byte once: the limit
    tree: float  # attention by the items of our plan
    rest: float  # weights and launches

    @property
    def of_limit(self) -> float:
        """How much of the shared-prefix limit the items can reach."""
        return self.once / self.tree


def fork(branches: int, prefix: int, own: int) -> Batch:
    """A decode step of `branches` on one prefix, each with `own` tokens more."""
    shared, more = prefix // PAGE, -(-own // PAGE)
    table = np.empty((branches, shared + more), np.int32)
    table[:, :shared] = np.arange(shared)
    table[:, shared:] = shared + np.arange(branches * more).reshape(branches, more)
    each = np.arange(branches, dtype=np.int32)
    length = np.full(branches, prefix + own, np.int32)
    starts = np.arange(branches + 1, dtype=np.int32)
    return Batch(
        tokens=each,
        positions=length - 1,
        row_starts=starts,
        kv_lens=length,
        page_starts=starts * (shared + more),
        pages=table.reshape(-1),
        write_tokens=each,
        write_slots=each,
        copies=np.zeros((0, 2), np.int32),
        logit_tokens=each,
        page_size=PAGE,
    )


def step(batch: Batch, shape: Shape, hardware: Hardware) -> Step:
    """The seconds of `batch`."""
    items = plan_items(batch, Tiling(shape.heads // shape.kv_heads))
    lengths = batch.kv_lens.astype(np.int64)
    paged = int(lengths.sum()) * shape.position_bytes
    once = _distinct(batch) * shape.position_bytes
    # Every query meets every position of its own once, however positions are shared.
    operations = int(lengths.sum()) * shape.heads * shape.dim * 4
    computing = operations / hardware.operations_per_second
    once_seconds = max(once / hardware.bytes_per_second, computing)
    launches = 5  # two tiles, merge, write, and the norm before
    return Step(
        paged=shape.layers * max(paged / hardware.bytes_per_second, computing),
        once=shape.layers * once_seconds,
        tree=shape.layers * _tree(items, once, shape, hardware),
        rest=shape.weight_bytes / hardware.bytes_per_second
        + shape.layers * launches * hardware.launch_seconds,
    )


def _tree(items: AttentionItems, once: int, shape: Shape, hardware: Hardware) -> float:
    """One layer by items: distinct bytes from memory, what tiles read again from the cache, padded
    rows on the matrix units, partials written and read.
    """
    both = np.concatenate((items.small, items.large)).astype(np.int64)
    runs = both[:, 2] - both[:, 1]
    read = int(runs.sum()) * shape.position_bytes
    rows = np.concatenate((np.full(len(items.small), 16), np.full(len(items.large), 64)))
    operations = int((runs * rows).sum()) * shape.kv_heads * shape.dim * 4
    counts = np.diff(items.part_starts)
    merged = int(counts[counts > 1].sum())
    partials = 2 * merged * shape.heads * (shape.dim + 1) * 4
    return max(
        once / hardware.bytes_per_second,
        (read + partials) / hardware.cache_bytes_per_second,
        operations / hardware.operations_per_second,
    )


def _distinct(batch: Batch) -> int:
    """Positions that are read at all, each once."""
    lengths = np.diff(batch.page_starts)
    index = np.concatenate([np.arange(length) for length in lengths.tolist()])
    ends = np.repeat(batch.kv_lens, lengths) - index * batch.page_size
    filled = np.minimum(ends, batch.page_size)
    _, first = np.unique(batch.pages, return_index=True)
    return int(filled[first].sum())


SHAPES = [(16, 4096, 256), (64, 1024, 128), (64, 8192, 256), (256, 2048, 256), (256, 8192, 256)]
UNSHARED = [(32, 0, 4096)]


CACHES = (5.5e12, 8.0e12)
"""Bandwidths of the second-level cache between which the truth may lie; the model hangs on them
where a prefix has more branches than a tile has rows."""


def main() -> None:
    shape, slow, fast = Shape(), *(Hardware(cache_bytes_per_second=cache) for cache in CACHES)
    print("branches prefix  own | paged ms  once ms  items ms   of limit | step ms paged -> items")
    for branches, prefix, own in [*SHAPES, *UNSHARED]:
        batch = fork(branches, prefix, own)
        low, high = step(batch, shape, slow), step(batch, shape, fast)
        print(
            f"{branches:8} {prefix:6} {own:4} | {low.paged * 1e3:8.2f} {low.once * 1e3:8.2f} "
            f"{low.tree * 1e3:5.2f}-{high.tree * 1e3:.2f} "
            f"{low.of_limit:5.0%}-{high.of_limit:.0%} | "
            f"{(low.paged + low.rest) * 1e3:.2f} -> {(low.tree + low.rest) * 1e3:.2f}"
        )


if __name__ == "__main__":
    main()
