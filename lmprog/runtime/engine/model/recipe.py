"""Which weights of a checkpoint become which products and vectors of the native engine.

Knows names in checkpoints and places in products; reads nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lmprog.runtime.engine.model.mixture import Mixture
from lmprog.runtime.engine.model.shape import ModelShape


def up32(count: int) -> int:
    """Outputs and inputs of packed products are filled up to this."""
    return -(-count // 32) * 32


@dataclass(frozen=True, slots=True)
class Part:
    """Rows `begin .. begin + rows` of a weight; they become outputs of a product (lmprog_engine.h
    says which).
    """

    name: str
    begin: int
    rows: int
    first: int = 0
    step: int = 1
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Matrix:
    """A product: its size, and what it is made of."""

    outputs: int
    inputs: int
    parts: tuple[Part, ...]
    weight_type: str | None = None
    """None: the model's."""
    met: float = 1.0
    """The share of its weights that a token is multiplied with."""


@dataclass(frozen=True, slots=True)
class VectorPart:
    """All `size` numbers of a weight; they begin at `first` of a vector."""

    name: str
    size: int
    first: int = 0


@dataclass(frozen=True, slots=True)
class Vector:
    """`size` numbers made of parts, `plus` added to each number of these; zeros elsewhere."""

    parts: tuple[VectorPart, ...]
    size: int
    plus: float = 0.0


def head(shape: ModelShape) -> Matrix:
    name = "model.embed_tokens.weight" if shape.tied_head else "lm_head.weight"
    return Matrix(shape.vocab_size, shape.hidden, (Part(name, 0, shape.vocab_size),))


def norm(shape: ModelShape) -> Vector:
    return _whole("model.norm.weight", shape.hidden, _plus(shape))


def products(shape: ModelShape, layer: int) -> dict[str, Matrix]:
    """The layer's products by the names of the C interface."""
    prefix = f"model.layers.{layer}."
    mixture = shape.mixture_of(layer)
    ends = _feed_forward(shape, prefix) if mixture is None else _experts(shape, mixture, layer)
    return _attention(shape, prefix) | ends


def _attention(shape: ModelShape, prefix: str) -> dict[str, Matrix]:
    hidden = shape.hidden
    q, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    if shape.joined:
        qkv: tuple[Part, ...] = (Part(f"{prefix}self_attn.qkv_proj.weight", 0, q + 2 * kv),)
    else:
        ends = {"q": (q, 0), "k": (kv, q), "v": (kv, q + kv)}
        qkv = tuple(
            Part(f"{prefix}self_attn.{name}_proj.weight", 0, rows, first)
            for name, (rows, first) in ends.items()
        )
    return {
        "qkv": Matrix(q + 2 * kv, hidden, qkv),
        "out": Matrix(hidden, q, (Part(f"{prefix}self_attn.o_proj.weight", 0, hidden),)),
    }


def _feed_forward(shape: ModelShape, prefix: str) -> dict[str, Matrix]:
    hidden, inner = shape.hidden, shape.inner
    if shape.joined:
        both = f"{prefix}mlp.gate_up_proj.weight"
        gates = (Part(both, 0, inner, step=2), Part(both, inner, inner, step=2, offset=1))
    else:
        gates = (
            Part(f"{prefix}mlp.gate_proj.weight", 0, inner, step=2),
            Part(f"{prefix}mlp.up_proj.weight", 0, inner, step=2, offset=1),
        )
    return {
        "gate_up": Matrix(2 * up32(inner), hidden, gates),
        "down": Matrix(hidden, inner, (Part(f"{prefix}mlp.down_proj.weight", 0, hidden),)),
    }


def _experts(shape: ModelShape, mixture: Mixture, layer: int) -> dict[str, Matrix]:
    """The router, and all experts one after the other, each filled up to whole panels. Parts of a
    shared expert come last."""
    prefix, names = f"model.layers.{layer}.", mixture.names
    hidden, inner, count = shape.hidden, mixture.inner, mixture.computed_experts
    met = (mixture.used + mixture.shared_parts) / count
    gates, downs = [], []
    for expert in range(count):
        first = expert * up32(inner)
        for offset, product in enumerate(("gate", "up")):
            name = prefix + names.of_expert(expert, product)
            gates.append(Part(name, 0, inner, first, step=2, offset=offset))
        downs.append(
            Part(prefix + names.of_expert(expert, "down"), 0, hidden, expert * up32(hidden))
        )
    router = Part(prefix + names.of_router(), 0, mixture.router_outputs)
    return {
        "router": Matrix(mixture.router_outputs, hidden, (router,), weight_type="float32"),
        "gate_up": Matrix(2 * count * up32(inner), hidden, tuple(gates), met=met),
        "down": Matrix(count * up32(hidden), inner, tuple(downs), met=met),
    }


def vectors(shape: ModelShape, layer: int) -> dict[str, Vector]:
    """The layer's biases and norms by the names of the C interface; what the model lacks is
    absent.
    """
    prefix = f"model.layers.{layer}."
    mixture = shape.mixture_of(layer)
    found = dict(_attention_vectors(shape, prefix))
    if mixture is not None and mixture.biases:
        found |= dict(_expert_biases(shape, mixture, prefix))
    elif mixture is None and shape.mlp_bias:
        for name, size in (("gate", shape.inner), ("up", shape.inner), ("down", shape.hidden)):
            found[f"{name}_bias"] = _whole(f"{prefix}mlp.{name}_proj.bias", size)
    for name, weight in _NORMS[shape.norms].items():
        found[name] = _whole(f"{prefix}{weight}.weight", shape.hidden, _plus(shape))
    return found


def expected(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Every weight that a checkpoint of this shape has, with its size."""
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape.vocab_size, shape.hidden)
    }
    matrices, sets = [head(shape)], [{"norm": norm(shape)}]
    for layer in range(shape.num_layers):
        matrices += products(shape, layer).values()
        sets.append(vectors(shape, layer))
    for matrix in matrices:
        for part in matrix.parts:
            before = found.get(part.name, (0, 0))[0]
            found[part.name] = (max(before, part.begin + part.rows), matrix.inputs)
    for each in sets:
        for vector in each.values():
            found |= {numbers.name: (numbers.size,) for numbers in vector.parts}
    return found


_NORMS = {
    "before": {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"},
    "after": {
        "attention_post_norm": "post_attention_layernorm",
        "mlp_post_norm": "post_feedforward_layernorm",
    },
    "both": {
        "attention_norm": "input_layernorm",
        "attention_post_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_post_norm": "post_feedforward_layernorm",
    },
}


def _plus(shape: ModelShape) -> float:
    return 1.0 if shape.norms_add_one else 0.0


def _whole(name: str, size: int, plus: float = 0.0) -> Vector:
    return Vector((VectorPart(name, size),), size, plus)


def _attention_vectors(shape: ModelShape, prefix: str) -> Iterator[tuple[str, Vector]]:
    q, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    prefix = f"{prefix}self_attn."
    if shape.qkv_bias:
        places = (("q", q, 0), ("k", kv, q), ("v", kv, q + kv))
        parts = (VectorPart(f"{prefix}{name}_proj.bias", *place) for name, *place in places)
        yield "qkv_bias", Vector(tuple(parts), q + 2 * kv)
    if shape.out_bias:
        yield "out_bias", _whole(f"{prefix}o_proj.bias", shape.hidden)
    if shape.qk_norm:
        for name, heads in (("q", shape.num_heads), ("k", shape.num_kv_heads)):
            size = shape.head_dim * (heads if shape.qk_norm_wide else 1)
            yield f"{name}_norm", _whole(f"{prefix}{name}_norm.weight", size, _plus(shape))
    if shape.sinks:
        yield "sinks", _whole(f"{prefix}sinks", shape.num_heads)


def _expert_biases(
    shape: ModelShape, mixture: Mixture, prefix: str
) -> Iterator[tuple[str, Vector]]:
    names, count = mixture.names, mixture.experts
    yield "router_bias", _whole(prefix + names.of_router("bias"), count)
    sizes = {"gate": mixture.inner, "up": mixture.inner, "down": shape.hidden}
    for product, size in sizes.items():
        parts = tuple(
            VectorPart(prefix + names.of_expert(expert, product, "bias"), size, expert * up32(size))
            for expert in range(count)
        )
        yield f"{product}_bias", Vector(parts, count * up32(size))
