"""Calls the native kernel that spells characters as bytes; unused if there is no compiler.

Knows the C interface of lmprog_classes.h; how characters are spelled is explained in `lower.py`.
"""

from __future__ import annotations

import ctypes
import functools
from itertools import chain
from typing import Any

import numpy as np

from lmprog import native
from lmprog.constraints.charset import CharSet
from lmprog.constraints.leaves import Leaf

_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


@functools.cache
def _kernel() -> ctypes.CDLL | None:
    found = native.library("masks")
    if found is None:
        return None
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "new": (_POINTER, [_POINTER, _LONG, _INT]),
        "sizes": (None, [_POINTER, _POINTER, _POINTER]),
        "copy": (None, [_POINTER] * 5),
        "free": (None, [_POINTER]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(found, f"lmprog_class_{name}")
        function.restype, function.argtypes = result, arguments
    return found


def native_class_leaf(chars: CharSet, in_json: bool) -> Leaf | None:
    """What `lower.plain_class_leaf` says; None if the kernel cannot be built."""
    kernel = _kernel()
    if kernel is None:
        return None
    ranges = np.fromiter(chain.from_iterable(chars), np.int32, 2 * len(chars))
    handle = kernel.lmprog_class_new(ranges.ctypes.data, len(chars), in_json)
    if not handle:
        raise MemoryError("no memory for a class of characters")
    try:
        states, edges = _LONG(), _LONG()
        kernel.lmprog_class_sizes(handle, ctypes.byref(states), ctypes.byref(edges))
        made = Leaf(
            np.empty((edges.value, 3), np.int32),
            np.empty(states.value, np.int32),
            np.empty(states.value, np.uint8),
            np.empty(states.value, np.int64),
        )
        parts = (made.edges, made.num_edges, made.final, made.cost)
        kernel.lmprog_class_copy(handle, *(part.ctypes.data for part in parts))
        return made
    finally:
        kernel.lmprog_class_free(handle)
