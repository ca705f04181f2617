"""Random ragged batches for attention tests: rows with shared and own pages, in shuffled page
order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from lmprog.runtime.engine.attention.backend import AttentionBackend, AttentionShape, LayerAttention
from lmprog.runtime.scheduling.batch import Batch


@dataclass(frozen=True, slots=True)
class Stretch:
    """One row: `count` tokens from position `start`, standing on `pages`."""

    start: int
    count: int
    pages: tuple[int, ...]


def shape_of(
    *,
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 32,
    v_dim: int | None = None,
    dtype: torch.dtype = torch.float32,
    window: int | None = None,
    softcap: float | None = None,
    sinks: tuple[float, ...] | None = None,
    num_layers: int = 1,
) -> AttentionShape:
    layer = LayerAttention(scale=dim**-0.5, window=window, softcap=softcap, sinks=sinks)
    return AttentionShape(
        (layer,) * num_layers, heads, kv_heads, dim, dim if v_dim is None else v_dim, dtype
    )


def batch_of(
    stretches: list[Stretch],
    page_size: int,
    *,
    copies: list[tuple[int, int]] | None = None,
    mirrors: list[tuple[int, int]] | None = None,
) -> Batch:
    """`mirrors` holds (token of the batch, second slot)."""
    positions = np.concatenate([np.arange(s.start, s.start + s.count) for s in stretches])
    slots = [
        s.pages[p // page_size] * page_size + p % page_size
        for s in stretches
        for p in _positions(s)
    ]
    mirrors = mirrors or []
    total = len(positions)

    def ints(values: object) -> np.ndarray:
        return np.ascontiguousarray(np.array(values, np.int32))

    return Batch(
        tokens=np.zeros(total, np.int32),
        positions=ints(positions),
        row_starts=ints([0, *np.cumsum([s.count for s in stretches])]),
        kv_lens=ints([s.start + s.count for s in stretches]),
        page_starts=ints([0, *np.cumsum([len(s.pages) for s in stretches])]),
        pages=ints([page for s in stretches for page in s.pages]),
        write_tokens=ints([*range(total), *(token for token, _ in mirrors)]),
        write_slots=ints([*slots, *(slot for _, slot in mirrors)]),
        copies=ints(copies or []).reshape(-1, 2),
        logit_tokens=ints([]),
        page_size=page_size,
    )


def _positions(stretch: Stretch) -> range:
    return range(stretch.start, stretch.start + stretch.count)


def inputs(
    rng: torch.Generator, shape: AttentionShape, tokens: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random q, k, v of `tokens` tokens."""
    q = torch.randn(tokens, shape.num_heads, shape.head_dim, generator=rng)
    k = torch.randn(tokens, shape.num_kv_heads, shape.head_dim, generator=rng)
    v = torch.randn(tokens, shape.num_kv_heads, shape.v_head_dim, generator=rng)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def run_step(
    backend: AttentionBackend,
    batch: Batch,
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    layer: int = 0,
) -> torch.Tensor:
    backend.plan(batch)
    return backend.run(layer, *qkv)


def random_rows(
    rng: np.random.Generator, num_pages: int, page_size: int, rows: int, longest: int
) -> list[list[Stretch]]:
    """Two steps over the same rows: first their contexts (some stand on a common prefix), then a
    few tokens more.

    Pages are handed out in random order; rows that share a prefix share its whole pages from the
    first step on, where one row writes them and all read them.
    """
    free = [int(page) for page in rng.permutation(num_pages)]
    prefix_pages = [
        free.pop() for _ in range(int(rng.integers(0, max(1, longest // page_size // 2) + 1)))
    ]
    prefix = len(prefix_pages) * page_size
    first, second = [], []
    if prefix:
        first.append(Stretch(0, prefix, tuple(prefix_pages)))
    for _ in range(rows):
        start = prefix if prefix and rng.random() < 0.6 else 0
        context, more = int(rng.integers(1, longest + 1)), int(rng.choice([1, 1, 1, 2, 7, 40]))
        own = -(-(context + more) // page_size)
        pages = tuple(prefix_pages[: start // page_size]) + tuple(free.pop() for _ in range(own))
        covered = -(-(start + context) // page_size)
        first.append(Stretch(start, context, pages[:covered]))
        second.append(Stretch(start + context, more, pages))
    return [first, second]
