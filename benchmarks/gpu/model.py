"""A roofline of a decode step: bytes, operations and launches, and how long they take at best.

    python -m benchmarks.gpu.model

Nothing here is measured: it says what the kernels would have to reach, to be compared with a GPU
when there is one. The plan of items is the real one, so its tiles, chunks and partials are counted
and not assumed. Knows shapes and figures of hardware.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks import runner
from benchmarks.models import batch
from lmprog.runtime.engine.device.items import AttentionItems, Tiling, plan_items
from lmprog.runtime.scheduling.batch import Batch


@dataclass(frozen=True, slots=True)
class Hardware:
    """Figures of a GPU. The defaults are an H200's as others measured or assumed them."""

    bytes_per_second: float = 4.3e12  # copy bandwidth of its memory
    cache_bytes_per_second: float = 5.5e12  # assumed, of the second-level cache
    operations_per_second: float = 450e12  # assumed, of attention on matrix units
    launch_seconds: float = 2e-6  # assumed, of a kernel in a graph
    integers_per_second: float = 132 * 64 * 1.75e9  # of 32 bits, by the programming guide


@dataclass(frozen=True, slots=True)
class Shape:
    """A model; the defaults are those of Llama 3 8B in 16 bits."""

    layers: int = 32
    heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    hidden: int = 4096
    inner: int = 14336
    vocab: int = 128_256
    kept_bytes: int = 2
    """Of a number of a key or value: 1 for e4m3 floats."""

    @property
    def position_bytes(self) -> int:
        """Keys and values of one position in one layer."""
        return 2 * self.kv_heads * self.dim * self.kept_bytes

    @property
    def products(self) -> list[tuple[int, int, int]]:
        """How many of them there are, with so many outputs and inputs each."""
        wide = self.heads * self.dim
        return [
            (self.layers, wide + 2 * self.kv_heads * self.dim, self.hidden),
            (self.layers, self.hidden, wide),
            (self.layers, 2 * self.inner, self.hidden),
            (self.layers, self.hidden, self.inner),
            (1, self.vocab, self.hidden),
        ]

    @property
    def weight_bytes(self) -> float:
        """In 16 bits; of embeddings next to nothing is read."""
        return 2.0 * sum(count * outputs * inputs for count, outputs, inputs in self.products)


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
    return batch(branches, 1, prefix + own - 1, prefix)


def step(made: Batch, shape: Shape, hardware: Hardware) -> Step:
    """The seconds of a batch."""
    items = plan_items(made, Tiling(shape.heads // shape.kv_heads))
    lengths = made.kv_lens.astype(np.int64)
    paged = int(lengths.sum()) * shape.position_bytes
    once = _distinct(made) * shape.position_bytes
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
    # each of a large tile's four warps makes numbers of all bytes of its keys and values
    made = int((runs * np.where(rows == 64, 4, 1)).sum()) * shape.position_bytes
    integers = made * _CONVERSION if shape.kept_bytes == 1 else 0
    return max(
        integers / hardware.integers_per_second,
        once / hardware.bytes_per_second,
        (read + partials) / hardware.cache_bytes_per_second,
        operations / hardware.operations_per_second,
    )


def _distinct(made: Batch) -> int:
    """Positions that are read at all, each once."""
    lengths = np.diff(made.page_starts)
    index = np.concatenate([np.arange(length) for length in lengths.tolist()])
    ends = np.repeat(made.kv_lens, lengths) - index * made.page_size
    filled = np.minimum(ends, made.page_size)
    _, first = np.unique(made.pages, return_index=True)
    return int(filled[first].sum())


_CONVERSION = 11 / 4
"""Instructions on integers for a byte: eight to make numbers of a word, three to look for what is
none (dev.cuh)."""
_MOST_SMALL = 64
"""Tokens that our products take (products.py); beyond, weights are unpacked for cuBLAS."""
WEIGHTS = {"16 bits": 2.0, "int8": 1.0, "fp8": 1.0, "int4": 0.5 + 4 / 32}
"""Bytes of a weight; scales of whole outputs are left out, as next to nothing."""


def products(tokens: int, kind: str, shape: Shape, hardware: Hardware) -> float:
    """Seconds of all products of a step with weights of that kind."""
    return sum(
        count * _product((outputs, inputs), tokens, kind, hardware)
        for count, outputs, inputs in shape.products
    )


def _product(size: tuple[int, int], tokens: int, kind: str, hardware: Hardware) -> float:
    """Of weights [outputs, inputs]: once from memory; what tiles read of weights and activations
    from the cache, and what is unpacked there and back; whole tiles on the matrix units.
    """
    outputs, inputs = size
    weights = outputs * inputs
    stored = weights * WEIGHTS[kind]
    # product.cuh: 32 outputs by 16 tokens, or 64 by 32; they read 16-bit activations
    high, wide = (32, 16) if tokens <= 16 else (64, 32)
    across = -(-tokens // wide)
    launches, padded = 1, across * wide
    if kind == "16 bits":
        cached, padded = stored, tokens
    elif tokens <= _MOST_SMALL:
        cached = across * stored + across * wide * 2 * weights / high
    else:
        launches, padded = 2 * -(-2 * weights // (64 << 20)), tokens
        cached = stored + 2 * 2 * weights
    return launches * hardware.launch_seconds + max(
        stored / hardware.bytes_per_second,
        cached / hardware.cache_bytes_per_second,
        2 * weights * padded / hardware.operations_per_second,
    )


SHAPES = [(16, 4096, 256), (64, 1024, 128), (64, 8192, 256), (256, 2048, 256), (256, 8192, 256)]
UNSHARED = [(32, 0, 4096)]
TOKENS = (1, 16, 64, 256)


CACHES = (5.5e12, 8.0e12)
"""Bandwidths of the second-level cache between which the truth may lie; the model hangs on them
where a prefix has more branches than a tile has rows."""


def print_attention(shape: Shape) -> None:
    slow, fast = (Hardware(cache_bytes_per_second=cache) for cache in CACHES)
    print("branches prefix  own | paged ms  once ms  items ms   of limit | step ms paged -> items")
    for branches, prefix, own in [*SHAPES, *UNSHARED]:
        made = fork(branches, prefix, own)
        low, high = step(made, shape, slow), step(made, shape, fast)
        print(
            f"{branches:8} {prefix:6} {own:4} | {low.paged * 1e3:8.2f} {low.once * 1e3:8.2f} "
            f"{low.tree * 1e3:5.2f}-{high.tree * 1e3:.2f} "
            f"{low.of_limit:5.0%}-{high.of_limit:.0%} | "
            f"{(low.paged + low.rest) * 1e3:.2f} -> {(low.tree + low.rest) * 1e3:.2f}"
        )


@runner.command
def main() -> None:
    for kept_bytes in (2, 1):
        print(f"keys and values of {8 * kept_bytes} bits")
        print_attention(Shape(kept_bytes=kept_bytes))
    print("all products of a step, ms")
    print("tokens | " + " ".join(f"{kind:>12}" for kind in WEIGHTS))
    for tokens in TOKENS:
        found = [
            [
                products(tokens, kind, Shape(), Hardware(cache_bytes_per_second=cache)) * 1e3
                for cache in CACHES
            ]
            for kind in WEIGHTS
        ]
        print(f"{tokens:6} | " + " ".join(f"{low:6.2f}-{high:.2f} " for low, high in found))
