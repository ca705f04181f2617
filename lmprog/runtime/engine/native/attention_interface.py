"""What the C interfaces of the step engine and of attention alone share (`lmprog_attention.h` in
`kernels/include`), as ctypes sees it.

Knows structures, the signatures that both libraries have, and instruction sets; knows no tensors.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_float, c_int32, c_int64, c_void_p

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
