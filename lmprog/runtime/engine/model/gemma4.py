"""The shape of Gemma 4's text part, dense or with a mixture beside each feed-forward.

Its layers with a window and those without have other heads; the last ones may read the keys and
values of earlier ones, and each layer may be given numbers of each token's own. Knows fields of
config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lmprog.errors import ModelError
from lmprog.runtime.engine.model.mixture import ExpertNames, Mixture, read_mixture, size_of
from lmprog.runtime.engine.model.rope import FeatureNotComputed, read_rope
from lmprog.runtime.engine.model.shape import Heads, ModelShape, Norms, read_shape

Config = dict[str, Any]

_OWN = frozenset(
    {
        *("hidden_activation", "use_bidirectional_attention", "sliding_window", "layer_types"),
        *("final_logit_softcapping", "per_layer_config", "global_head_dim", "rope_parameters"),
        *("num_global_key_value_heads", "attention_k_eq_v", "num_kv_shared_layers"),
        *("use_double_wide_mlp", "hidden_size_per_layer_input", "vocab_size_per_layer_input"),
        *("enable_moe_block", "num_experts", "top_k_experts", "moe_intermediate_size"),
    }
)
_ROPES: Mapping[str, Config] = {
    "sliding_attention": {"rope_theta": 10_000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25}
    | {"rope_theta": 1_000_000.0},
}
_DEFAULTS: Config = {"head_dim": 256, "num_key_value_heads": 4, "max_position_embeddings": 131_072}
_DEFAULTS |= {"tie_word_embeddings": True}
UNIFIED: Config = {"hidden_size_per_layer_input": 0, "sliding_window": 1024}
UNIFIED |= {"max_position_embeddings": 262_144}
"""What the text part of a unified Gemma 4 takes for granted."""
_MULTIPLE = 16
"""Inputs per layer are computed so many at a time."""


def read_gemma4(config: Config) -> ModelShape:
    """Raises ModelError."""
    activation = config.get("hidden_activation") or "gelu_pytorch_tanh"
    if activation != "gelu_pytorch_tanh" or config.get("use_bidirectional_attention") == "all":
        raise ModelError(f"a Gemma 4 with {activation} or attention to both sides is not supported")
    rest = {name: value for name, value in config.items() if name not in _OWN}
    shape = read_shape(_DEFAULTS | rest | {"model_type": "llama", "hidden_act": "silu"})
    kinds = _kinds(config, shape.num_layers)
    window = size_of({"sliding_window": 512} | config, "sliding_window")
    ropes = config.get("rope_parameters") or _ROPES
    whole, local = (
        read_rope({"rope_parameters": ropes[kind]}, shape.context_len)
        for kind in ("full_attention", "sliding_attention")
    )
    sources = _sources(kinds, config.get("num_kv_shared_layers") or 0)
    wide = config.get("use_double_wide_mlp")
    return replace(
        shape,
        rope=whole,
        local_rope=local,
        windows=tuple(window if kind == "sliding_attention" else None for kind in kinds),
        whole_heads=_whole_heads(config, shape, kinds),
        values_are_keys=bool(config.get("attention_k_eq_v")),
        qk_norm=True,
        value_norm=True,
        attention_scale=1.0,
        sources=sources if any(one is not None for one in sources) else (),
        reading_inner=2 * shape.inner if wide else None,
        activation="gelu_tanh",
        norms=Norms(
            attention_post_norm="post_attention_layernorm",
            mlp_norm="pre_feedforward_layernorm",
            mlp_post_norm="post_feedforward_layernorm",
        ),
        embedding_scale=float(shape.hidden) ** 0.5,
        logit_softcap=config.get("final_logit_softcapping") or None,
        per_layer=_per_layer(config, shape),
        layer_scales=True,
        mixture=_mixture(config, shape) if config.get("enable_moe_block") else None,
    )


def _kinds(config: Config, count: int) -> list[str]:
    """The type of each layer; the last one is always full attention."""
    kinds = list(config.get("layer_types") or ())
    kinds = kinds or [
        "full_attention" if (layer + 1) % 6 == 0 else "sliding_attention" for layer in range(count)
    ]
    if len(kinds) != count or not set(kinds) <= _ROPES.keys():
        raise ModelError(
            f"layer_types must name sliding_attention or full_attention for each of {count} "
            f"layers: {kinds}"
        )
    return [*kinds[:-1], "full_attention"]


def _whole_heads(config: Config, shape: ModelShape, kinds: list[str]) -> Heads:
    """Of full attention: in fields of their own, or for each such layer."""
    layers = [str(layer) for layer, kind in enumerate(kinds) if kind == "full_attention"]
    told = config.get("per_layer_config")
    if told is None:
        sizes = {"head_dim": config.get("global_head_dim", 512)}
        count = config.get("num_global_key_value_heads")
        if count is not None and config.get("attention_k_eq_v"):
            sizes["num_key_value_heads"] = count
    else:
        told = {str(layer): sizes for layer, sizes in told.items()}
        sizes = told.get(layers[0], {})
        known = {"head_dim", "num_key_value_heads"}
        if told != dict.fromkeys(layers, sizes) or not sizes.keys() <= known:
            raise FeatureNotComputed(f"per_layer_config is not supported as it is: {told}")
    named = {"num_key_value_heads": shape.num_kv_heads, "head_dim": shape.head_dim} | sizes
    heads, dim = size_of(named, "num_key_value_heads"), size_of(named, "head_dim")
    if shape.num_heads % heads or dim % 2:
        raise ModelError(f"{shape.num_heads} heads cannot have {heads} keys of {dim} dimensions")
    return Heads(shape.num_heads, heads, dim)


def _sources(kinds: list[str], count: int) -> tuple[int | None, ...]:
    """The last `count` layers read what the last layer of their type before them has."""
    first = len(kinds) - count
    own = {kind: layer for layer, kind in enumerate(kinds[:first])}
    if not set(kinds[first:]) <= own.keys():
        raise ModelError(f"num_kv_shared_layers = {count} leaves no layer of a type to read from")
    return (*(None for _ in range(first)), *(own[kind] for kind in kinds[first:]))


def _per_layer(config: Config, shape: ModelShape) -> int | None:
    size = config.get("hidden_size_per_layer_input", 256)
    if not size:
        return None
    if size % _MULTIPLE:
        raise FeatureNotComputed(
            f"hidden_size_per_layer_input = {size} is not supported by the native decoder, only "
            f"multiples of {_MULTIPLE}"
        )
    vocab = config.get("vocab_size_per_layer_input", 262_144)
    if vocab != shape.vocab_size:
        raise ModelError(f"inputs per layer of {vocab} tokens do not fit {shape.vocab_size}")
    return int(size)


def _mixture(config: Config, shape: ModelShape) -> Mixture:
    return read_mixture(
        config | {"num_experts_per_tok": config.get("top_k_experts")},
        "moe_intermediate_size",
        frozenset(range(shape.num_layers)),
        names=ExpertNames("experts", router="proj", router_block="router"),
        layout="bare",
        is_beside=True,
    )
