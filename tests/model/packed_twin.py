"""What packed products compute, in plain numpy: the twin of `kernels/cpu/product_kernel.h`."""

from __future__ import annotations

import ctypes
from ctypes import byref

import numpy as np
from numpy.typing import NDArray

from lmprog.runtime.engine.machine.resources import Bytes, Region
from lmprog.runtime.engine.model.weight_table import up32
from lmprog.runtime.engine.native import interface
from lmprog.runtime.engine.native.packing import narrowed, widened

Floats = NDArray[np.float32]
TYPES = ("float32", "bfloat16", "int8", "int4")


def pack(weight: Floats, kind: str) -> tuple[interface.CProduct, Bytes]:
    outputs, inputs = weight.shape
    product = interface.CProduct(interface.TYPES[kind], outputs, inputs)
    library = interface.opened()
    size = int(library.lmprog_engine_packed_bytes(byref(product)))
    place = Region(size).take(size)
    rows = interface.CSourceRows(weight.ctypes.data, interface.F32, outputs, inputs, 0, 1, 0)
    library.lmprog_engine_pack(byref(product), place.ctypes.data, byref(rows), 0, outputs)
    return product, place


def unpack(product: interface.CProduct, packed: Bytes) -> Floats:
    found = np.empty((product.outputs, product.inputs), np.float32)
    for output in range(product.outputs):
        interface.opened().lmprog_engine_unpack(
            byref(product), packed.ctypes.data, output, ctypes.c_void_p(found[output].ctypes.data)
        )
    return found


def multiply(path: str, product: interface.CProduct, packed: Bytes, x: Floats) -> Floats | None:
    """x @ weight.T by the kernels of `path`; None where this processor lacks it."""
    filled = np.zeros((len(x), up32(product.inputs)), np.float32)
    filled[:, : product.inputs] = x
    out = np.full((len(x), up32(product.outputs)), np.nan, np.float32)
    lacks = interface.opened().lmprog_engine_multiply(
        *(path.encode(), byref(product), packed.ctypes.data, filled.ctypes.data),
        *(len(x), out.ctypes.data, out.shape[1]),
    )
    return None if lacks else out[:, : product.outputs]


def rounded_weight(weight: Floats, kind: str) -> Floats:
    """The weight as `kind` keeps it."""
    if kind == "bfloat16":
        return widened(narrowed(weight))
    if kind == "int8":
        scale = np.abs(weight).max(1, keepdims=True) / np.float32(127)
        return np.rint(weight / scale).astype(np.float32) * scale
    if kind == "int4":
        groups = _grouped(weight)
        top = np.take_along_axis(groups, np.abs(groups).argmax(2)[..., None], 2)
        scale = top / np.float32(-8)
        whole = np.clip(np.rint(groups / scale), -8, 7).astype(np.float32)
        return (whole * scale).reshape(len(weight), -1)[:, : weight.shape[1]]
    return weight


def rounded_input(x: Floats, kind: str, path: str) -> Floats:
    """The inputs as the path rounds them."""
    if kind == "bfloat16" and path in interface.BF16_PATHS:
        return widened(narrowed(x))
    if kind in ("int8", "int4"):
        scale = np.abs(x).max(1, keepdims=True) / np.float32(127)
        return np.rint(x * (np.float32(127) / np.abs(x).max(1, keepdims=True))) * scale
    return x


def _grouped(weight: Floats) -> Floats:
    filled = np.zeros((len(weight), up32(weight.shape[1])), np.float32)
    filled[:, : weight.shape[1]] = weight
    return filled.reshape(len(weight), -1, 32)
