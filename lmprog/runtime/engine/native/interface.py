"""The C interfaces of the step engine and of attention alone (`lmprog_engine.h` and
`lmprog_attention.h` in `kernels/include`) as ctypes sees them.

Knows structures and signatures, instruction sets, and what the numbers of types are; knows no model
and no tensors.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_void_p

from lmprog.errors import NotSupported
from lmprog.native import library

PATHS = (
    *("avx512bf16", "avx512vnni", "avx512", "avx2vnni", "avx2"),
    *("neonbf16", "neondot", "neon"),
    "generic",
)
"""Instruction sets, best first. `LMPROG_ENGINE_PATH` and `LMPROG_ATTENTION_PATH` choose one by
hand.
"""


class CAttentionShape(ctypes.Structure):
    _fields_ = (
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("v_head_dim", c_int32),
        ("page_size", c_int32),
        ("kv_type", c_int32),
    )


class CAttentionLayer(ctypes.Structure):
    _fields_ = (
        *(("scale", c_float), ("window", c_int32), ("softcap", c_float)),
        ("sinks", c_void_p),
    )


class CAttentionBatch(ctypes.Structure):
    _fields_ = (
        ("num_rows", c_int32),
        ("num_writes", c_int32),
        ("row_starts", c_void_p),
        ("kv_lens", c_void_p),
        ("page_starts", c_void_p),
        ("pages", c_void_p),
        ("write_tokens", c_void_p),
        ("write_slots", c_void_p),
        ("order", c_void_p),
        ("common", c_void_p),
    )


def declare_attention(found: ctypes.CDLL) -> None:
    """The signatures that every library with pages has."""
    for name in ("key", "value"):
        declare(found, f"lmprog_attention_{name}_bytes", c_int64, POINTER(CAttentionShape), c_int64)
    batch = POINTER(CAttentionBatch)
    declare(found, "lmprog_attention_group", None, batch, c_int32, c_void_p, c_void_p)


def declare(found: ctypes.CDLL, name: str, gives: object, *takes: object) -> None:
    """The signature of one function."""
    function = getattr(found, name)
    function.restype, function.argtypes = gives, takes


# --- the step engine ------------------------------------------------------------------------------

F32, BF16, F16, INT8, INT4 = range(5)
TYPES = {"float32": F32, "bfloat16": BF16, "float16": F16, "int8": INT8, "int4": INT4}
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "clamped": 2, "relu2": 3}
BF16_PATHS = ("avx512bf16", "neonbf16")
"""Instruction sets that multiply pairs of bfloat16 at once; they round inputs to it too."""


class CProduct(ctypes.Structure):
    _fields_ = (("type", c_int32), ("outputs", c_int32), ("inputs", c_int32))


class CSourceRows(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("type", c_int32),
        ("rows", c_int32),
        ("stride", c_int64),
        ("first", c_int32),
        ("step", c_int32),
        ("offset", c_int32),
    )


PRODUCTS = ("qkv", "out", "gate_up", "down")
"""Of every layer; those with a mixture have a router too, some recurrent ones gates."""
VECTORS = (
    *("qkv_bias", "out_bias", "gate_bias", "up_bias", "down_bias"),
    *("attention_norm", "attention_post_norm", "mlp_norm", "mlp_post_norm", "q_norm", "k_norm"),
    "v_norm",
)
STATE_VECTORS = ("conv", "conv_bias", "decay_log", "decay_bias", "skip", "state_norm")
"""Of recurrent layers."""
DENSE_BESIDE = (
    *("dense_gate_up", "dense_down", "router_norm", "experts_norm", "dense_post_norm"),
    *("experts_post_norm", "expert_scales"),
)
"""Of layers that have a feed-forward and a mixture."""
PER_LAYER = ("per_layer_gate", "per_layer_out", "per_layer_post_norm", "scale")
"""Of models with inputs per layer, and scales of layers."""
PREDICTION = ("join", "join_embedding_norm", "join_given_norm", "join_end_norm", "given")
"""Of a layer that predicts further tokens."""


class CLayer(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in PRODUCTS),
        *((name, c_void_p) for name in VECTORS),
        ("attention", CAttentionLayer),
        ("shape", CAttentionShape),
        *(("inner", c_int32), ("reads", c_int32)),
        *(("carried", c_float), ("mlp_carried", c_float)),
        *((name, c_void_p) for name in ("router", "router_bias", "choice_bias", *DENSE_BESIDE)),
        *(("rope", c_int32), ("apart", c_int32)),
        *((name, c_void_p) for name in ("keys", "values", "states", "gates", *STATE_VECTORS)),
        *((name, c_void_p) for name in (*PER_LAYER, *PREDICTION)),
    )


class CRope(ctypes.Structure):
    _fields_ = (("frequencies", c_void_p), ("amplitude", c_float), ("rotary_dim", c_int32))


class CMixture(ctypes.Structure):
    _fields_ = (
        *((name, c_int32) for name in ("experts", "used", "inner", "shared")),
        *((name, c_int32) for name in ("normalized", "shared_gated", "sigmoid")),
        *((name, c_float) for name in ("share_floor", "share_scale")),
    )


RECURRENT_KINDS = {"short_conv": 1, "delta_net": 2, "mamba2": 3, "linear": 4}


class CRecurrent(ctypes.Structure):
    _fields_ = (
        *((name, c_int32) for name in ("kind", "taps", "channels", "heads", "groups", "key_dim")),
        *((name, c_int32) for name in ("value_dim", "num_slots")),
        *((name, c_float) for name in ("norm_eps", "rate_scale", "least_step")),
    )


class CModel(ctypes.Structure):
    _fields_ = (
        *((name, c_int32) for name in ("vocab", "hidden", "num_layers", "num_ropes")),
        *((name, c_int32) for name in ("weight_type", "activation", "qk_norm_wide")),
        *((name, c_int32) for name in ("gated_attention", "rotates_pairs", "norms_rotated")),
        *(("growth", c_float), ("grows_every", c_int32)),
        *((name, c_float) for name in ("activation_slope", "activation_limit")),
        ("mixture", CMixture),
        ("recurrent", CRecurrent),
        *((name, c_float) for name in ("norm_eps", "embedding_scale", "residual_scale")),
        *((name, c_float) for name in ("logit_scale", "logit_softcap")),
        ("layers", POINTER(CLayer)),
        ("ropes", POINTER(CRope)),
        ("head", c_void_p),
        ("embedding", c_void_p),
        ("embedding_type", c_int32),
        ("norm", c_void_p),
        *((name, c_int32) for name in ("per_layer", "per_layer_type")),
        *((f"per_layer_{name}", c_void_p) for name in ("embedding", "projection", "norm")),
    )


class CRaised(ctypes.Structure):
    _fields_ = (
        ("up", c_void_p),
        *((name, c_int32) for name in ("outputs", "rank", "first", "rank_first")),
    )


class CLowRank(ctypes.Structure):
    _fields_ = (
        ("down", c_void_p),
        *((name, c_int32) for name in ("ranks", "inputs", "num_raised")),
        ("raised", POINTER(CRaised)),
    )


class CStep(ctypes.Structure):
    _fields_ = (
        ("rows", CAttentionBatch),
        ("num_tokens", c_int32),
        ("num_logits", c_int32),
        ("num_copies", c_int32),
        ("tokens", c_void_p),
        ("positions", c_void_p),
        ("logit_tokens", c_void_p),
        ("copies", c_void_p),
        *((name, c_void_p) for name in ("adapters", "state_sources", "state_targets", "snapshots")),
        ("num_snapshots", c_int32),
        *(("apart", POINTER(CAttentionBatch)), ("copies_apart", c_void_p)),
    )


def opened() -> ctypes.CDLL:
    """The library with its signatures. Raises NotSupported where it cannot be built."""
    found = library("engine")
    if found is None:
        raise NotSupported("the native engine needs a C++ compiler; the torch engine needs none")
    declare_attention(found)
    product = POINTER(CProduct)
    declare(found, "lmprog_engine_packed_bytes", c_int64, product)
    declare(
        found, "lmprog_engine_pack", None, product, c_void_p, POINTER(CSourceRows), c_int32, c_int32
    )
    declare(found, "lmprog_engine_unpack", None, product, c_void_p, c_int32, c_void_p)
    declare(found, "lmprog_engine_open", c_void_p, POINTER(CModel), c_int32, c_char_p)
    declare(found, "lmprog_engine_path", c_char_p, c_void_p)
    declare(found, "lmprog_engine_best_path", c_char_p)
    declare(found, "lmprog_engine_close", None, c_void_p)
    declare(found, "lmprog_engine_adapters", None, c_void_p, POINTER(CLowRank), c_int32)
    declare(found, "lmprog_engine_state_bytes", c_int64, POINTER(CRecurrent))
    step = (c_void_p, POINTER(CStep))
    declare(found, "lmprog_engine_step", c_int32, *step, c_void_p, c_int64)
    declare(found, "lmprog_engine_predict", c_int32, *step, c_void_p, c_void_p, c_int64)
    declare(found, "lmprog_engine_sample", None, c_void_p, c_void_p)
    multiplied = (c_char_p, product, c_void_p, c_void_p, c_int32, c_void_p, c_int64)
    declare(found, "lmprog_engine_multiply", c_int32, *multiplied)
    return found


def best_path() -> str:
    """The instruction set that this processor computes with."""
    name: bytes = opened().lmprog_engine_best_path()
    return name.decode()
