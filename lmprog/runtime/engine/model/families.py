"""Which shape a checkpoint of each family has: those of plain decoders (`decoders`), mixtures of
experts, models with recurrent layers (`recurrent` has what these are) and with layers of several
kinds.

Each is read as a plain decoder but for some fields, which are taken out of config.json here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from lmprog.runtime.engine.model.decoders import (
    DECODERS,
    GEMMA4_UNIFIED,
    LATER,
    Config,
    as_llama,
    granite,
    partial_of,
    read_gemma4,
    text_part,
    windows_of,
    without,
)
from lmprog.runtime.engine.model.mixture import (
    ExpertNames,
    SharedExpert,
    deepseek_mixture,
    nemotron_mixture,
    read_mixture,
    size_of,
    with_shared_expert,
)
from lmprog.runtime.engine.model.recurrent import (
    Recurrent,
    checked,
    delta_net,
    layers_of,
    mamba2,
)
from lmprog.runtime.engine.model.rope import FeatureNotComputed
from lmprog.runtime.engine.model.shape import (
    FAMILIES,
    Carried,
    ModelShape,
    Norms,
    WeightNames,
    read_shape,
)


def shardable_families() -> tuple[str, ...]:
    """The model types that several ranks compute."""
    return tuple(name for name in device_families() if name not in _UNSHARED)


def device_families() -> tuple[str, ...]:
    """Those of a device: layers attend, with heads of one size."""
    return (*FAMILIES, *DECODERS, *_MIXTURES)


def is_native(model_type: str) -> bool:
    return model_type in FAMILIES or model_type in DECODERS | _MIXTURES | _HYBRIDS | _LAYERED


def read_native_shape(config: Mapping[str, Any]) -> ModelShape:
    """The shape of a checkpoint that `is_native`. Raises ModelError for what the native engine
    cannot compute."""
    name = config["model_type"]
    if name in FAMILIES:
        return read_shape(config)
    return _readers()[name](dict(config))


def _readers() -> dict[str, Callable[[Config], ModelShape]]:
    return DECODERS | _MIXTURES | _HYBRIDS | _LAYERED


_EXPERTS = ("num_local_experts", "num_experts", "num_experts_per_tok")


def _mixtral(config: Config) -> ModelShape:
    shape = as_llama(
        config,
        *(*_EXPERTS, "sliding_window"),
        num_key_value_heads=8,
        max_position_embeddings=131_072,
        rms_norm_eps=1e-5,
        rope_theta=1e6,
    )
    layers = frozenset(range(shape.num_layers))
    names = ExpertNames("block_sparse_moe", gate="w1", up="w3", down="w2")
    described = {"num_local_experts": 8, "num_experts_per_tok": 2} | config
    return replace(
        shape,
        mixture=read_mixture(described, "intermediate_size", layers, names=names),
        windows=(config.get("sliding_window"),) * shape.num_layers,
    )


def _qwen3_moe(config: Config) -> ModelShape:
    shape = as_llama(
        config,
        *(*_EXPERTS, "sliding_window", "use_sliding_window", "max_window_layers"),
        num_key_value_heads=4,
        max_position_embeddings=32_768,
    )
    window = config.get("sliding_window", 4096) if config.get("use_sliding_window") else None
    normalized = bool(config.get("norm_topk_prob", False))
    layers = _mixed_layers(config, shape.num_layers)
    return replace(
        shape,
        qk_norm=True,
        mixture=read_mixture(config, "moe_intermediate_size", layers, normalized=normalized),
        windows=(window,) * shape.num_layers,
    )


def _minimax_m2(config: Config) -> ModelShape:
    """Chosen by sigmoids and a bias."""
    partial = partial_of(config)
    rotated = config.pop("rotary_dim", None)
    shape = as_llama(
        config,
        *(*_EXPERTS, "use_qk_norm"),
        *("num_key_value_heads",) * (config.get("num_key_value_heads", 8) is None),
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=196_608,
        rope_theta=5e6,
    )
    block = "block_sparse_moe"
    described = {"num_local_experts": 256, "num_experts_per_tok": 8} | config
    return replace(
        shape,
        qk_norm=True,
        qk_norm_wide=True,
        rotary_dim=rotated or int(shape.head_dim * (partial or 1.0)),
        mixture=read_mixture(
            *(described, "intermediate_size", frozenset(range(shape.num_layers))),
            sigmoid=True,
            choice_bias=f"{block}.e_score_correction_bias",
            names=ExpertNames(block, gate="w1", up="w3", down="w2"),
        ),
    )


def _glm4_moe(config: Config) -> ModelShape:
    if config.get("n_group", 1) != 1:
        raise FeatureNotComputed("groups of experts are not supported by the native decoder")
    partial, has_bias = partial_of(config), bool(config.get("attention_bias", False))
    shape = as_llama(
        config,
        *(*_EXPERTS, "n_routed_experts", "attention_bias", "use_qk_norm"),
        num_key_value_heads=8,
        max_position_embeddings=131_072,
        rms_norm_eps=1e-5,
    )
    told: Config = {"n_routed_experts": 128, "num_experts_per_tok": 8, "n_shared_experts": 1}
    told |= {"moe_intermediate_size": 1408} | config
    layers = frozenset(range(config.get("first_k_dense_replace", 1), shape.num_layers))
    return replace(
        shape,
        qkv_bias=has_bias,
        qk_norm=bool(config.get("use_qk_norm")),
        rotary_dim=int(shape.head_dim * (partial or 0.5)),
        mixture=deepseek_mixture(told | {"num_experts": told["n_routed_experts"]}, layers),
    )


def _exaone_moe(config: Config) -> ModelShape:
    """An EXAONE 4 with norms before its halves, and a mixture behind the first layers."""
    if config.get("n_group", 1) != 1:
        raise FeatureNotComputed("groups of experts are not supported by the native decoder")
    shape = DECODERS["exaone4"](without(config, *_EXPERTS))
    dense = config.get("first_k_dense_replace", 1)
    kinds = config.get("mlp_layer_types") or [
        "dense" if layer < dense else "sparse" for layer in range(shape.num_layers)
    ]
    told: Config = {"num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 1024}
    told |= {"num_shared_experts": 1, "routed_scaling_factor": 2.5} | config
    told |= {"n_shared_experts": told["num_shared_experts"]}
    layers = frozenset(layer for layer, kind in enumerate(kinds) if kind == "sparse")
    mixture = replace(deepseek_mixture(told, layers), choice_bias="mlp.e_score_correction_bias")
    return replace(shape, norms=Norms(), mixture=mixture)


def _hunyuan_moe(config: Config) -> ModelShape:
    """Experts and a shared one as large as each of them, in every layer."""
    told: Config = {"num_experts": 1, "moe_topk": config.get("num_experts_per_tok", 1)} | config
    for name in ("num_experts", "moe_topk"):
        each = told[name] if isinstance(told[name], list) else [told[name]]
        if len(set(each)) != 1:
            raise FeatureNotComputed(f"a Hunyuan with several {name} is not supported natively")
        told[name] = each[0]
    told |= {"num_experts_per_tok": told["moe_topk"]}
    shape = DECODERS["hunyuan_v1_dense"](without(config, *_EXPERTS))
    shared = (f"mlp.shared_mlp.{name}_proj.weight" for name in ("gate", "up", "down"))
    layers, inner = frozenset(range(shape.num_layers)), size_of(told, "intermediate_size")
    return replace(
        shape,
        mixture=read_mixture(
            *(told, "intermediate_size", layers),
            names=ExpertNames(router="gate.wg"),
            shared=SharedExpert(inner, *shared),
        ),
    )


def _mixed_layers(config: Config, count: int) -> frozenset[int]:
    """The layers of a Qwen that have a mixture."""
    every, plain = config.get("decoder_sparse_step") or 1, config.get("mlp_only_layers") or []
    return frozenset(at for at in range(count) if (at + 1) % every == 0) - frozenset(plain)


def _qwen2_moe(config: Config) -> ModelShape:
    has_bias = bool(config.pop("qkv_bias", True))
    shape = as_llama(
        config,
        *(*_EXPERTS, "sliding_window", "use_sliding_window", "max_window_layers", "layer_types"),
        num_key_value_heads=16,
        max_position_embeddings=32_768,
    )
    windows: tuple[int | None, ...] = (None,) * shape.num_layers
    if config.get("use_sliding_window"):
        first_whole = int(config.get("max_window_layers", 28))
        windows = windows_of(config, lambda layer: layer % 2 == 0 and layer < first_whole)
    described = {
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "norm_topk_prob": False,
    } | config
    return replace(
        shape,
        qkv_bias=has_bias,
        mixture=with_shared_expert(described, _mixed_layers(described, shape.num_layers)),
        windows=windows,
    )


def _olmoe(config: Config) -> ModelShape:
    shape = as_llama(config, *_EXPERTS, max_position_embeddings=4096, rms_norm_eps=1e-5)
    layers = frozenset(range(shape.num_layers))
    described = {"num_experts": 64, "num_experts_per_tok": 8} | config
    normalized = bool(config.get("norm_topk_prob", False))
    return replace(
        shape,
        qk_norm=True,
        qk_norm_wide=True,
        mixture=read_mixture(described, "intermediate_size", layers, normalized=normalized),
    )


def _granite_moe(config: Config) -> ModelShape:
    """With a shared expert or without."""
    rest = without(config, *_EXPERTS)
    shape = granite({"max_position_embeddings": 2048} | rest)
    names = ExpertNames("block_sparse_moe", router="router.layer")
    described = {"num_local_experts": 8, "num_experts_per_tok": 2} | config
    shared = None
    if config["model_type"] == "granitemoeshared" and config.get("shared_intermediate_size"):
        both = "shared_mlp.input_linear.weight"
        inner = size_of(config, "shared_intermediate_size")
        shared = SharedExpert(inner, both, both, "shared_mlp.output_linear.weight")
    layers = frozenset(range(shape.num_layers))
    further = {"names": names, "layout": "granite", "shared": shared}
    return replace(shape, mixture=read_mixture(described, "intermediate_size", layers, **further))


def _gpt_oss(config: Config) -> ModelShape:
    shape = as_llama(
        config,
        *(*_EXPERTS, "sliding_window", "layer_types"),
        attention_bias=True,
        head_dim=64,
        rms_norm_eps=1e-5,
        rope_theta=150_000.0,
        max_position_embeddings=131_072,
    )
    layers = frozenset(range(shape.num_layers))
    names = ExpertNames(router="router")
    windows = {"sliding_window": 128} | config
    return replace(
        shape,
        activation="clamped",
        activation_slope=float(config.get("swiglu_alpha", 1.702)),
        activation_limit=float(config.get("swiglu_limit", 7.0)),
        sinks=True,
        mixture=read_mixture(
            config, "intermediate_size", layers, names=names, biases=True, layout="gpt_oss"
        ),
        windows=windows_of(windows, lambda layer: layer % 2 == 0),
    )


# --- with recurrent layers ------------------------------------------------------------------------


def _lfm2(config: Config) -> ModelShape:
    if config.get("conv_bias"):
        raise FeatureNotComputed("convolutions with a bias are not supported by the native decoder")
    count, tied = config.get("num_hidden_layers", 32), config.get("tie_word_embeddings", True)
    attending = config.get("full_attn_idxs")
    kinds = config.get("layer_types") or [
        "full_attention" if attending is None or layer in attending else "conv"
        for layer in range(count)
    ]
    told = {"intermediate_size": 12_288, "block_multiple_of": 256} | config
    inner = size_of(told, "block_ff_dim" if "block_ff_dim" in told else "intermediate_size")
    if config.get("block_auto_adjust_ff_dim", True):
        grown = int((config.get("block_ffn_dim_multiplier") or 1.0) * int(2 * inner / 3))
        inner = -(-grown // told["block_multiple_of"]) * int(told["block_multiple_of"])
    fields: Config = {"rope_theta": 1e6, "max_position_embeddings": 128_000}
    fields |= {"num_key_value_heads": 8} | config
    fields |= {"intermediate_size": inner, "rms_norm_eps": config.get("norm_eps", 1e-5)}
    fields["tie_word_embeddings"] = config.get("tie_embedding", tied)
    shape = as_llama(fields, "layer_types")
    layers = layers_of(config, kinds, "conv")
    taps = size_of({"conv_L_cache": 3} | config, "conv_L_cache")
    return replace(
        shape,
        norms=Norms(attention_norm="operator_norm", mlp_norm="ffn_norm"),
        qk_norm=True,
        names=WeightNames(
            *("feed_forward", "w1", "w3", "w2"),
            out="out_proj",
            q_norm="q_layernorm",
            k_norm="k_layernorm",
            last_norm="model.embedding_norm",
        ),
        recurrent=checked(Recurrent("short_conv", layers, taps, shape.hidden)),
    )


def _lfm2_moe(config: Config) -> ModelShape:
    rest = without(config, *_EXPERTS)
    shape = _lfm2({"block_auto_adjust_ff_dim": False} | rest)
    told: Config = {"num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 1792}
    layers = frozenset(range(config.get("num_dense_layers", 2), shape.num_layers))
    mixture = read_mixture(
        *(told | config, "moe_intermediate_size", layers),
        normalized=bool(config.get("norm_topk_prob", True)),
        sigmoid=True,
        share_floor=1e-6,
        share_scale=float(config.get("routed_scaling_factor", 1.0)),
        choice_bias="feed_forward.expert_bias" if config.get("use_expert_bias", True) else None,
        names=ExpertNames("feed_forward", gate="w1", up="w3", down="w2"),
        layout="stacked",
    )
    return replace(shape, mixture=mixture)


def _olmo_hybrid(config: Config) -> ModelShape:
    config = {name: value for name, value in config.items() if value is not None}
    ropes = config.get("rope_parameters") or {}
    shape = as_llama(config, "layer_types")
    every = range(shape.num_layers)
    kinds = config.get("layer_types") or [
        "full_attention" if layer % 4 == 3 else "linear_attention" for layer in every
    ]
    heads = config.get("linear_num_key_heads", shape.num_heads)
    key_dim = config.get("linear_key_head_dim", int(0.75 * shape.hidden / heads))
    told = {"linear_num_key_heads": heads, "linear_num_value_heads": shape.num_heads}
    told |= {"linear_key_head_dim": key_dim, "linear_value_head_dim": 2 * key_dim}
    layers = layers_of(config, kinds, "linear_attention")
    is_rotated = ropes.get("rope_theta", config.get("rope_theta")) is not None
    return replace(
        shape,
        norms=Norms(None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
        recurrent_norms=Norms("attention_layer_norm", mlp_norm="feedforward_layer_norm"),
        qk_norm=True,
        qk_norm_wide=True,
        unrotated=frozenset() if is_rotated else frozenset(every),
        recurrent=replace(
            delta_net(told | config, layers),
            layout="single",
            norm_eps=1e-5,
            rate_scale=2.0 if config.get("linear_allow_neg_eigval", True) else 1.0,
        ),
    )


def _qwen3_5(config: Config) -> ModelShape:
    """Also Qwen 3 Next. Of a checkpoint with a part for pictures the text part is meant."""
    config = text_part(config)
    if not config.get("attn_output_gate", True):
        raise FeatureNotComputed("a Qwen 3.5 without gates of attention is not supported")
    ropes = {**(config.get("rope_parameters") or {}), **(config.get("rope_scaling") or {})}
    partial = ropes.pop("partial_rotary_factor", None) or config.get("partial_rotary_factor")
    positions_of_pictures = ("mrope_section", "mrope_interleaved")  # a text's are all the same
    ropes = {name: one for name, one in ropes.items() if name not in positions_of_pictures}
    every = config.get("full_attention_interval") or 4
    kinds = config.get("layer_types") or [
        "linear_attention" if (layer + 1) % every else "full_attention"
        for layer in range(config["num_hidden_layers"])
    ]
    own = ("layer_types", "rope_scaling", "partial_rotary_factor", *_EXPERTS)
    ropes = {"rope_theta": config.get("rope_theta") or 10_000.0} | ropes
    defaults = {"head_dim": 256, "num_key_value_heads": 4, "max_position_embeddings": 32_768}
    defaults |= {"intermediate_size": 1}
    shape = as_llama(config | {"rope_parameters": ropes}, *own, **defaults)
    return replace(
        shape,
        qk_norm=True,
        norms_add_one=True,
        gated_attention=True,
        rotary_dim=int(shape.head_dim * (partial or 0.25)),
        recurrent=delta_net(config, layers_of(config, kinds, "linear_attention")),
    )


def _qwen3_5_mixture(config: Config) -> ModelShape:
    """Also Qwen 3 Next, where every layer has a mixture, or all but some."""
    config = text_part(config)
    shape = _qwen3_5(config)
    sizes: Config = {"num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512}
    described = sizes | {"shared_expert_intermediate_size": 512, "norm_topk_prob": True} | config
    if config["model_type"] != "qwen3_next":
        described = described | {"norm_topk_prob": True, "mlp_only_layers": None}
        described["decoder_sparse_step"] = 1
    return replace(
        shape, mixture=with_shared_expert(described, _mixed_layers(described, shape.num_layers))
    )


def _granite_hybrid(config: Config) -> ModelShape:
    experts, inner = config.get("num_local_experts", 8), config.get("shared_intermediate_size")
    inner = size_of({"shared_intermediate_size": inner or 1024}, "shared_intermediate_size")
    own = ("layer_types", "layers_block_type", *_EXPERTS)
    rest = without(config, *own)
    if not experts:
        rest["intermediate_size"] = inner
    shape = granite({"max_position_embeddings": 2048} | rest)
    kinds = config.get("layer_types") or config.get("layers_block_type") or []
    every = frozenset(range(shape.num_layers))
    both, ends = "shared_mlp.input_linear.weight", "shared_mlp.output_linear.weight"
    mixture = None
    if experts:
        mixture = read_mixture(
            *({"num_experts_per_tok": 2} | config, "intermediate_size", every),
            names=ExpertNames("block_sparse_moe", router="router.layer"),
            layout="granite",
            shared=SharedExpert(inner, both, both, ends),
        )
    return replace(
        shape,
        mixture=mixture,
        names=WeightNames("shared_mlp", down="output_linear", gate_up="input_linear"),
        unrotated=frozenset() if config.get("position_embedding_type") == "rope" else every,
        recurrent=mamba2(config, layers_of(config, kinds, "linear_attention")),
    )


def _bamba(config: Config) -> ModelShape:
    attending = config.get("attn_layer_indices") or []
    layers = frozenset(range(size_of(config, "num_hidden_layers"))) - frozenset(attending)
    ropes = dict(config.get("rope_parameters") or {})
    ropes.pop("partial_rotary_factor", None)
    fields = {"rms_norm_eps": 1e-5, "num_key_value_heads": 8, "max_position_embeddings": 262_144}
    told = fields | config | {"rope_parameters": ropes or None}
    shape = as_llama(told, "attn_layer_indices", "partial_rotary_factor", "layer_types")
    return replace(
        shape,
        rotary_dim=shape.head_dim // 2,
        norms=Norms(mlp_norm="pre_ff_layernorm"),
        names=WeightNames("feed_forward", last_norm="model.final_layernorm"),
        recurrent=mamba2(config, layers),
    )


def _minimax(config: Config) -> ModelShape:
    """Half of the layers are linear attention whose decays are fixed."""
    partial = partial_of(config)
    factors = {name: float(config.pop(f"{name}_factor", None) or 1.0) for name in _MINIMAX_FACTORS}
    if len({factors[name] for name in factors if "beta" in name}) > 1:
        raise FeatureNotComputed("a MiniMax with several beta factors is not supported natively")
    shape = _mixtral({"num_key_value_heads": 8} | without(config, "layer_types", "sliding_window"))
    kinds = config.get("layer_types") or [
        "linear_attention" if layer % 2 else "full_attention" for layer in range(shape.num_layers)
    ]
    size = shape.num_heads * shape.head_dim
    recurrent = Recurrent(
        *("linear", layers_of(config, kinds, "linear_attention"), 1, 3 * size),
        heads=shape.num_heads,
        groups=shape.num_heads,
        key_dim=shape.head_dim,
        value_dim=shape.head_dim,
        norm_eps=1e-6,
    )
    return replace(
        shape,
        windows=(None,) * shape.num_layers,
        rotary_dim=int(shape.head_dim * (partial or 1.0)),
        residual_scale=factors["mlp_beta"],
        carried=Carried(
            *(factors[f"{name}_alpha"] for name in ("full_attn", "linear_attn", "mlp"))
        ),
        recurrent=checked(recurrent),
    )


_MINIMAX_FACTORS = (
    *("full_attn_alpha", "full_attn_beta", "linear_attn_alpha", "linear_attn_beta"),
    *("mlp_alpha", "mlp_beta"),
)


_NEMOTRON_LAYERS = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
_NEMOTRON_SIZES = {
    "mamba_n_heads": ("mamba_num_heads", 128),
    "mamba_d_head": ("mamba_head_dim", 64),
    "mamba_n_groups": ("n_groups", 8),
    "mamba_d_state": ("ssm_state_size", 128),
    "mamba_d_conv": ("conv_kernel", 4),
    "mamba_conv_bias": ("use_conv_bias", True),
}
"""What Mamba's sizes are called there, and what they are where nothing is said."""


def _nemotron_h(config: Config) -> ModelShape:
    """Each layer is one half."""
    kinds = config.get("layers_block_type") or config.get("layer_types")
    pattern = config.get("hybrid_override_pattern", "ME*-")
    kinds = kinds or [_NEMOTRON_LAYERS[one] for one in pattern if one in _NEMOTRON_LAYERS]
    words = {"mamba": "linear_attention", "attention": "full_attention"}
    kinds = [words.get(one, one) for one in kinds]
    refused = ("attention_bias", "mlp_bias", "use_bias", "moe_latent_size", "sliding_window")
    for name in refused:
        if config.get(name):
            raise FeatureNotComputed(f"a Nemotron H with {name} is not supported natively")
    if config.get("mlp_hidden_act", "relu2") != "relu2" or config.get("n_group", 1) != 1:
        raise FeatureNotComputed("Nemotron H is computed natively with relu2 and one group")
    fields = {"hidden_act", "num_local_experts", "layers_block_type", "layer_types", *refused}
    rest = {name: value for name, value in config.items() if name not in {*fields, *_EXPERTS}}
    told = {"head_dim": 128, "num_key_value_heads": 8, "max_position_embeddings": 4096} | rest
    told = {"intermediate_size": 21_504} | told | {"num_hidden_layers": len(kinds)}
    told["rms_norm_eps"] = config.get("layer_norm_epsilon", 1e-5)
    shape = as_llama(told, "n_routed_experts", "rope_theta")
    mixed = frozenset(at for at, kind in enumerate(kinds) if kind == "moe")
    sizes = {own: config.get(name, size) for own, (name, size) in _NEMOTRON_SIZES.items()}
    counted = config | sizes | {"num_hidden_layers": len(kinds), "time_step_limit": None}
    mixers = [kind if kind.endswith("attention") else "full_attention" for kind in kinds]
    recurrent = mamba2(counted, layers_of(counted, mixers, "linear_attention"))
    return replace(
        shape,
        norms=Norms("norm", mlp_norm="norm"),
        names=WeightNames("mixer", last_norm="model.norm_f", attention="mixer"),
        activation="relu2",
        unrotated=frozenset(range(shape.num_layers)),
        lone_mlps=mixed | {at for at, kind in enumerate(kinds) if kind == "mlp"},
        mixture=nemotron_mixture(config, mixed) if mixed else None,
        recurrent=replace(
            recurrent, block="mixer", least_step=float(config.get("time_step_min", 0.001))
        ),
    )


_MIXTURES: dict[str, Callable[[Config], ModelShape]] = {
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "olmoe": _olmoe,
    "gpt_oss": _gpt_oss,
    "granitemoe": _granite_moe,
    "granitemoeshared": _granite_moe,
    "minimax_m2": _minimax_m2,
    "glm4_moe": _glm4_moe,
    "hunyuan_v1_moe": _hunyuan_moe,
    "exaone_moe": _exaone_moe,
}
_HYBRIDS: dict[str, Callable[[Config], ModelShape]] = {
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2_moe,
    "olmo_hybrid": _olmo_hybrid,
    "qwen3_5_text": _qwen3_5,
    "qwen3_5": _qwen3_5,
    **dict.fromkeys(("qwen3_next", "qwen3_5_moe_text", "qwen3_5_moe"), _qwen3_5_mixture),
    "granitemoehybrid": _granite_hybrid,
    "bamba": _bamba,
    "nemotron_h": _nemotron_h,
    "minimax": _minimax,
}
_LAYERED: dict[str, Callable[[Config], ModelShape]] = {
    **dict.fromkeys(("gemma4_text", "gemma4"), lambda config: read_gemma4(text_part(config))),
    **dict.fromkeys(
        ("gemma4_unified_text", "gemma4_unified"),
        lambda config: read_gemma4(GEMMA4_UNIFIED | text_part(config)),
    ),
}
"""Whose layers have heads of several sizes."""
_UNSHARED = frozenset({"gpt_oss", "glm4_moe", "minimax_m2", "hunyuan_v1_moe", "exaone_moe"}) | LATER
"""Whose sinks and biases of experts ranks do not share, or that no test has compared there."""
