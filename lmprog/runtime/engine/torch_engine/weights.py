"""The weights of a checkpoint, or random ones, in the fused form that the torch decoder computes
with.

Knows which products are joined, what is folded into them and how rows are reordered. Files are
memory-mapped and read one layer at a time, so that the peak is the model plus one layer. All
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
from lmprog.runtime.engine.model.joined_weights import WeightSource, split_weights
from lmprog.runtime.engine.model.mixture import Mixture
from lmprog.runtime.engine.model.recipe import expected
from lmprog.runtime.engine.model.shape import ModelShape
from lmprog.runtime.engine.model.stored_weights import RandomSource, stored_weights
from lmprog.runtime.engine.torch_engine.decoder import LayerWeights, MixtureWeights, Weights

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


def weight_source(folder: Path | None, shape: ModelShape, seed: int = 0) -> WeightSource:
    """The same as arrays, whose memory can be released."""
    if folder is None:
        return RandomSource(expected(shape), seed)
    checkpoint = stored_weights(folder, shape)
    checkpoint.check(expected(shape), shape.tied_head)
    return split_weights(checkpoint, shape)


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
    embedding = keep(read("model.embed_tokens.weight").to(dtype))
    head = embedding if shape.tied_head else keep(read("lm_head.weight").to(dtype))
    layers = tqdm(
        range(shape.num_layers),
        desc="loading",
        unit="layer",
        leave=False,
        disable=None if progress is None else not progress,
        delay=1.0 if progress is None else 0.0,
    )
    built = tuple(
        _kept(
            _Layer(shape, dtype, read, f"model.layers.{index}.").build(shape.mixture_of(index)),
            keep,
        )
        for index in layers
    )
    norm = (read("model.norm.weight").float() + _plus(shape)) * shape.logit_scale
    mixture = shape.mixture
    met = 0 if mixture is None else mixture.used + mixture.shared_parts
    return Weights(embedding, built, keep(norm.to(dtype)), head.t(), experts_met=met)


def _kept(layer: LayerWeights, keep: Keep) -> LayerWeights:
    weights = {field.name: getattr(layer, field.name) for field in fields(layer)}
    there: dict[str, Any] = {
        name: keep(weight) for name, weight in weights.items() if isinstance(weight, Tensor)
    }
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
    layer = _Layer(shape, torch.float32, read or _nothing, f"model.layers.{index}.")
    down, up = layer.low_rank(product, *part)
    if read is not None:
        down = layer.after_norm(product, down)
    return down.t().contiguous(), up.t().contiguous()


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
    return _Layer(shape, dtype, read, f"model.layers.{index}.").vectors()


def paired_rows(shape: ModelShape, heads: int) -> Tensor:
    """Which rows of a checkpoint's query or key weights are those of the fused form. # [rows]"""
    layer = _Layer(shape, torch.float32, _nothing, "")
    return layer.paired(torch.arange(heads * shape.head_dim), heads)


def _nothing(name: str) -> Tensor:
    raise KeyError(name)


_NORMS = {
    "before": ("input_layernorm", None, "post_attention_layernorm", None),
    "after": (None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
    "both": (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
}
"""Before and after attention, before and after the feed-forward."""


def _plus(shape: ModelShape) -> float:
    return 1.0 if shape.norms_add_one else 0.0


class _Layer:
    """The building of one layer."""

    def __init__(self, shape: ModelShape, dtype: torch.dtype, read: Read, prefix: str) -> None:
        self._shape = shape
        self._dtype = dtype
        self._read = read
        self._prefix = prefix

    def build(self, mixture: Mixture | None) -> LayerWeights:
        """With its mixture, where it has one."""
        shape = self._shape
        q = self.paired(self._weight("self_attn.q_proj"), shape.num_heads)
        k = self.paired(self._weight("self_attn.k_proj"), shape.num_kv_heads)
        qkv = torch.cat((q, k, self._weight("self_attn.v_proj")))
        before, after, _, after_mlp = _NORMS[shape.norms]
        if mixture is None:
            names = "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"
            gate_up, down = self._feed_forward(*names)
        else:
            gate_up = down = torch.empty(0, dtype=self._dtype)
        return LayerWeights(
            qkv=self._product(self._folded(qkv, before)),
            out=self._product(self._ending(self._weight("self_attn.o_proj"))),
            gate_up=gate_up,
            down=down,
            qkv_bias=self._qkv_bias() if shape.qkv_bias else None,
            out_bias=self._bias("self_attn.o_proj") if shape.out_bias else None,
            gate_up_bias=self._gate_up_bias() if shape.mlp_bias else None,
            down_bias=self._bias("mlp.down_proj") if shape.mlp_bias else None,
            qk_norm=self._qk_norm() if shape.qk_norm else None,
            attention_norm=None if after is None else self._norm_after(after),
            mlp_norm=None if after_mlp is None else self._norm_after(after_mlp),
            mixture=None if mixture is None else self._mixture(mixture),
        )

    def vectors(self) -> LayerVectors:
        """See `layer_vectors`."""
        shape, dtype = self._shape, self._dtype
        before, _, before_mlp, _ = _NORMS["before"]
        assert before is not None
        assert before_mlp is not None
        return LayerVectors(
            qkv_bias=self._qkv_bias() if shape.qkv_bias else None,
            out_bias=self._bias("self_attn.o_proj") if shape.out_bias else None,
            gate_up_bias=self._gate_up_bias() if shape.mlp_bias else None,
            down_bias=self._bias("mlp.down_proj") if shape.mlp_bias else None,
            qk_norm=self._qk_norm() if shape.qk_norm else None,
            attention_norm=self._norm(before).to(dtype),
            mlp_norm=self._norm(before_mlp).to(dtype),
        )

    def _feed_forward(self, gate: str, up: str, down: str) -> tuple[Tensor, Tensor]:
        """Gate and up as one product, and the one that ends the half, by names of weights."""
        before = _NORMS[self._shape.norms][2]
        both = torch.cat((self._exact(gate), self._exact(up)))
        ending = self._ending(self._exact(down))
        return self._product(self._folded(both, before)), self._product(ending)

    def _mixture(self, mixture: Mixture) -> MixtureWeights:
        names = mixture.names
        products = [
            self._feed_forward(*(names.of_expert(expert, one) for one in ("gate", "up", "down")))
            for expert in range(mixture.computed_experts)
        ]
        exact = torch.promote_types(self._dtype, torch.float32)
        router = self._folded(self._exact(names.of_router()), _NORMS[self._shape.norms][2])
        gates, downs = zip(*products, strict=True)
        return MixtureWeights(router.t().contiguous().to(exact), gates, downs)

    def low_rank(self, product: str, down: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        """Both in the form that the products have: the order of rows, and what ends a half, are in
        `up`.
        """
        shape = self._shape
        match product:
            case "qkv":
                q, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
                queries = self.paired(up[:q], shape.num_heads)
                keys = self.paired(up[q : q + kv], shape.num_kv_heads)
                return down, torch.cat((queries, keys, up[q + kv :]))
            case "gate_up":
                return down, up
            case _:
                return down, self._ending(up)

    def after_norm(self, product: str, weight: Tensor) -> Tensor:
        """`weight` with the norm of what goes into `product` folded in, where it has one."""
        before, _, before_mlp, _ = _NORMS[self._shape.norms]
        return self._folded(weight, {"qkv": before, "gate_up": before_mlp}.get(product))

    def _exact(self, name: str) -> Tensor:
        return self._read(self._prefix + name).float()

    def _weight(self, name: str) -> Tensor:
        return self._exact(f"{name}.weight")

    def _bias(self, name: str) -> Tensor:
        """Of a product that ends a half."""
        return self._ending(self._exact(f"{name}.bias")).to(self._dtype)

    def _norm(self, name: str) -> Tensor:
        return self._weight(name) + _plus(self._shape)

    def _norm_after(self, name: str) -> Tensor:
        return (self._norm(name) * self._shape.residual_scale).to(self._dtype)

    def _ending(self, weight: Tensor) -> Tensor:
        """What ends a half is scaled before it is added; by its norm, where that comes after."""
        is_last = _NORMS[self._shape.norms][1] is None
        return weight * self._shape.residual_scale if is_last else weight

    def _folded(self, weight: Tensor, norm: str | None) -> Tensor:
        """`weight` after the norm's own weights, expecting tokens of length one instead of mean
        square one; without a norm as it is.
        """
        if norm is None:
            return weight
        scale: Tensor = self._norm(norm) * math.sqrt(self._shape.hidden)
        return weight * scale

    def _product(self, weight: Tensor) -> Tensor:
        """As `x @ weight` wants it. # [in, out]"""
        return weight.t().contiguous().to(self._dtype)

    def paired(self, rows: Tensor, heads: int) -> Tensor:
        """Rows of each head, as far as they are rotated, reordered from halves (0, 1, .. | h, h+1,
        ..) to pairs (0, h, 1, h+1, ..).
        """
        turned, rest = self._shape.rotary_dim or self._shape.head_dim, rows.shape[1:]
        whole = rows.view(heads, self._shape.head_dim, *rest)
        halves = whole[:, :turned].reshape(heads, 2, turned // 2, *rest)
        pairs = halves.transpose(1, 2).reshape(heads, turned, *rest)
        return torch.cat((pairs, whole[:, turned:]), 1).reshape(rows.shape)

    def _qkv_bias(self) -> Tensor:
        q = self.paired(self._exact("self_attn.q_proj.bias"), self._shape.num_heads)
        k = self.paired(self._exact("self_attn.k_proj.bias"), self._shape.num_kv_heads)
        return torch.cat((q, k, self._exact("self_attn.v_proj.bias"))).to(self._dtype)

    def _gate_up_bias(self) -> Tensor:
        return torch.cat((self._exact("mlp.gate_proj.bias"), self._exact("mlp.up_proj.bias"))).to(
            self._dtype
        )

    def _qk_norm(self) -> Tensor:
        """The weight of every query head, then of every key head. # [heads + kv_heads, head_dim]"""
        found = []
        for name, heads in (("q", self._shape.num_heads), ("k", self._shape.num_kv_heads)):
            own = heads if self._shape.qk_norm_wide else 1
            weight = self.paired(self._norm(f"self_attn.{name}_norm"), own)
            found.append(weight.view(own, -1).expand(heads, -1))
        return torch.cat(found).to(self._dtype)
