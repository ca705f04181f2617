"""Which weights of a checkpoint become which products and vectors of the native engine.

Knows names in checkpoints and places in products; reads nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lmprog.runtime.engine.model.shape import ModelShape
from lmprog.runtime.engine.native.interface import up32


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


@dataclass(frozen=True, slots=True)
class Vector:
    """The weights `names`, one after the other: `size` numbers, `plus` added to each."""

    names: tuple[str, ...]
    size: int
    plus: float = 0.0


def head(shape: ModelShape) -> Matrix:
    name = "model.embed_tokens.weight" if shape.tied_head else "lm_head.weight"
    return Matrix(shape.vocab_size, shape.hidden, (Part(name, 0, shape.vocab_size),))


def norm(shape: ModelShape) -> Vector:
    return Vector(("model.norm.weight",), shape.hidden, plus=_plus(shape))


def products(shape: ModelShape, layer: int) -> dict[str, Matrix]:
    """The layer's products by the names of the C interface."""
    prefix = f"model.layers.{layer}."
    hidden, inner = shape.hidden, shape.inner
    q, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    if shape.joined:
        qkv: tuple[Part, ...] = (Part(f"{prefix}self_attn.qkv_proj.weight", 0, q + 2 * kv),)
        both = f"{prefix}mlp.gate_up_proj.weight"
        gates = (Part(both, 0, inner, step=2), Part(both, inner, inner, step=2, offset=1))
    else:
        ends = {"q": (q, 0), "k": (kv, q), "v": (kv, q + kv)}
        qkv = tuple(
            Part(f"{prefix}self_attn.{name}_proj.weight", 0, rows, first)
            for name, (rows, first) in ends.items()
        )
        gates = (
            Part(f"{prefix}mlp.gate_proj.weight", 0, inner, step=2),
            Part(f"{prefix}mlp.up_proj.weight", 0, inner, step=2, offset=1),
        )
    return {
        "qkv": Matrix(q + 2 * kv, hidden, qkv),
        "out": Matrix(hidden, q, (Part(f"{prefix}self_attn.o_proj.weight", 0, hidden),)),
        "gate_up": Matrix(2 * up32(inner), hidden, gates),
        "down": Matrix(hidden, inner, (Part(f"{prefix}mlp.down_proj.weight", 0, hidden),)),
    }


def vectors(shape: ModelShape, layer: int) -> dict[str, Vector]:
    """The layer's biases and norms by the names of the C interface; what the model lacks is
    absent.
    """
    prefix = f"model.layers.{layer}."
    found = dict(_biases(shape, prefix))
    for name, weight in _NORMS[shape.norms].items():
        found[name] = Vector((f"{prefix}{weight}.weight",), shape.hidden, plus=_plus(shape))
    if shape.qk_norm:
        wide = shape.qk_norm_wide
        for name, heads in (("q", shape.num_heads), ("k", shape.num_kv_heads)):
            size = shape.head_dim * (heads if wide else 1)
            found[f"{name}_norm"] = Vector(
                (f"{prefix}self_attn.{name}_norm.weight",), size, plus=_plus(shape)
            )
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
            for name in vector.names:
                found[name] = (vector.size // len(vector.names),)
    return found | dict(_own_bias_sizes(shape))


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


def _biases(shape: ModelShape, prefix: str) -> Iterator[tuple[str, Vector]]:
    q, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    if shape.qkv_bias:
        yield (
            "qkv_bias",
            Vector(tuple(f"{prefix}self_attn.{name}_proj.bias" for name in "qkv"), q + 2 * kv),
        )
    if shape.out_bias:
        yield "out_bias", Vector((f"{prefix}self_attn.o_proj.bias",), shape.hidden)
    if shape.mlp_bias:
        yield "gate_bias", Vector((f"{prefix}mlp.gate_proj.bias",), shape.inner)
        yield "up_bias", Vector((f"{prefix}mlp.up_proj.bias",), shape.inner)
        yield "down_bias", Vector((f"{prefix}mlp.down_proj.bias",), shape.hidden)


def _own_bias_sizes(shape: ModelShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The three biases of queries, keys and values, which one vector joins, are not equally
    long.
    """
    if not shape.qkv_bias:
        return
    q, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    for layer in range(shape.num_layers):
        for name, size in (("q", q), ("k", kv), ("v", kv)):
            yield f"model.layers.{layer}.self_attn.{name}_proj.bias", (size,)
