"""The weights of a model as a table: what each is called in a checkpoint, and what becomes of it.

By a layer's products and vectors, named as in the C interface (`lmprog_engine.h`): which rows of
which weights they are made of, which of these are heads that are rotated, the norm of what goes in
and of what comes out, and along which axis ranks share a weight. All engines read it, ranks and
adapters too. Knows names and sizes; reads nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Literal

from lmprog.runtime.engine.model.mixture import Mixture
from lmprog.runtime.engine.model.recurrent import Recurrent
from lmprog.runtime.engine.model.shape import ModelShape

EMBEDDING = "model.embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class Split:
    """How ranks share a weight: each has its part of so many rows, or columns."""

    of: Literal["heads", "kv_heads", "inner", "expert_inner", "vocabulary"]
    axis: int = 0
    """1: along the inputs, so that ranks sum what they compute."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows `begin .. begin + rows` of a weight; they become outputs of a product: number `first` is
    the first of them, `step` apart with `offset` in the native engine (lmprog_engine.h says how).
    """

    name: str
    begin: int
    rows: int
    first: int = 0
    step: int = 1
    offset: int = 0
    own: str = ""
    """What these rows are called where a checkpoint does not join them with others; "": `name`."""
    heads: int = 0
    """How many heads they are, which are rotated; 0: they are not."""
    split: Split | None = None
    """None: every rank has all of it."""

    @property
    def weight(self) -> str:
        """The name of these rows alone."""
        return self.own or self.name


@dataclass(frozen=True, slots=True)
class Matrix:
    """A product: its size, what it is made of in the order of its outputs, and what is normalized
    around it.
    """

    outputs: int
    inputs: int
    parts: tuple[Part, ...]
    weight_type: str | None = None
    """None: the model's."""
    met: float = 1.0
    """The share of its weights that a token is multiplied with."""
    norm: str | None = None
    """The vector that what goes in is normalized with; None: it is not."""
    post_norm: str | None = None
    """The same of what comes out."""
    ends_half: bool = False
    """What it gives is added to the residual."""


@dataclass(frozen=True, slots=True)
class VectorPart:
    """All `size` numbers of a weight; they begin at `first` of a vector. `heads` and `split` as of
    a `Part`.
    """

    name: str
    size: int
    first: int = 0
    heads: int = 0
    split: Split | None = None
    taps: int = 0
    """The checkpoint has a convolution, [size / taps, 1, taps], whose columns come one after the
    other here; 0: it has a vector."""

    @property
    def stored(self) -> tuple[int, ...]:
        """Its size in the checkpoint."""
        return (self.size // self.taps, 1, self.taps) if self.taps else (self.size,)


@dataclass(frozen=True, slots=True)
class Vector:
    """`size` numbers made of parts, each number of these plus `plus`, times `times`; zeros
    elsewhere."""

    parts: tuple[VectorPart, ...]
    size: int
    plus: float = 0.0
    times: float = 1.0


def head(shape: ModelShape) -> Matrix:
    name = EMBEDDING if shape.tied_head else "lm_head.weight"
    part = Part(name, 0, shape.vocab_size, split=Split("vocabulary"))
    return Matrix(shape.vocab_size, shape.hidden, (part,))


def norm(shape: ModelShape) -> Vector:
    return _whole(f"{shape.names.last_norm}.weight", shape.hidden, _plus(shape))


def products(shape: ModelShape, layer: int) -> dict[str, Matrix]:
    """The layer's products by their names."""
    shape = replace(shape, norms=shape.norms_of(layer))
    prefix = shape.prefix_of(layer)
    mixture = shape.mixture_of(layer)
    ends = _feed_forward(shape, layer) if mixture is None else _experts(shape, mixture, layer)
    ends = ends if shape.has_mlp(layer) else {}
    if shape.per_layer is not None:
        ends |= _per_layer(shape, shape.per_layer, prefix)
    recurrent = shape.recurrent_of(layer)
    if not shape.has_mixer(layer):
        return ends
    if layer == shape.predictor:
        whole = Part("mtp.fc.weight", 0, shape.hidden)
        ends |= {"join": Matrix(shape.hidden, 2 * shape.hidden, (whole,))}
    if recurrent is None:
        return _attention(shape, layer) | ends
    return _RECURRENT[recurrent.kind](shape, recurrent, prefix) | ends


def vectors(shape: ModelShape, layer: int) -> dict[str, Vector]:
    """The layer's biases and norms by their names; what the model lacks is absent."""
    shape = replace(shape, norms=shape.norms_of(layer))
    prefix = shape.prefix_of(layer)
    mixture = shape.mixture_of(layer)
    recurrent = shape.recurrent_of(layer)
    found: dict[str, Vector] = {}
    if recurrent is not None:
        found |= _recurrent_vectors(recurrent, prefix)
    elif shape.has_mixer(layer):
        found |= _attention_vectors(shape, layer)
    if mixture is not None and mixture.biases:
        found |= dict(_expert_biases(shape, mixture, prefix))
    elif mixture is None and shape.mlp_bias:
        for name in ("gate", "up"):
            part = VectorPart(f"{prefix}mlp.{name}_proj.bias", shape.inner, split=Split("inner"))
            found[f"{name}_bias"] = Vector((part,), shape.inner)
        found["down_bias"] = _whole(f"{prefix}mlp.down_proj.bias", shape.hidden)
    for place in fields(shape.norms):
        if weight := getattr(shape.norms, place.name):
            name = f"{prefix}{weight}.weight"
            found[place.name] = _whole(name, shape.hidden, _plus(shape))
    if mixture is not None and mixture.choice_bias is not None:
        found["choice_bias"] = _whole(prefix + mixture.choice_bias, mixture.experts)
    if mixture is not None and mixture.is_beside:
        found |= dict(_vectors_beside(shape, mixture, prefix))
    if shape.per_layer is not None:
        weight = f"{prefix}post_per_layer_input_norm.weight"
        found["per_layer_post_norm"] = _whole(weight, shape.hidden)
    for name, weight in _PREDICTION.items() if layer == shape.predictor else ():
        found[name] = _whole(f"mtp.{weight}.weight", shape.hidden, _plus(shape))
    if shape.layer_scales:
        found["scale"] = _whole(f"{prefix}layer_scalar", 1)
    return found


_PREDICTION = {
    "join_embedding_norm": "pre_fc_norm_embedding",
    "join_given_norm": "pre_fc_norm_hidden",
    "join_end_norm": "norm",
}
"""The norms around a layer that predicts further tokens."""


@dataclass(frozen=True, slots=True)
class PerLayerInputs:
    """What a model's inputs per layer are made of."""

    table: str
    """The weight that has a token's own numbers, for one layer after the other."""
    columns: int
    projection: Matrix
    norm: Vector


def per_layer_inputs(shape: ModelShape) -> PerLayerInputs | None:
    """None: the model has none."""
    if shape.per_layer is None:
        return None
    columns = shape.num_layers * shape.per_layer
    part = Part("model.per_layer_model_projection.weight", 0, columns)
    norm = _whole("model.per_layer_projection_norm.weight", shape.per_layer)
    projection = Matrix(columns, shape.hidden, (part,))
    return PerLayerInputs("model.embed_tokens_per_layer.weight", columns, projection, norm)


def expected(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Every weight that a checkpoint of this shape has, with its size."""
    found: dict[str, tuple[int, ...]] = {EMBEDDING: (shape.vocab_size, shape.hidden)}
    if (further := per_layer_inputs(shape)) is not None:
        found[further.table] = (shape.vocab_size, further.columns)
    for inputs, part in _parts(shape):
        before = found.get(part.name, (0, 0))[0]
        found[part.name] = (max(before, part.begin + part.rows), inputs)
    return found | {part.name: part.stored for part in _vector_parts(shape)}


def not_read(shape: ModelShape) -> set[str]:
    """Weights that a checkpoint may have though its layers read the keys and values of others, or
    what follows from the config."""
    layers = [layer for layer in range(shape.num_layers) if shape.source_of(layer) is not None]
    names = ("k_proj", "v_proj", "k_norm", "v_norm")
    found = {f"model.layers.{at}.self_attn.{name}.weight" for at in layers for name in names}
    if (recurrent := shape.recurrent) is not None and recurrent.kind == "linear":
        names = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
        found |= {
            f"model.layers.{at}.self_attn.{name}" for at in recurrent.layers for name in names
        }
    return found


def splits(shape: ModelShape) -> dict[str, Split | None]:
    """How ranks share each weight, by the name that it has alone."""
    found: dict[str, Split | None] = {EMBEDDING: Split("vocabulary")}
    found |= {part.weight: part.split for _, part in _parts(shape)}
    return found | {part.name: part.split for part in _vector_parts(shape)}


def joined_parts(shape: ModelShape) -> dict[str, Part]:
    """Those that a checkpoint joins with others, by the names that they have alone."""
    return {part.own: part for _, part in _parts(shape) if part.own}


def up32(count: int) -> int:
    """Outputs and inputs of packed products are filled up to this."""
    return -(-count // 32) * 32


def _parts(shape: ModelShape) -> Iterator[tuple[int, Part]]:
    """Of all products, each with the inputs."""
    for matrix in (head(shape), *_of_layers(shape)):
        for part in matrix.parts:
            yield matrix.inputs, part


def _of_layers(shape: ModelShape) -> Iterator[Matrix]:
    for layer in range(shape.num_layers):
        yield from products(shape, layer).values()
    if (further := per_layer_inputs(shape)) is not None:
        yield further.projection


def _vector_parts(shape: ModelShape) -> Iterator[VectorPart]:
    yield from norm(shape).parts
    if (further := per_layer_inputs(shape)) is not None:
        yield from further.norm.parts
    for layer in range(shape.num_layers):
        for vector in vectors(shape, layer).values():
            yield from vector.parts


def _attention(shape: ModelShape, layer: int) -> dict[str, Matrix]:
    hidden, block = shape.hidden, f"{shape.prefix_of(layer)}{shape.names.attention}."
    sizes = shape.heads_of(layer)
    q, kv = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
    if shape.gated_attention:
        return _gated_attention(shape, block, q, kv)
    of_values = "k" if shape.values_are_keys and shape.windows[layer] is None else "v"
    parts, at = [], 0
    for name, rows, heads, split in (
        ("q", q, sizes.num_heads, Split("heads")),
        ("k", kv, sizes.num_kv_heads, Split("kv_heads")),
        (of_values, kv, 0, Split("kv_heads")),
    )[: None if shape.source_of(layer) is None else 1]:
        own = f"{block}{name}_proj.weight"
        if shape.joined:
            joined = f"{block}qkv_proj.weight"
            parts.append(Part(joined, at, rows, at, own=own, heads=heads, split=split))
        else:
            parts.append(Part(own, 0, rows, at, heads=heads, split=split))
        at += rows
    out = Part(f"{block}{shape.names.out}.weight", 0, hidden, split=Split("heads", 1))
    return {
        "qkv": Matrix(at, hidden, tuple(parts), norm=_placed("attention_norm", shape)),
        "out": Matrix(
            hidden,
            q,
            (out,),
            post_norm=_placed("attention_post_norm", shape),
            ends_half=True,
        ),
    }


def _feed_forward(shape: ModelShape, layer: int) -> dict[str, Matrix]:
    hidden, inner = shape.hidden, shape.inner_of(layer)
    block = f"{shape.prefix_of(layer)}{shape.names.mlp}."
    gates, opening = [], shape.opening
    for offset, product in enumerate(opening):
        name = getattr(shape.names, product)
        own, split = f"{block}{name}.weight", Split("inner")
        if shape.names.gate_up:
            joined, begin = f"{block}{shape.names.gate_up}.weight", offset * inner
            gates.append(Part(joined, begin, inner, 0, 2, offset, own=own, split=split))
        else:
            gates.append(Part(own, 0, inner, step=len(opening), offset=offset, split=split))
    down = Part(f"{block}{shape.names.down}.weight", 0, hidden, split=Split("inner", 1))
    return {
        "gate_up": Matrix(
            len(opening) * up32(inner), hidden, tuple(gates), norm=_placed("mlp_norm", shape)
        ),
        "down": Matrix(
            hidden,
            inner,
            (down,),
            post_norm=_placed("mlp_post_norm", shape),
            ends_half=True,
        ),
    }


def _per_layer(shape: ModelShape, size: int, prefix: str) -> dict[str, Matrix]:
    gate = Part(f"{prefix}per_layer_input_gate.weight", 0, size)
    out = Part(f"{prefix}per_layer_projection.weight", 0, shape.hidden)
    return {
        "per_layer_gate": Matrix(size, shape.hidden, (gate,)),
        "per_layer_out": Matrix(shape.hidden, size, (out,), post_norm="per_layer_post_norm"),
    }


def _experts(shape: ModelShape, mixture: Mixture, layer: int) -> dict[str, Matrix]:
    """The router, and all experts one after the other, each filled up to whole panels: a gate and
    its partner for each, and what ends it. Parts of a shared expert come last."""
    prefix = shape.prefix_of(layer)
    beside = _feed_forward(shape, layer) if mixture.is_beside else {}
    names, norm = mixture.names, _placed("mlp_norm", shape)
    hidden, inner, count = shape.hidden, mixture.inner, mixture.computed_experts
    met = (mixture.used + mixture.shared_parts) / count
    rows, columns = Split("expert_inner"), Split("expert_inner", 1)
    gates, downs, opening = [], [], shape.opening
    for expert in range(count):
        first = expert * up32(inner)
        for offset, product in enumerate(opening):
            name = prefix + names.of_expert(expert, product)
            gates.append(Part(name, 0, inner, first, len(opening), offset, split=rows))
        name = prefix + names.of_expert(expert, "down")
        downs.append(Part(name, 0, hidden, expert * up32(hidden), split=columns))
    router = Part(prefix + names.of_router(), 0, mixture.router_outputs)
    return {f"dense_{name}": matrix for name, matrix in beside.items()} | {
        "router": Matrix(mixture.router_outputs, hidden, (router,), "float32", norm=norm),
        "gate_up": Matrix(
            len(opening) * count * up32(inner), hidden, tuple(gates), met=met, norm=norm
        ),
        "down": Matrix(
            count * up32(hidden),
            inner,
            tuple(downs),
            met=met,
            post_norm=_placed("mlp_post_norm", shape),
            ends_half=True,
        ),
    }


def _vectors_beside(
    shape: ModelShape, mixture: Mixture, prefix: str
) -> Iterator[tuple[str, Vector]]:
    """Norms of both halves of Gemma 4's layers with a mixture; the router's is divided by the root
    of the size."""
    for name, weight in (
        ("experts_norm", "pre_feedforward_layernorm_2"),
        ("dense_post_norm", "post_feedforward_layernorm_1"),
        ("experts_post_norm", "post_feedforward_layernorm_2"),
    ):
        yield name, _whole(f"{prefix}{weight}.weight", shape.hidden)
    scale = VectorPart(f"{prefix}router.scale", shape.hidden)
    yield "router_norm", Vector((scale,), shape.hidden, times=shape.hidden**-0.5)
    yield "expert_scales", _whole(f"{prefix}router.per_expert_scale", mixture.experts)


def _attention_vectors(shape: ModelShape, layer: int) -> Iterator[tuple[str, Vector]]:
    prefix, heads = f"{shape.prefix_of(layer)}{shape.names.attention}.", shape.heads_of(layer)
    of_heads = {
        "q": (heads.num_heads, heads.num_heads, Split("heads")),
        "k": (heads.num_kv_heads, heads.num_kv_heads, Split("kv_heads")),
        "v": (heads.num_kv_heads, 0, Split("kv_heads")),
    }
    if shape.qkv_bias:
        parts, at = [], 0
        for name, (count, rotated, split) in of_heads.items():
            size = count * heads.head_dim
            parts.append(VectorPart(f"{prefix}{name}_proj.bias", size, at, rotated, split))
            at += size
        yield "qkv_bias", Vector(tuple(parts), at)
    if shape.out_bias:
        yield "out_bias", _whole(f"{prefix}o_proj.bias", shape.hidden)
    if shape.qk_norm:
        for name in ("q", "k") if shape.source_of(layer) is None else ("q",):
            count, _, split = of_heads[name]
            own = count if shape.qk_norm_wide else 1
            size = heads.head_dim * own
            shared = split if shape.qk_norm_wide else None
            weight = shape.names.q_norm if name == "q" else shape.names.k_norm
            part = VectorPart(f"{prefix}{weight}.weight", size, 0, own, shared)
            yield f"{name}_norm", Vector((part,), size, _plus(shape))
    if shape.sinks:
        yield "sinks", _whole(f"{prefix}sinks", shape.num_heads)


def _gated_attention(shape: ModelShape, block: str, q: int, kv: int) -> dict[str, Matrix]:
    """Each head of the query's weight is followed by its gate; here all gates come last."""
    hidden, dim, name = shape.hidden, shape.head_dim, f"{block}q_proj.weight"
    parts = []
    for head in range(shape.num_heads):
        parts.append(Part(name, 2 * head * dim, dim, head * dim, heads=1))
        parts.append(Part(name, (2 * head + 1) * dim, dim, q + 2 * kv + head * dim))
    parts.append(Part(f"{block}k_proj.weight", 0, kv, q, heads=shape.num_kv_heads))
    parts.append(Part(f"{block}v_proj.weight", 0, kv, q + kv))
    out = Part(f"{block}{shape.names.out}.weight", 0, hidden)
    return _halves(shape, Matrix(2 * (q + kv), hidden, tuple(parts)), Matrix(hidden, q, (out,)))


# --- recurrent layers -----------------------------------------------------------------------------


def _halves(shape: ModelShape, into: Matrix, out: Matrix) -> dict[str, Matrix]:
    """What comes in and what goes out, with the norms around them."""
    post = _placed("attention_post_norm", shape)
    return {
        "qkv": replace(into, norm=_placed("attention_norm", shape)),
        "out": replace(out, post_norm=post, ends_half=True),
    }


def _short_conv(shape: ModelShape, recurrent: Recurrent, prefix: str) -> dict[str, Matrix]:
    hidden, size = shape.hidden, 3 * recurrent.channels
    into = Matrix(size, hidden, (Part(f"{prefix}conv.in_proj.weight", 0, size),))
    out = Part(f"{prefix}conv.out_proj.weight", 0, hidden)
    return _halves(shape, into, Matrix(hidden, recurrent.channels, (out,)))


def _delta_net(shape: ModelShape, recurrent: Recurrent, prefix: str) -> dict[str, Matrix]:
    hidden, heads, block = shape.hidden, recurrent.heads, f"{prefix}linear_attn."
    channels, values = recurrent.channels, recurrent.values
    if recurrent.layout == "joined":
        parts, scores = _joined_delta_net(recurrent, block)
    else:
        begin, end = ("", "_proj") if recurrent.layout == "single" else ("in_proj_", "")
        named = {"qkv": channels, "z": values}
        if recurrent.layout == "single":
            named = {"q": recurrent.keys, "k": recurrent.keys, "v": values, "g": values}
        parts = _one_by_one({f"{block}{begin}{name}{end}": size for name, size in named.items()})
        scores = _one_by_one({f"{block}{begin}{name}{end}": heads for name in ("b", "a")})
    name = "o_proj" if recurrent.layout == "single" else "out_proj"
    out = Matrix(hidden, values, (Part(f"{block}{name}.weight", 0, hidden),))
    gates = Matrix(2 * heads, hidden, scores, "float32", norm=_placed("attention_norm", shape))
    return _halves(shape, Matrix(channels + values, hidden, parts), out) | {"gates": gates}


def _one_by_one(weights: dict[str, int]) -> tuple[Part, ...]:
    """Whole weights, one after the other; each with its rows."""
    parts, at = [], 0
    for name, rows in weights.items():
        parts.append(Part(f"{name}.weight", 0, rows, at))
        at += rows
    return tuple(parts)


def _joined_delta_net(
    recurrent: Recurrent, block: str
) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """Group by group: its q and k, then v and z of its heads; scores of rates, then of decays."""
    key, keys, values = recurrent.key_dim, recurrent.keys, recurrent.values
    each = recurrent.heads // recurrent.groups
    of_group = each * recurrent.value_dim
    parts, scores = list[Part](), list[Part]()
    for group in range(recurrent.groups):
        begin = group * 2 * (key + of_group)
        places = (
            *((key, group * key), (key, keys + group * key)),
            *((of_group, start + group * of_group) for start in (2 * keys, 2 * keys + values)),
        )
        for size, first in places:
            parts.append(Part(f"{block}in_proj_qkvz.weight", begin, size, first))
            begin += size
        for offset, first in ((0, 0), (each, recurrent.heads)):
            at = group * 2 * each + offset
            scores.append(Part(f"{block}in_proj_ba.weight", at, each, first + group * each))
    return tuple(parts), tuple(scores)


def _mamba2(shape: ModelShape, recurrent: Recurrent, prefix: str) -> dict[str, Matrix]:
    hidden, values, channels = shape.hidden, recurrent.values, recurrent.channels
    block = prefix + (recurrent.block or "mamba")
    name = f"{block}.in_proj.weight"
    parts = Part(name, values, channels), Part(name, 0, values, channels)
    steps = Part(name, values + channels, recurrent.heads)
    into = Matrix(values + channels, hidden, parts)
    out = Matrix(hidden, values, (Part(f"{block}.out_proj.weight", 0, hidden),))
    norm = _placed("attention_norm", shape)
    gates = Matrix(recurrent.heads, hidden, (steps,), "float32", norm=norm)
    return _halves(shape, into, out) | {"gates": gates}


def _linear(shape: ModelShape, recurrent: Recurrent, prefix: str) -> dict[str, Matrix]:
    """Head by head its q, k and v."""
    hidden, size, dim = shape.hidden, recurrent.values, recurrent.key_dim
    block, parts = f"{prefix}self_attn.", list[Part]()
    for head in range(recurrent.heads):
        for place in range(3):
            begin, first = (3 * head + place) * dim, place * size + head * dim
            parts.append(Part(f"{block}qkv_proj.weight", begin, dim, first))
    parts.append(Part(f"{block}output_gate.weight", 0, size, 3 * size))
    out = Matrix(hidden, size, (Part(f"{block}out_proj.weight", 0, hidden),))
    return _halves(shape, Matrix(4 * size, hidden, tuple(parts)), out)


_RECURRENT = {
    "short_conv": _short_conv,
    "delta_net": _delta_net,
    "mamba2": _mamba2,
    "linear": _linear,
}
_BLOCKS = {"short_conv": "conv", "delta_net": "linear_attn", "mamba2": "mamba"}


def _recurrent_vectors(recurrent: Recurrent, prefix: str) -> Iterator[tuple[str, Vector]]:
    if recurrent.kind == "linear":
        yield "state_norm", _whole(f"{prefix}self_attn.norm.weight", recurrent.values)
        return
    block = f"{prefix}{recurrent.block or _BLOCKS[recurrent.kind]}."
    conv = block + ("conv" if recurrent.kind == "short_conv" else "conv1d")
    taps, channels = recurrent.taps, recurrent.channels
    weight = VectorPart(f"{conv}.weight", taps * channels, taps=taps)
    yield "conv", Vector((weight,), taps * channels)
    if recurrent.conv_bias:
        yield "conv_bias", _whole(f"{conv}.bias", channels)
    if recurrent.kind == "short_conv":
        return
    yield "decay_log", _whole(f"{block}A_log", recurrent.heads)
    yield "decay_bias", _whole(f"{block}dt_bias", recurrent.heads)
    if recurrent.kind == "mamba2":
        yield "skip", _whole(f"{block}D", recurrent.heads)
    size = recurrent.values if recurrent.kind == "mamba2" else recurrent.value_dim
    name = "o_norm" if recurrent.layout == "single" else "norm"
    yield "state_norm", _whole(f"{block}{name}.weight", size)


def _expert_biases(
    shape: ModelShape, mixture: Mixture, prefix: str
) -> Iterator[tuple[str, Vector]]:
    names, count = mixture.names, mixture.experts
    yield "router_bias", _whole(prefix + names.of_router("bias"), count)
    sizes = {"gate": mixture.inner, "up": mixture.inner, "down": shape.hidden}
    for product, size in sizes.items():
        split = None if product == "down" else Split("expert_inner")
        parts = tuple(
            VectorPart(
                prefix + names.of_expert(expert, product, "bias"),
                size,
                expert * up32(size),
                split=split,
            )
            for expert in range(count)
        )
        yield f"{product}_bias", Vector(parts, count * up32(size))


def _placed(name: str, shape: ModelShape) -> str | None:
    """The norm of that name, where the shape has it."""
    return None if getattr(shape.norms, name) is None else name


def _plus(shape: ModelShape) -> float:
    return 1.0 if shape.norms_add_one else 0.0


def _whole(name: str, size: int, plus: float = 0.0) -> Vector:
    return Vector((VectorPart(name, size),), size, plus)
