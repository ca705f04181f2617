"""Shapes of plain decoders that the native engine and several ranks decode, where the torch engine
alone leaves them to transformers: Gemma 2 and 3, Phi 3, OLMo 2, SmolLM 3, Granite.

Each is a Llama but for some fields: what is its own is taken out of config.json here, the rest is
read as a Llama's, which refuses what nobody knows by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lmprog.errors import ModelError
from lmprog.runtime.engine.model.rope import read_rope
from lmprog.runtime.engine.model.shape import Growth, ModelShape, Norms, WeightNames, read_shape

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
    shape = _olmo2(_without(config, "layer_types", "sliding_window") | {"rope_parameters": whole})
    local = {"rope_parameters": plain | ropes.get("sliding_attention", {})}
    return replace(
        shape,
        windows=windows_of(config, lambda layer: (layer + 1) % 4 != 0),
        local_rope=read_rope(local, shape.context_len),
    )


def _exaone4(config: Config) -> ModelShape:
    window, pattern = config.get("sliding_window", 4096), config.get("sliding_window_pattern", 4)
    rest = _without(config, "layer_types", "sliding_window", "sliding_window_pattern")
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
    rest = _without(config, "rope_scaling", "rope_theta", "use_qk_norm", "attention_bias")
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
        _without(config, "sliding_window") | {"rope_parameters": ropes},
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=262_144,
        rms_norm_eps=1e-5,
    )
    windows = (config.get("sliding_window"),) * shape.num_layers
    return replace(shape, windows=windows, growth=Growth(float(by), int(every)))


def _without(config: Config, *names: str) -> Config:
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
