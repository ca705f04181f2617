"""What a native decoder must know of a checkpoint: `ModelShape`, read from its config.json without
transformers.

The differences between Llama, Mistral, Qwen2 and Qwen3 are fields. A field by which other
architectures compute something else is refused by name, because a model that computes something
else is worse than none; fields that mean nothing to any are passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lmprog.errors import ModelError
from lmprog.runtime.documents.checkpoint_documents import json_document
from lmprog.runtime.engine.model.mixture import Mixture
from lmprog.runtime.engine.model.quantization import read_quantization
from lmprog.runtime.engine.model.recurrent import Recurrent
from lmprog.runtime.engine.model.rope import FeatureNotComputed, Rope, read_rope


@dataclass(frozen=True, slots=True)
class Norms:
    """The norms of a layer's halves: what the weight of each is called in a checkpoint; None: there
    is none at that place. They are named as in the C interface.
    """

    attention_norm: str | None = "input_layernorm"
    attention_post_norm: str | None = None
    """Of what attention gives, before it is added."""
    mlp_norm: str | None = "post_attention_layernorm"
    mlp_post_norm: str | None = None


@dataclass(frozen=True, slots=True)
class WeightNames:
    """What parts of a layer, and the last norm, are called in a checkpoint."""

    mlp: str = "mlp"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    gate_up: str = ""
    """The weight that has the rows of both; "": each has its own."""
    out: str = "o_proj"
    q_norm: str = "q_norm"
    k_norm: str = "k_norm"
    last_norm: str = "model.norm"
    attention: str = "self_attn"


@dataclass(frozen=True, slots=True)
class Heads:
    """Of a layer's attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class QueryGrowth:
    """A query is multiplied by 1 + `by` * log(1 + position // `every`)."""

    by: float = 0.0
    every: int = 1


@dataclass(frozen=True, slots=True)
class Carried:
    """What that is multiplied by before a half's result is added: beside attention, a recurrent
    layer, and a feed-forward.
    """

    attention: float
    recurrent: float
    mlp: float


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes and variants of one decoder. `windows` has one entry a layer: positions looked back on,
    None for all.
    """

    vocab_size: int
    hidden: int
    inner: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_len: int
    rope: Rope
    windows: tuple[int | None, ...]
    norm_eps: float = 1e-6
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """Queries and keys are normalized per head before they are rotated (Qwen3)."""
    tied_head: bool = False
    """The head that gives logits is the embedding."""
    activation: str = "silu"
    """What the gate goes through: silu, gelu_tanh (gelu by its tanh approximation), or clamped
    (GPT-OSS), which `activation_slope` and `activation_limit` belong to. Or relu2: there is no
    gate, and relu(x)^2 is what x becomes."""
    activation_slope: float = 1.702
    activation_limit: float = 7.0
    norms: Norms = Norms()
    norms_add_one: bool = False
    """Weights of norms are kept as their distance from 1 (Gemma)."""
    qk_norm_wide: bool = False
    """Queries and keys are normalized over all heads together (OLMo 2)."""
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    attention_softcap: float | None = None
    attention_scale: float | None = None
    """What scores are multiplied by; None: one over the root of head_dim."""
    rotary_dim: int | None = None
    """Leading dimensions of a head that are rotated; None: all."""
    local_rope: Rope | None = None
    """The rotation of layers with a window, where they have one of their own (Gemma 3)."""
    unrotated: frozenset[int] = frozenset()
    """Layers without rotation (SmolLM 3)."""
    rotates_pairs: bool = False
    """Neighbours are turned, not one of each half (GLM 4)."""
    norms_rotated: bool = False
    """Queries and keys are rotated before they are normalized (Hunyuan)."""
    growth: QueryGrowth = QueryGrowth()
    """How queries grow with their positions (Ministral 3)."""
    carried: Carried | None = None
    """What a half's norm gives goes on beside it, not what goes in (MiniMax)."""
    joined: bool = False
    """The checkpoint keeps queries, keys and values as one weight (Phi 3)."""
    mixture: Mixture | None = None
    sinks: bool = False
    """Each head has one more score that takes its share of the softmax (GPT-OSS)."""
    names: WeightNames = WeightNames()
    recurrent: Recurrent | None = None
    """The layers that keep a state in place of keys and values."""
    recurrent_norms: Norms | None = None
    """Those of recurrent layers, where they are others (OLMo hybrid)."""
    lone_mlps: frozenset[int] | None = None
    """Each layer is one half only: these are feed-forwards, and no others have one (Nemotron H).
    None: all have both halves."""
    gated_attention: bool = False
    """What a head's attention gives is multiplied with the sigmoid of a gate (Qwen 3.5)."""
    whole_heads: Heads | None = None
    """Those of layers without a window, where they have their own (Gemma 4)."""
    values_are_keys: bool = False
    """Layers without a window have no product for values: they are what the keys' gives."""
    value_norm: bool = False
    """Values are normalized per head, by a norm without a weight."""
    sources: tuple[int | None, ...] = ()
    """For each layer the one whose keys and values it reads, None for its own; (): all have."""
    reading_inner: int | None = None
    """`inner` of layers that read another's keys and values, where it is another."""
    per_layer: int | None = None
    """Numbers that each token has for each layer besides its embedding (Gemma 3n and 4)."""
    layer_scales: bool = False
    """What a layer gives is multiplied by a number of its own."""
    predicts: bool = False
    """The last layer is none of the model's own: it predicts the token after the next one, for
    drafts (multi-token prediction)."""

    @property
    def num_layers(self) -> int:
        return len(self.windows)

    @property
    def predictor(self) -> int | None:
        """The layer that is for drafts; None: there is none."""
        return self.num_layers - 1 if self.predicts else None

    def prefix_of(self, layer: int) -> str:
        """What the names of the layer's weights begin with."""
        return "mtp.layers.0." if layer == self.predictor else f"model.layers.{layer}."

    @property
    def num_recurrent(self) -> int:
        return 0 if self.recurrent is None else len(self.recurrent.layers)

    @property
    def keeping(self) -> list[int]:
        """Layers with keys and values of their own."""
        return [
            layer
            for layer in range(self.num_layers)
            if self.has_mixer(layer)
            and self.recurrent_of(layer) is None
            and self.source_of(layer) is None
        ]

    def has_mixer(self, layer: int) -> bool:
        """Whether it has a first half: attention, or a recurrent one."""
        return self.lone_mlps is None or layer not in self.lone_mlps

    def has_mlp(self, layer: int) -> bool:
        return self.lone_mlps is None or layer in self.lone_mlps

    def heads_of(self, layer: int) -> Heads:
        if self.whole_heads is not None and self.windows[layer] is None:
            return self.whole_heads
        return Heads(self.num_heads, self.num_kv_heads, self.head_dim)

    def source_of(self, layer: int) -> int | None:
        """The layer whose keys and values it reads; None: it has its own."""
        return self.sources[layer] if self.sources else None

    def inner_of(self, layer: int) -> int:
        """Of its ordinary feed-forward; 0: it has none."""
        mixture = self.mixture_of(layer)
        if (mixture is not None and not mixture.is_beside) or not self.has_mlp(layer):
            return 0
        is_other = self.reading_inner is not None and self.source_of(layer) is not None
        return self.reading_inner or self.inner if is_other else self.inner

    def rotated(self, rope: int) -> int:
        """Leading dimensions of a head that the rotation turns, by its place in `ropes`."""
        whole = self.whole_heads if rope == 0 else None
        return self.rotary_dim or (self.head_dim if whole is None else whole.head_dim)

    @property
    def opening(self) -> tuple[str, ...]:
        """The products that open a feed-forward."""
        return ("up",) if self.activation == "relu2" else ("gate", "up")

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """All rotations that layers have."""
        return (self.rope,) if self.local_rope is None else (self.rope, self.local_rope)

    def norms_of(self, layer: int) -> Norms:
        own = None if self.recurrent_of(layer) is None else self.recurrent_norms
        norms = own or self.norms
        if not self.has_mixer(layer):
            norms = replace(norms, attention_norm=None, attention_post_norm=None)
        if not self.has_mlp(layer):
            norms = replace(norms, mlp_norm=None, mlp_post_norm=None)
        return norms

    def carried_of(self, layer: int) -> tuple[float, float]:
        """Of its two halves; 0: what goes in goes on."""
        if (carried := self.carried) is None:
            return 0.0, 0.0
        is_recurrent = self.recurrent_of(layer) is not None
        return carried.recurrent if is_recurrent else carried.attention, carried.mlp

    def recurrent_of(self, layer: int) -> Recurrent | None:
        """What the layer is in place of attention; None: it is attention."""
        has_state = self.recurrent is not None and layer in self.recurrent.layers
        return self.recurrent if has_state else None

    def mixture_of(self, layer: int) -> Mixture | None:
        """The mixture that the layer has in place of its feed-forward; None: an ordinary one."""
        has_one = self.mixture is not None and layer in self.mixture.layers
        return self.mixture if has_one else None

    def rope_of(self, layer: int) -> int | None:
        """Which of `ropes` the layer has; None: none."""
        if layer in self.unrotated:
            return None
        return 1 if self.local_rope is not None and self.windows[layer] is not None else 0


@dataclass(frozen=True, slots=True)
class _Family:
    """What a model type fixes, and what it takes for granted where config.json is silent."""

    kv_heads: int | None = None  # None: as many as heads
    head_dim: int | None = None  # None: hidden / heads
    context_len: int = 32_768
    qkv_bias: bool = False
    qk_norm: bool = False
    biases: frozenset[str] = frozenset()  # the bias fields it reads
    # none, all (sliding_window on every layer), or some (use_sliding_window and layer_types)
    windows: str = "none"


FAMILIES: Mapping[str, _Family] = {
    "llama": _Family(context_len=2048, biases=frozenset({"attention_bias", "mlp_bias"})),
    "mistral": _Family(kv_heads=8, context_len=131_072, windows="all"),
    "qwen2": _Family(kv_heads=32, qkv_bias=True, windows="some"),
    "qwen3": _Family(
        kv_heads=32,
        head_dim=128,
        qk_norm=True,
        biases=frozenset({"attention_bias"}),
        windows="some",
    ),
}
"""Model types of the native decoder."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_READ = _words(
    """
    model_type architectures vocab_size hidden_size intermediate_size num_hidden_layers
    num_attention_heads num_key_value_heads head_dim hidden_act max_position_embeddings
    original_max_position_embeddings rms_norm_eps tie_word_embeddings rope_theta rope_scaling
    rope_parameters partial_rotary_factor
    """
)
_WINDOW_FIELDS = {
    "none": frozenset[str](),
    "all": frozenset({"sliding_window"}),
    "some": frozenset({"sliding_window", "use_sliding_window", "max_window_layers", "layer_types"}),
}
_CHANGING = _words(
    """
    sliding_window use_sliding_window max_window_layers layer_types attention_bias mlp_bias
    qkv_bias use_qkv_bias use_bias embedding_multiplier residual_multiplier attention_multiplier
    logits_scaling logit_scale scale_emb scale_depth dim_model_base attn_logit_softcapping
    final_logit_softcapping query_pre_attn_scalar attention_chunk_size attn_temperature_tuning
    qk_layernorm use_qk_norm use_qk_layernorm clip_qkv alibi parallel_attn use_parallel_residual
    no_rope_layers no_rope_layer_interval rope_interleaved rotary_dim rotary_pct
    rope_local_base_freq num_local_experts num_experts num_experts_per_tok n_routed_experts
    num_kv_shared_layers
    """
)
"""Fields by which other architectures compute something else. Where one is set in a family that
does not have it, the checkpoint is not what it calls itself. All others are passed over, as
transformers does.
"""


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a checkpoint, or what it would be for a GGUF file."""
    path = folder / "config.json"
    config = json_document(folder, "config.json")
    if config is None:
        raise ModelError(f"{folder} is no checkpoint: it has no config.json")
    if not isinstance(config.get("model_type"), str):
        raise ModelError(f"{path} does not say which model it is: no model_type")
    if config.get("auto_map"):
        raise ModelError(
            f"{path} wants code of its own to be run (auto_map), which lmprog never does. If "
            "the model is an ordinary "
            f"{config['model_type']}, remove auto_map from the file."
        )
    return config


def read_shape(config: Mapping[str, Any]) -> ModelShape:
    """The shape of a checkpoint of one of `FAMILIES`. Raises ModelError for what the decoder cannot
    compute.
    """
    name = config["model_type"]
    family = FAMILIES[name]
    _refuse_unknown(config, name, family)
    heads = _size(config, "num_attention_heads")
    hidden = _size(config, "hidden_size")
    kv_heads = _size(config, "num_key_value_heads", family.kv_heads or heads, null=heads)
    head_dim = _size(config, "head_dim", family.head_dim or hidden // heads, null=hidden // heads)
    if heads % kv_heads:
        raise ModelError(f"{heads} query heads cannot share {kv_heads} key/value heads evenly")
    if head_dim % 2:
        raise ModelError(f"heads of {head_dim} dimensions cannot be rotated in pairs")
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise FeatureNotComputed(
            f"hidden_act = {config['hidden_act']!r} is not supported by the native decoder, "
            "only 'silu'"
        )
    context_len = _size(config, "max_position_embeddings", family.context_len)
    rope = read_rope(config, context_len)
    if rope.divisors and len(rope.divisors) != head_dim // 2:
        raise ModelError(f"{len(rope.divisors)} rope divisors do not fit heads of {head_dim}")
    attention_bias = "attention_bias" in family.biases and bool(config.get("attention_bias"))
    return ModelShape(
        vocab_size=_size(config, "vocab_size"),
        hidden=hidden,
        inner=_size(config, "intermediate_size"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        context_len=context_len,
        rope=rope,
        windows=_windows(config, family),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        qkv_bias=family.qkv_bias or attention_bias,
        out_bias=attention_bias,
        mlp_bias="mlp_bias" in family.biases and bool(config.get("mlp_bias")),
        qk_norm=family.qk_norm,
        tied_head=bool(config.get("tie_word_embeddings", False)),
    )


def _refuse_unknown(config: Mapping[str, Any], name: str, family: _Family) -> None:
    architectures = config.get("architectures") or []
    if architectures and not any(kind.endswith("ForCausalLM") for kind in architectures):
        raise ModelError(
            f"{architectures[0]} does not generate text: a model ending in ForCausalLM is needed"
        )
    read_quantization(config)  # what is not read is refused before anything is opened
    known = _READ | family.biases | _WINDOW_FIELDS[family.windows]
    unknown = sorted(
        field
        for field, value in config.items()
        if field in _CHANGING - known and value not in (None, False, [], {}, "")
    )
    if unknown:
        raise ModelError(
            f"config.json has fields that the native decoder of {name} does not know: "
            f"{', '.join(f'{field} = {config[field]!r}' for field in unknown)}. They change what "
            "other architectures compute; remove those from the file that do not matter here."
        )


def _size(
    config: Mapping[str, Any], field: str, missing: int | None = None, null: int | None = None
) -> int:
    value = config.get(field, missing)
    value = null if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelError(f"config.json: {field} must be a positive whole number, it is {value!r}")
    return value


def _windows(config: Mapping[str, Any], family: _Family) -> tuple[int | None, ...]:
    layers = _size(config, "num_hidden_layers")
    window = config.get("sliding_window", 4096)
    if family.windows == "none" or window is None:
        return (None,) * layers
    window = _size(config, "sliding_window", 4096)
    if family.windows == "all":
        return (window,) * layers
    if not config.get("use_sliding_window", False):
        window = None
    kinds = config.get("layer_types")
    if kinds is None:
        first = int(config.get("max_window_layers", 28))
        kinds = [
            "sliding_attention" if window and layer >= first else "full_attention"
            for layer in range(layers)
        ]
    if len(kinds) != layers or not set(kinds) <= {"sliding_attention", "full_attention"}:
        raise ModelError(
            f"layer_types must name sliding_attention or full_attention for each of {layers} "
            f"layers: {kinds}"
        )
    if "sliding_attention" in kinds and window is None:
        raise ModelError("layer_types has sliding_attention, but use_sliding_window is not set")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
