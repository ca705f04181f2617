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
from lmprog.runtime.engine.model.shape import ModelShape, Norms, WeightNames, read_shape

Config = dict[str, Any]


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
    norms = Norms(None, "post_attention_layernorm", None, "post_feedforward_layernorm")
    return replace(shape, norms=norms, qk_norm=True, qk_norm_wide=True)


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


DECODERS: dict[str, Callable[[Config], ModelShape]] = {
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "phi3": _phi3,
    "olmo2": _olmo2,
    "smollm3": _smollm3,
    "granite": granite,
}
