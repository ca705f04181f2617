"""The native core that constraints are built on: one library, opened once, with its signatures.

A wheel brings it; in a checkout it is compiled at first use. Without it there are no constraints,
and whoever asks for one is told so. What the functions mean stands in `kernels/include`; the
structures that they take belong to the modules that call them.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable
from typing import Any

from lmprog import native
from lmprog.errors import NotSupported

POINTER, LONG, INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_TEXT, _STATE = ctypes.c_char_p, ctypes.c_uint32

_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    # lmprog_leaves.h
    "class_new": (POINTER, [POINTER, LONG, INT]),
    "magnitudes_new": (POINTER, [POINTER, POINTER]),
    "leaf_sizes": (None, [POINTER, POINTER, POINTER]),
    "leaf_copy": (None, [POINTER] * 5),
    "leaf_free": (None, [POINTER]),
    # lmprog_nets.h
    "cover_new": (POINTER, [_TEXT, _TEXT, LONG]),
    "cover_free": (None, [POINTER]),
    "net_begin": (POINTER, [POINTER, INT, POINTER, POINTER, POINTER, _TEXT]),
    "net_step": (LONG, [POINTER, LONG, POINTER]),
    "net_copy": (None, [POINTER, POINTER]),
    "net_free": (None, [POINTER]),
    # lmprog_masks.h
    "automaton_new": (POINTER, [POINTER, POINTER]),
    "automaton_free": (None, [POINTER]),
    "automaton_start": (LONG, [POINTER]),
    "automaton_run": (LONG, [POINTER, _STATE, _TEXT, LONG]),
    "automaton_row": (LONG, [POINTER, _STATE, POINTER]),
    "automaton_forced": (LONG, [POINTER, _STATE, POINTER, LONG]),
    "automaton_doubts": (LONG, [POINTER, _STATE, _TEXT, LONG, POINTER]),
    "doubts_copy": (None, [POINTER]),
    "automaton_follow": (LONG, [POINTER, POINTER, _TEXT, POINTER, LONG, LONG]),
    "automaton_cost": (LONG, [POINTER, _STATE]),
    "automaton_final": (INT, [POINTER, _STATE]),
    "automaton_stands_at": (INT, [POINTER, _STATE, INT]),
    "automaton_states": (LONG, [POINTER]),
    "automaton_positions": (LONG, [POINTER, _STATE]),
    "automaton_bytes": (LONG, [POINTER]),
    "automaton_collect": (LONG, [POINTER, POINTER, LONG, LONG, POINTER]),
    "mask": (LONG, [POINTER, _STATE, LONG, POINTER, LONG, LONG, INT, POINTER]),
    "mask_bits": (None, [POINTER]),
    "mask_is": (INT, [POINTER]),
    "string_tokens_new": (POINTER, [POINTER, POINTER]),
    "string_tokens_free": (None, [POINTER]),
    # lmprog_texts.h
    "texts_new": (POINTER, [POINTER]),
    "texts_step": (LONG, [POINTER, LONG, POINTER]),
    "texts_copy": (None, [POINTER, POINTER]),
    "texts_free": (None, [POINTER]),
    "matcher_new": (POINTER, [_TEXT, LONG]),
    "matcher_takes": (LONG, [POINTER, _TEXT, LONG, LONG]),
    "matcher_free": (None, [POINTER]),
    "search_begin": (LONG, [POINTER, _TEXT, LONG, INT, INT]),
    # lmprog_schemas.h
    "schemas_style_new": (POINTER, [_TEXT, LONG, _TEXT, _TEXT]),
    "schemas_new": (POINTER, [_TEXT, LONG, POINTER]),
    "schemas_free": (None, [POINTER]),
    "schemas_find": (LONG, [POINTER, _TEXT, LONG]),
    "schemas_plan": (LONG, [POINTER, LONG, POINTER]),
    "schemas_answer": (None, [POINTER, LONG, INT]),
    "schemas_build": (LONG, [POINTER, LONG, INT, INT, POINTER]),
}
"""By the name behind `lmprog_`: the result and the arguments."""


@functools.cache
def kernel() -> ctypes.CDLL:
    """Raises NotSupported where there is none."""
    found = native.library("masks")
    if found is None:
        raise NotSupported(
            "constraints need the native library, which this installation does not bring and could "
            "not compile: install a C++ compiler (g++, or another one named by CXX), or a wheel of "
            "lmprog for this platform; LMPROG_NATIVE=0 switches it off"
        )
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(found, f"lmprog_{name}")
        function.restype, function.argtypes = result, arguments
    return found


def or_memory(made: int | None) -> int:
    """What the library made; raises MemoryError where it could not."""
    if not made:
        raise MemoryError("no memory for a constraint")
    return made


def free_with(owner: object, free: Callable[[int], object], made: int) -> None:
    """Frees what the library made once `owner` is gone, but not at the end of the process, where
    threads may still use it.
    """
    weakref.finalize(owner, free, made).atexit = False
