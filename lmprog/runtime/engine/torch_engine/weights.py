"""The weights of a checkpoint, or random ones, in the fused form that the torch decoder computes
with.

What a product is made of, in which order, and what is normalized around it, the table of weights
says (`weight_table`); here norms are folded into products, and rows of heads are reordered. Files
are memory-mapped and read one layer at a time, so that the peak is the model plus one layer. All
arithmetic is in float32 before the one conversion to the model's type.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from lmprog.runtime.engine.model.derived_weights import DerivedWeights, Float8Weight
from lmprog.runtime.engine.model.mixture import Mixture
from lmprog.runtime.engine.model.shape import ModelShape
from lmprog.runtime.engine.model.stored_weights import stored_weights, weight_source
from lmprog.runtime.engine.model.weight_table import (
    EMBEDDING,
    Matrix,
    Part,
    Vector,
    head,
    norm,
    products,
    vectors,
)
from lmprog.runtime.engine.torch_engine.decoder import (
    ExpertBiases,
    LayerWeights,
    MixtureWeights,
    Weights,
)

Read = Callable[[str], Tensor]
"""Gives the weight of that name, in any floating type."""
Keep = Callable[[Tensor], Tensor]
"""Where a finished weight goes."""
ReadFloat8 = Callable[[str], Float8Weight | None]
"""Gives the matrix of that name as it is stored; None where it is of no 8-bit floats."""


def load_weights(
    folder: Path, shape: ModelShape, dtype: torch.dtype, progress: bool | None = None
) -> Weights:
    """The weights of `folder` as `dtype`. `progress` shows a bar; None: on a terminal, if it takes
    long.
    """
    return fused(shape, dtype, weight_reader(folder, shape), progress)


def random_weights(shape: ModelShape, dtype: torch.dtype, seed: int) -> Weights:
    """Weights drawn from `seed`: a model that computes like any other and says nothing sensible."""
    return fused(shape, dtype, weight_reader(None, shape, seed), progress=False)


def weight_reader(folder: Path | None, shape: ModelShape, seed: int = 0) -> Read:
    """Gives the weights of `folder`, which fit `shape`, or random ones."""
    source = weight_source(folder, shape, seed)
    return lambda name: as_tensor(source.array(name))


def float8_reader(folder: Path, shape: ModelShape) -> ReadFloat8:
    """Of the weights of `folder`, each by itself."""
    stored = stored_weights(folder, shape)
    return stored.float8 if isinstance(stored, DerivedWeights) else lambda _: None


def as_tensor(array: NDArray[Any]) -> Tensor:
    """A tensor in the array's memory; 16 bits without a type are bfloat16."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor


def fused(
    shape: ModelShape,
    dtype: torch.dtype,
    read: Read,
    progress: bool | None,
    keep: Keep = lambda finished: finished,
) -> Weights:
    """All weights of a model, one layer after the other; all arithmetic is done where `read` puts
    them. `progress` shows a bar; None: on a terminal, once it has taken a second.
    """
    embedding = keep(read(EMBEDDING).to(dtype))
    output = embedding if shape.tied_head else keep(read(head(shape).parts[0].weight).to(dtype))
    layers = tqdm(
        range(shape.num_layers),
        desc="loading",
        unit="layer",
        leave=False,
        disable=None if progress is None else not progress,
        delay=1.0 if progress is None else 0.0,
    )
    built = tuple(_kept(_Layer(shape, dtype, read, index).build(), keep) for index in layers)
    last = _numbers(norm(shape), shape, read) * shape.logit_scale
    mixture = shape.mixture
    met = 0 if mixture is None else mixture.used + mixture.shared_parts
    return Weights(embedding, built, keep(last.to(dtype)), output.t(), experts_met=met)


def _kept(layer: LayerWeights, keep: Keep) -> LayerWeights:
    weights = {field.name: getattr(layer, field.name) for field in fields(layer)}
    there: dict[str, Any] = {
        name: keep(weight) for name, weight in weights.items() if isinstance(weight, Tensor)
    }
    there["norms"] = {name: keep(weight) for name, weight in layer.norms.items()}
    if layer.mixture is not None:
        there["mixture"] = layer.mixture.kept(keep)
    return replace(layer, **there)


def fused_low_rank(
    shape: ModelShape, read: Read | None, index: int, product: str, part: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """What is added to a fused product of layer `index`, in its form: `part` is down [R, inputs],
    up [outputs, R], as weights of the checkpoint are. `read` gives the norms that are folded into
    products; None where they are not. # [inputs, R], [R, outputs]
    """
    layer = _Layer(shape, torch.float32, read or _nothing, index)
    down, up = layer.low_rank(product, *part, is_folded=read is not None)
    return down.t().contiguous(), up.t().contiguous()


def _nothing(name: str) -> Tensor:
    raise KeyError(name)


@dataclass(frozen=True, slots=True)
class LayerVectors:
    """What a layer has besides products, where norms are not folded into these."""

    qkv_bias: Tensor | None
    out_bias: Tensor | None
    gate_up_bias: Tensor | None
    down_bias: Tensor | None
    qk_norm: Tensor | None  # [heads + kv_heads, head_dim], in pairs
    attention_norm: Tensor  # [hidden], of what goes in
    mlp_norm: Tensor


def layer_vectors(shape: ModelShape, dtype: torch.dtype, read: Read, index: int) -> LayerVectors:
    """Those of a model whose halves are normalized before, and not scaled after."""
    return _Layer(shape, dtype, read, index).vectors()


class _Layer:
    """The building of one layer."""

    def __init__(self, shape: ModelShape, dtype: torch.dtype, read: Read, index: int) -> None:
        self._shape = shape
        self._dtype = dtype
        self._read = read
        self._products, self._vectors = products(shape, index), vectors(shape, index)
        self._mixture = shape.mixture_of(index)

    def build(self) -> LayerWeights:
        """With its mixture, where it has one."""
        mixture = self._mixture
        nothing = torch.empty(0, dtype=self._dtype)
        return LayerWeights(
            qkv=self._product(self._products["qkv"]),
            out=self._product(self._products["out"]),
            gate_up=self._product(self._products["gate_up"]) if mixture is None else nothing,
            down=self._product(self._products["down"]) if mixture is None else nothing,
            qkv_bias=self._bias("qkv_bias"),
            out_bias=self._bias("out_bias"),
            gate_up_bias=self._bias("gate_bias", "up_bias") if mixture is None else None,
            down_bias=self._bias("down_bias") if mixture is None else None,
            qk_norm=self._qk_norm(),
            mixture=None if mixture is None else self._experts(mixture),
            sinks=self._vector(self._vectors["sinks"]) if "sinks" in self._vectors else None,
            norms=self._unfolded_norms(),
        )

    def vectors(self) -> LayerVectors:
        """See `layer_vectors`."""
        return LayerVectors(
            qkv_bias=self._bias("qkv_bias"),
            out_bias=self._bias("out_bias"),
            gate_up_bias=self._bias("gate_bias", "up_bias"),
            down_bias=self._bias("down_bias"),
            qk_norm=self._qk_norm(),
            attention_norm=self._norm("attention_norm").to(self._dtype),
            mlp_norm=self._norm("mlp_norm").to(self._dtype),
        )

    def low_rank(
        self, name: str, down: Tensor, up: Tensor, is_folded: bool
    ) -> tuple[Tensor, Tensor]:
        """Both in the form that the products have: the order of rows, and what ends a half, are in
        `up`; the norm of what goes in is in `down` where `is_folded`.
        """
        product = self._products[name]
        stretches = torch.split(up, [part.rows for part in product.parts])
        rows = [self._ordered(*one) for one in zip(stretches, product.parts, strict=True)]
        up = self._ending(_stacked(rows), product)
        return self._folded(down, product) if is_folded else down, up

    def _experts(self, mixture: Mixture) -> MixtureWeights:
        """The table has a gate and its partner for each expert, and what ends it."""
        both, ends = self._products["gate_up"], self._products["down"]
        count = mixture.computed_experts
        gates = [
            self._product(both, both.parts[2 * expert : 2 * expert + 2]) for expert in range(count)
        ]
        downs = [self._product(ends, ends.parts[expert : expert + 1]) for expert in range(count)]
        exact = torch.promote_types(self._dtype, torch.float32)
        router = self._product(self._products["router"], dtype=exact)
        biases = self._expert_biases(exact) if mixture.biases else None
        chosen_by = self._vectors.get("choice_bias")
        choice = None if chosen_by is None else self._vector(chosen_by).to(exact)
        return MixtureWeights(router, torch.stack(gates), torch.stack(downs), biases, choice)

    def _expert_biases(self, router_type: torch.dtype) -> ExpertBiases:
        gate, up, down = (
            torch.stack([self._read(part.name).float() for part in self._vectors[name].parts])
            for name in ("gate_bias", "up_bias", "down_bias")
        )
        return ExpertBiases(
            self._vector(self._vectors["router_bias"]).to(router_type),
            torch.cat((gate, up), 1).to(self._dtype),
            self._ending(down, self._products["down"]).to(self._dtype),
        )

    def _product(
        self,
        product: Matrix,
        parts: tuple[Part, ...] | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """As `x @ weight` wants it, of those `parts`; None: of all. # [in, out]"""
        rows = [
            self._ordered(self._read(part.weight).float(), part)
            for part in (product.parts if parts is None else parts)
        ]
        weight = self._ending(self._folded(_stacked(rows), product), product)
        return weight.t().contiguous().to(self._dtype if dtype is None else dtype)

    def _ordered(self, rows: Tensor, part: Part) -> Tensor:
        return paired(self._shape, rows, part.heads) if part.heads else rows

    def _folded(self, weight: Tensor, product: Matrix) -> Tensor:
        """`weight` after the weights of the norm before it, expecting tokens of length one instead
        of mean square one; without a norm as it is.
        """
        if product.norm is None:
            return weight
        scale: Tensor = self._norm(product.norm) * math.sqrt(self._shape.hidden)
        return weight * scale

    def _ending(self, weight: Tensor, product: Matrix) -> Tensor:
        """What ends a half is scaled before it is added; by its norm, where that comes after."""
        is_last = product.ends_half and product.post_norm is None
        return weight * self._shape.residual_scale if is_last else weight

    def _bias(self, *names: str) -> Tensor | None:
        """Of a product: one vector after the other; None where the model has none."""
        found = [self._vector(self._vectors[name]) for name in names if name in self._vectors]
        if not found:
            return None
        product = self._products.get(names[0].removesuffix("_bias"))
        whole = _stacked(found)
        return (whole if product is None else self._ending(whole, product)).to(self._dtype)

    def _norm(self, name: str) -> Tensor:
        return self._vector(self._vectors[name])

    def _unfolded_norms(self) -> dict[str, Tensor]:
        """Those that no product has taken up, by place. What ends a half scales what is added."""
        before = {product.norm for product in self._products.values()}
        after = {product.post_norm for product in self._products.values()}
        found = {}
        for place in fields(self._shape.norms):
            if place.name in self._vectors and place.name not in before:
                scale = self._shape.residual_scale if place.name in after else 1.0
                found[place.name] = (self._norm(place.name) * scale).to(self._dtype)
        return found

    def _qk_norm(self) -> Tensor | None:
        """The weight of every query head, then of every key head. # [heads + kv_heads, head_dim]"""
        if "q_norm" not in self._vectors:
            return None
        counts = {"q_norm": self._shape.num_heads, "k_norm": self._shape.num_kv_heads}
        found = [
            self._norm(name).view(-1, self._shape.head_dim).expand(count, -1)
            for name, count in counts.items()
        ]
        return torch.cat(found).to(self._dtype)

    def _vector(self, vector: Vector) -> Tensor:
        return _numbers(vector, self._shape, self._read)


def _numbers(vector: Vector, shape: ModelShape, read: Read) -> Tensor:
    """Those of heads in pairs."""
    found = [(read(part.name).float(), part.heads) for part in vector.parts]
    whole = _stacked([paired(shape, one, heads) if heads else one for one, heads in found])
    return whole + vector.plus if vector.plus else whole


def _stacked(rows: list[Tensor]) -> Tensor:
    """Without a copy of a single one."""
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def paired(shape: ModelShape, rows: Tensor, heads: int) -> Tensor:
    """Rows of each head, as far as they are rotated, reordered from halves (0, 1, .. | h, h+1, ..)
    to pairs (0, h, 1, h+1, ..); as they are where they are so in the checkpoint.
    """
    if shape.rotates_pairs:
        return rows
    turned, rest = shape.rotary_dim or shape.head_dim, rows.shape[1:]
    whole = rows.view(heads, shape.head_dim, *rest)
    halves = whole[:, :turned].reshape(heads, 2, turned // 2, *rest)
    pairs = halves.transpose(1, 2).reshape(heads, turned, *rest)
    return torch.cat((pairs, whole[:, turned:]), 1).reshape(rows.shape)
