"""Shapes of plain decoders that the native engine and several ranks decode, where the torch engine
alone leaves them to transformers; and of those that only the native engine decodes (`LATER`), or
it and `transformers` (Gemma 4's text part, dense or with a mixture beside each feed-forward).

Each is a Llama but for some fields: what is its own is taken out of config.json here, the rest is
read as a Llama's, which refuses what nobody knows by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from lmprog.errors import ModelError
from lmprog.runtime.engine.model.mixture import ExpertNames, Mixture, read_mixture, size_of
from lmprog.runtime.engine.model.rope import FeatureNotComputed, read_rope
from lmprog.runtime.engine.model.shape import (
    Heads,
    ModelShape,
    Norms,
    QueryGrowth,
    WeightNames,
    read_shape,
)

Config = dict[str, Any]
_NORMS_BEHIND = Norms(None, "post_attention_layernorm", None, "post_feedforward_layernorm")


def as_llama(config: Config, *own: str, **defaults: Any) -> ModelShape:
    """What is left of `config` without the fields `own`, read as a Llama's."""
    rest = {**defaults, **{name: value for name, value in config.items() if name not in own}}
    return read_shape(rest | {"model_type": "llama"})


def _gemma2(config: Config) -> ModelShape:
    shape = _gemma(config)
    return replace(
        shape,
        windows=windows_of(config, lambda layer: layer % 2 == 0),
        attention_softcap=config.get("attn_logit_softcapping", 50.0) or None,
        logit_softcap=config.get("final_logit_softcapping", 30.0) or None,
    )


def _gemma3(config: Config) -> ModelShape:
    ropes = config.pop("rope_parameters", None) or {}
    local = {"rope_theta": config.pop("rope_local_base_freq", None) or 10_000.0}
    whole = {"rope_theta": config.pop("rope_theta", None) or 1_000_000.0}
    whole |= config.pop("rope_scaling", None) or {}
    config["rope_parameters"] = ropes.get("full_attention", whole)
    pattern = config.get("sliding_window_pattern") or 6
    shape = _gemma(config)
    described = {"rope_parameters": ropes.get("sliding_attention", local)}
    return replace(
        shape,
        windows=windows_of(config, lambda layer: (layer + 1) % pattern != 0),
        local_rope=read_rope(described, shape.context_len),
        qk_norm=True,
        attention_softcap=config.get("attn_logit_softcapping") or None,
        logit_softcap=config.get("final_logit_softcapping") or None,
    )


def _gemma(config: Config) -> ModelShape:
    """What both Gemmas share."""
    activation = config.get("hidden_activation") or "gelu_pytorch_tanh"
    if activation != "gelu_pytorch_tanh" or config.get("use_bidirectional_attention"):
        raise ModelError(f"a Gemma with {activation} or attention to both sides is not supported")
    shape = as_llama(
        config,
        *(
            "hidden_activation",
            "hidden_act",
            "use_bidirectional_attention",
            "query_pre_attn_scalar",
        ),
        *("sliding_window", "layer_types", "attn_logit_softcapping", "final_logit_softcapping"),
        *("sliding_window_pattern", "cache_implementation"),
        head_dim=256,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    return replace(
        shape,
        activation="gelu_tanh",
        norms=Norms(
            attention_post_norm="post_attention_layernorm",
            mlp_norm="pre_feedforward_layernorm",
            mlp_post_norm="post_feedforward_layernorm",
        ),
        norms_add_one=True,
        embedding_scale=float(shape.hidden) ** 0.5,
        attention_scale=float(config.get("query_pre_attn_scalar") or 256) ** -0.5,
    )


def _phi3(config: Config) -> ModelShape:
    scaling = dict(config.get("rope_parameters") or {})
    partial = scaling.pop("partial_rotary_factor", None) or config.get("partial_rotary_factor")
    if scaling:
        config["rope_parameters"] = scaling
    shape = as_llama(
        config,
        *("resid_pdrop", "embd_pdrop", "partial_rotary_factor", "sliding_window"),
        max_position_embeddings=4096,
    )
    window = config.get("sliding_window")
    return replace(
        shape,
        joined=True,
        names=WeightNames(gate_up="gate_up_proj"),
        windows=(window,) * shape.num_layers,
        rotary_dim=int(shape.head_dim * (partial or 1.0)),
    )


def _olmo2(config: Config) -> ModelShape:
    shape = as_llama(config, rms_norm_eps=1e-5)
    return replace(shape, norms=_NORMS_BEHIND, qk_norm=True, qk_norm_wide=True)


def _smollm3(config: Config) -> ModelShape:
    if config.get("use_sliding_window"):
        raise ModelError("a SmolLM 3 with sliding windows is not supported")
    shape = as_llama(
        config,
        *("no_rope_layers", "no_rope_layer_interval", "layer_types", "sliding_window"),
        *("use_sliding_window", "max_window_layers"),
        num_key_value_heads=4,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
    )
    every = config.get("no_rope_layer_interval") or 4
    rotated = config.get("no_rope_layers") or [
        (layer + 1) % every != 0 for layer in range(shape.num_layers)
    ]
    return replace(
        shape,
        unrotated=frozenset(layer for layer, is_rotated in enumerate(rotated) if not is_rotated),
    )


def granite(config: Config) -> ModelShape:
    shape = as_llama(
        config,
        *("embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier"),
    )
    return replace(
        shape,
        embedding_scale=float(config.get("embedding_multiplier", 1.0)),
        logit_scale=1.0 / float(config.get("logits_scaling", 1.0)),
        residual_scale=float(config.get("residual_multiplier", 1.0)),
        attention_scale=float(config.get("attention_multiplier", 1.0)),
    )


def windows_of(config: Config, is_local: Callable[[int], bool]) -> tuple[int | None, ...]:
    """The window of each layer: those that `layer_types` names, or for which `is_local`."""
    window = config.get("sliding_window", 4096)
    kinds = config.get("layer_types")
    count = int(config["num_hidden_layers"])
    if kinds is None:
        kinds = [
            "sliding_attention" if is_local(layer) else "full_attention" for layer in range(count)
        ]
    if len(kinds) != count or not set(kinds) <= {"sliding_attention", "full_attention"}:
        raise ModelError(
            "layer_types must name sliding_attention or full_attention for each of "
            f"{count} layers: {kinds}"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def partial_of(config: Config) -> float | None:
    """Takes the rotated part of a head out of `config`; None: it says nothing of it."""
    found: float | None = config.pop("partial_rotary_factor", None)
    if isinstance(ropes := config.get("rope_parameters"), dict):
        config["rope_parameters"] = ropes = dict(ropes)
        found = ropes.pop("partial_rotary_factor", None) or found
    return found


def _olmo3(config: Config) -> ModelShape:
    ropes = config.pop("rope_parameters", None) or {}
    theta = config.pop("rope_theta", None) or 500_000.0
    plain = {"rope_theta": theta}
    whole = plain | (config.pop("rope_scaling", None) or {}) | ropes.get("full_attention", {})
    shape = _olmo2(without(config, "layer_types", "sliding_window") | {"rope_parameters": whole})
    local = {"rope_parameters": plain | ropes.get("sliding_attention", {})}
    return replace(
        shape,
        windows=windows_of(config, lambda layer: (layer + 1) % 4 != 0),
        local_rope=read_rope(local, shape.context_len),
    )


def _exaone4(config: Config) -> ModelShape:
    window, pattern = config.get("sliding_window", 4096), config.get("sliding_window_pattern", 4)
    rest = without(config, "layer_types", "sliding_window", "sliding_window_pattern")
    shape = as_llama(rest, rms_norm_eps=1e-5, num_key_value_heads=32)
    windows: tuple[int | None, ...] = (None,) * shape.num_layers
    if window is not None:
        if not isinstance(pattern, int) and not config.get("layer_types"):
            raise ModelError(
                f"an EXAONE 4 with sliding_window_pattern = {pattern!r} needs layer_types"
            )
        windows = windows_of(config, lambda layer: (layer + 1) % pattern != 0)
    whole = (layer for layer in range(shape.num_layers) if windows[layer] is None)
    return replace(
        shape,
        norms=_NORMS_BEHIND,
        qk_norm=True,
        windows=windows,
        unrotated=frozenset(whole) if window is not None else frozenset(),
    )


def _seed_oss(config: Config) -> ModelShape:
    shape = as_llama(
        config,
        *("attention_bias", "attention_out_bias"),
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=524_288,
    )
    return replace(
        shape,
        qkv_bias=bool(config.get("attention_bias", True)),
        out_bias=bool(config.get("attention_out_bias", False)),
    )


def _hunyuan(config: Config) -> ModelShape:
    ropes = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    alpha = ropes.pop("alpha", None)
    theta = ropes.get("rope_theta") or config.get("rope_theta") or 10_000.0
    if alpha and ropes.get("rope_type", ropes.get("type")) == "dynamic":
        ropes, dim = (
            {},
            config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
        )
        theta *= alpha ** (dim / (dim - 2))
    rest = without(config, "rope_scaling", "rope_theta", "use_qk_norm", "attention_bias")
    shape = as_llama(rest | {"rope_parameters": {**ropes, "rope_theta": theta}}, rms_norm_eps=1e-5)
    has_bias = bool(config.get("attention_bias"))
    return replace(
        shape,
        names=WeightNames(q_norm="query_layernorm", k_norm="key_layernorm"),
        qk_norm=True,
        norms_rotated=True,
        qkv_bias=has_bias,
        out_bias=has_bias,
    )


def _glm4(config: Config) -> ModelShape:
    """Also the older GLM, without norms behind the halves."""
    partial, has_norms_behind = partial_of(config), config["model_type"] == "glm4"
    shape = as_llama(
        config,
        "attention_bias",
        num_key_value_heads=2,
        head_dim=128,
        max_position_embeddings=131_072,
        rms_norm_eps=1.5625e-07,
    )
    behind = Norms(
        attention_post_norm="post_self_attn_layernorm", mlp_post_norm="post_mlp_layernorm"
    )
    return replace(
        shape,
        norms=behind if has_norms_behind else Norms(),
        names=WeightNames(gate_up="gate_up_proj"),
        qkv_bias=bool(config.get("attention_bias", True)),
        rotary_dim=int(shape.head_dim * (partial or 0.5)),
        rotates_pairs=True,
    )


def _ministral3(config: Config) -> ModelShape:
    ropes = dict(config.get("rope_parameters") or {})
    by = ropes.pop("llama_4_scaling_beta", None)
    ropes.pop("max_position_embeddings", None)
    every = ropes.get("original_max_position_embeddings")
    if by is None or every is None:
        raise ModelError(
            "a Ministral 3 needs llama_4_scaling_beta and a length that it counts from"
        )
    shape = as_llama(
        without(config, "sliding_window") | {"rope_parameters": ropes},
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=262_144,
        rms_norm_eps=1e-5,
    )
    windows = (config.get("sliding_window"),) * shape.num_layers
    return replace(shape, windows=windows, growth=QueryGrowth(float(by), int(every)))


def without(config: Config, *names: str) -> Config:
    return {name: value for name, value in config.items() if name not in names}


DECODERS: dict[str, Callable[[Config], ModelShape]] = {
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "phi3": _phi3,
    "olmo2": _olmo2,
    "smollm3": _smollm3,
    "granite": granite,
    "olmo3": _olmo3,
    "exaone4": _exaone4,
    "seed_oss": _seed_oss,
    "hunyuan_v1_dense": _hunyuan,
    "glm": _glm4,
    "glm4": _glm4,
    "ministral3": _ministral3,
}
LATER = frozenset({"olmo3", "exaone4", "seed_oss", "hunyuan_v1_dense", "glm", "glm4", "ministral3"})
"""Those that only the native engine computes."""


# --- Gemma 4: heads of several sizes, keys and values of other layers, inputs of each layer -------

_GEMMA4_OWN = frozenset(
    {
        *("hidden_activation", "use_bidirectional_attention", "sliding_window", "layer_types"),
        *("final_logit_softcapping", "per_layer_config", "global_head_dim", "rope_parameters"),
        *("num_global_key_value_heads", "attention_k_eq_v", "num_kv_shared_layers"),
        *("use_double_wide_mlp", "hidden_size_per_layer_input", "vocab_size_per_layer_input"),
        *("enable_moe_block", "num_experts", "top_k_experts", "moe_intermediate_size"),
    }
)
_GEMMA4_ROPES: Mapping[str, Config] = {
    "sliding_attention": {"rope_theta": 10_000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25}
    | {"rope_theta": 1_000_000.0},
}
_GEMMA4_DEFAULTS: Config = {
    "head_dim": 256,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
}
_GEMMA4_DEFAULTS |= {"tie_word_embeddings": True}
GEMMA4_UNIFIED: Config = {"hidden_size_per_layer_input": 0, "sliding_window": 1024}
GEMMA4_UNIFIED |= {"max_position_embeddings": 262_144}
"""What the text part of a unified Gemma 4 takes for granted."""
_GEMMA4_MULTIPLE = 16
"""Inputs per layer are computed so many at a time."""


def read_gemma4(config: Config) -> ModelShape:
    """Raises ModelError."""
    activation = config.get("hidden_activation") or "gelu_pytorch_tanh"
    if activation != "gelu_pytorch_tanh" or config.get("use_bidirectional_attention") == "all":
        raise ModelError(f"a Gemma 4 with {activation} or attention to both sides is not supported")
    rest = {name: value for name, value in config.items() if name not in _GEMMA4_OWN}
    shape = read_shape(_GEMMA4_DEFAULTS | rest | {"model_type": "llama", "hidden_act": "silu"})
    kinds = _gemma4_kinds(config, shape.num_layers)
    window = size_of({"sliding_window": 512} | config, "sliding_window")
    ropes = config.get("rope_parameters") or _GEMMA4_ROPES
    whole, local = (
        read_rope({"rope_parameters": ropes[kind]}, shape.context_len)
        for kind in ("full_attention", "sliding_attention")
    )
    sources = _gemma4_sources(kinds, config.get("num_kv_shared_layers") or 0)
    wide = config.get("use_double_wide_mlp")
    return replace(
        shape,
        rope=whole,
        local_rope=local,
        windows=tuple(window if kind == "sliding_attention" else None for kind in kinds),
        whole_heads=_gemma4_whole_heads(config, shape, kinds),
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
        per_layer=_gemma4_per_layer(config, shape),
        layer_scales=True,
        mixture=_gemma4_mixture(config, shape) if config.get("enable_moe_block") else None,
    )


def _gemma4_kinds(config: Config, count: int) -> list[str]:
    """The type of each layer; the last one is always full attention."""
    kinds = list(config.get("layer_types") or ())
    kinds = kinds or [
        "full_attention" if (layer + 1) % 6 == 0 else "sliding_attention" for layer in range(count)
    ]
    if len(kinds) != count or not set(kinds) <= _GEMMA4_ROPES.keys():
        raise ModelError(
            f"layer_types must name sliding_attention or full_attention for each of {count} "
            f"layers: {kinds}"
        )
    return [*kinds[:-1], "full_attention"]


def _gemma4_whole_heads(config: Config, shape: ModelShape, kinds: list[str]) -> Heads:
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


def _gemma4_sources(kinds: list[str], count: int) -> tuple[int | None, ...]:
    """The last `count` layers read what the last layer of their type before them has."""
    first = len(kinds) - count
    own = {kind: layer for layer, kind in enumerate(kinds[:first])}
    if not set(kinds[first:]) <= own.keys():
        raise ModelError(f"num_kv_shared_layers = {count} leaves no layer of a type to read from")
    return (*(None for _ in range(first)), *(own[kind] for kind in kinds[first:]))


def _gemma4_per_layer(config: Config, shape: ModelShape) -> int | None:
    size = config.get("hidden_size_per_layer_input", 256)
    if not size:
        return None
    if size % _GEMMA4_MULTIPLE:
        raise FeatureNotComputed(
            f"hidden_size_per_layer_input = {size} is not supported by the native decoder, only "
            f"multiples of {_GEMMA4_MULTIPLE}"
        )
    vocab = config.get("vocab_size_per_layer_input", 262_144)
    if vocab != shape.vocab_size:
        raise ModelError(f"inputs per layer of {vocab} tokens do not fit {shape.vocab_size}")
    return int(size)


def _gemma4_mixture(config: Config, shape: ModelShape) -> Mixture:
    return read_mixture(
        config | {"num_experts_per_tok": config.get("top_k_experts")},
        "moe_intermediate_size",
        frozenset(range(shape.num_layers)),
        names=ExpertNames("experts", router="proj", router_block="router"),
        layout="bare",
        is_beside=True,
    )


def text_part(config: Mapping[str, Any]) -> Config:
    """What a checkpoint that also sees pictures says of its text part; else `config` itself."""
    part = config.get("text_config")
    if not isinstance(part, dict):
        return dict(config)
    common = ("dtype", "torch_dtype", "tie_word_embeddings", "quantization_config")
    return {**part, **{name: config[name] for name in common if name in config}}
