"""Attention in plain torch: slow, obvious, the judge of every other backend.

Each row's keys and values are gathered through its page table and attended to in float32, one row
at a time. Memory is one `[slots, kv_heads, dim]` tensor for the keys and one for the values of
every layer. Runs on any device.
"""

from __future__ import annotations

import math

import torch

from lmprog.runtime.engine.attention.backend import (
    AttentionShape,
    KvPool,
    LayerAttention,
    in_float8,
)
from lmprog.runtime.engine.machine.resources import aligned
from lmprog.runtime.scheduling.batch import Batch, Ints


class ReferenceAttention:
    """See `AttentionBackend` for the contract."""

    def __init__(
        self,
        shape: AttentionShape,
        num_pages: int,
        page_size: int,
        device: str | torch.device = "cpu",
    ) -> None:
        self.shape = shape
        self.page_size = page_size
        self._device = torch.device(device)
        self._batch: Batch | None = None
        slots, kept = num_pages * page_size, _kept(shape)
        sizes = [
            (slots, heads.num_kv_heads, dim)
            for heads in map(shape.heads_of, shape.keeping)
            for dim in (heads.head_dim, heads.v_head_dim)
        ]
        pool = KvPool(sum(aligned(math.prod(size) * kept.itemsize) for size in sizes), device)
        self.memory = [pool.take(size, kept) for size in sizes]
        """Keys, then values, of each layer that has its own."""
        own = {layer: 2 * at for at, layer in enumerate(shape.keeping)}
        places = [
            own[at if one.source is None else one.source] for at, one in enumerate(shape.layers)
        ]
        self.keys = [self.memory[place] for place in places]
        self.values = [self.memory[place + 1] for place in places]

    @staticmethod
    def page_bytes(shape: AttentionShape, page_size: int) -> int:
        """Memory of one page over all layers, known before a backend is made."""
        each = map(shape.heads_of, shape.keeping)
        numbers = sum(one.num_kv_heads * (one.head_dim + one.v_head_dim) for one in each)
        return numbers * page_size * _kept(shape).itemsize

    @property
    def bytes_per_page(self) -> int:
        return self.page_bytes(self.shape, self.page_size)

    def plan(self, batch: Batch) -> None:
        self._batch = batch
        if len(batch.copies) == 0:
            return
        source, target = self._indices(batch.copies[:, 0]), self._indices(batch.copies[:, 1])
        for memory in self.memory:
            memory[target] = memory[source]  # indexing reads all sources into a new tensor first

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        batch = self._batch
        assert batch is not None, "plan() comes before run()"
        keys, values = self.keys[layer], self.values[layer]
        if self.shape.layers[layer].source is None:
            self._write(layer, k, v, batch)
        heads = self.shape.heads_of(layer)
        out = q.new_empty(q.shape[0], heads.num_heads, heads.v_head_dim)
        for row in range(batch.num_rows):
            first, last = int(batch.row_starts[row]), int(batch.row_starts[row + 1])
            slots = self._slots_of(batch, row)
            positions = self._indices(batch.positions[first:last])
            out[first:last] = attend(
                q[first:last], keys[slots], values[slots], positions, self.shape.layers[layer]
            )
        return out

    def _write(self, layer: int, k: torch.Tensor, v: torch.Tensor, batch: Batch) -> None:
        keys, values = self.keys[layer], self.values[layer]
        tokens, slots = self._indices(batch.write_tokens), self._indices(batch.write_slots)
        if self.shape.dtype == torch.int8:
            k, v = in_bytes(k), in_bytes(v)
        elif (scales := self.shape.float8) is not None:
            k, v = in_float8(k, scales.keys[layer]), in_float8(v, scales.values[layer])
        keys[slots] = k[tokens].to(keys.dtype)
        values[slots] = v[tokens].to(values.dtype)

    def _slots_of(self, batch: Batch, row: int) -> torch.Tensor:
        """Where the row's positions 0 .. kv_len live. # [kv_len]"""
        pages = self._indices(batch.pages[batch.page_starts[row] : batch.page_starts[row + 1]])
        position = torch.arange(int(batch.kv_lens[row]), device=self._device)
        return pages[position // self.page_size] * self.page_size + position % self.page_size

    def _indices(self, array: Ints) -> torch.Tensor:
        return torch.as_tensor(array.astype("int64"), device=self._device)


def _kept(shape: AttentionShape) -> torch.dtype:
    """What memory holds: of 8 bits the numbers that they and their scales mean."""
    return torch.float32 if shape.kept.itemsize == 1 else shape.dtype


def in_bytes(x: torch.Tensor) -> torch.Tensor:
    """Each head of each token rounded to 8 bits with a scale of its own. # [tokens, heads, dim]"""
    exact = x.float()
    top = exact.abs().amax(-1, keepdim=True)
    most = torch.full_like(top, 127)  # `127 / top` multiplies by a rounded reciprocal
    steps = torch.where(top > 0, most / top, 0.0)
    return torch.round(exact * steps) * (top / most)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    layer: LayerAttention,
) -> torch.Tensor:
    """Causal attention of one row, in float32 (float64 stays float64).

    q [n, heads, dim] at `positions` [n]; k [kv_len, kv_heads, dim] and v [kv_len, kv_heads, v_dim]
    at positions 0 .. kv_len -> [n, heads, v_dim] in q's type. Query head h reads kv head h //
    (heads // kv_heads).
    """
    exact = torch.float64 if q.dtype == torch.float64 else torch.float32
    group = q.shape[1] // k.shape[1]
    k = k.to(exact).repeat_interleave(group, dim=1)
    v = v.to(exact).repeat_interleave(group, dim=1)
    scores = torch.einsum("nhd,mhd->hnm", q.to(exact), k) * layer.scale  # [heads, n, kv_len]
    if layer.softcap is not None:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    back = positions[:, None] - torch.arange(
        k.shape[0], device=q.device
    )  # how far back each key lies # [n, kv_len]
    hidden = back < 0
    if layer.window is not None:
        hidden |= back >= layer.window
    scores = scores.masked_fill(hidden, float("-inf"))
    if layer.sinks is not None:
        sinks = torch.tensor(layer.sinks, dtype=exact, device=q.device)[:, None, None]
        scores = torch.cat((scores, sinks.expand(-1, q.shape[0], 1)), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : k.shape[0]]
    return torch.einsum("hnm,mhd->nhd", weights, v).to(q.dtype)
