"""Weights that a checkpoint keeps as one, by the names that they have elsewhere (Phi 3).

Queries, keys and values are rows of one matrix there, and so are gate and up. Knows names and rows.
"""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from lmprog.runtime.engine.model.shape import ModelShape


class WeightSource(Protocol):
    """Where whole weights come from: a checkpoint, or random numbers."""

    def array(self, name: str) -> NDArray[Any]: ...
    def release(self, name: str, first: int, end: int) -> None: ...


class SplitWeights:
    """`source` with each of the joined weights by itself."""

    def __init__(self, source: WeightSource, shape: ModelShape) -> None:
        self._source = source
        queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        qkv, both = "self_attn.qkv_proj", "mlp.gate_up_proj"
        self._rows = {
            "self_attn.q_proj": (qkv, 0, queries),
            "self_attn.k_proj": (qkv, queries, queries + keys),
            "self_attn.v_proj": (qkv, queries + keys, queries + 2 * keys),
            "mlp.gate_proj": (both, 0, shape.inner),
            "mlp.up_proj": (both, shape.inner, 2 * shape.inner),
        }

    def array(self, name: str) -> NDArray[Any]:
        joined, first, end = self._place(name)
        return self._source.array(name) if not end else self._source.array(joined)[first:end]

    def release(self, name: str, first: int, end: int) -> None:
        joined, begin, last = self._place(name)
        if last:
            self._source.release(joined, begin + first, begin + end)
        else:
            self._source.release(name, first, end)

    def _place(self, name: str) -> tuple[str, int, int]:
        """The joined weight and the rows that are this one; no rows where it is kept alone."""
        for own, (joined, first, end) in self._rows.items():
            if name.endswith(f".{own}.weight"):
                return name.replace(own, joined), first, end
        return name, 0, 0


def split_weights(source: WeightSource, shape: ModelShape) -> WeightSource:
    """`source`, with joined weights by themselves where the shape has such."""
    return SplitWeights(source, shape) if shape.joined else source
