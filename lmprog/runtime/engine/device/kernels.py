"""Our kernels as Python calls them: their argument structs, and how many threads and how much
shared memory they take.

The structs mirror kernels/cuda/args.cuh; the figures mirror the constants of the kernels' files.
Tests compare both with what the compiled kernels say. Tensors are passed by address: whoever
launches keeps them alive.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_void_p
from dataclasses import dataclass
from enum import IntEnum

import torch

from lmprog.runtime.engine.device.driver import (
    Driver,
    KernelsKey,
    Launch,
    ModuleKey,
    ProductKey,
)


class Count(IntEnum):
    """Places in the array of counts; see `enum Count`."""

    TOKENS = 0
    WRITES = 1
    SMALL_ITEMS = 2
    LARGE_ITEMS = 3
    COPIES = 4
    PICKS = 5
    SCORES = 6
    LOGITS = 7


NUM_COUNTS = 8


def _struct(name: str, pointers: str, numbers: str, floats: str = "") -> type[ctypes.Structure]:
    """A struct of pointers, then 32-bit numbers in the order of `numbers`; those named in `floats`
    are floats.
    """
    is_float = set(floats.split())
    fields: list[tuple[str, type]] = [(field, c_void_p) for field in pointers.split()]
    fields += [(field, c_float if field in is_float else c_int32) for field in numbers.split()]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


TreeArgs = _struct(
    "TreeArgs",
    "q kv out partials sums items counts pages queries positions part_starts first_parts",
    "count_at page_shift heads kv_heads window scale softcap value_scale",
    floats="scale softcap value_scale",
)
MergeArgs = _struct("MergeArgs", "partials sums out counts part_starts sinks", "heads unused")
RopeArgs = _struct(
    "RopeArgs",
    "qkv q kv norm rotations positions write_tokens write_slots counts",
    "heads kv_heads page_shift eps key_factor value_factor",
    floats="eps key_factor value_factor",
)
NormArgs = _struct(
    "NormArgs", "x added weight out counts", "hidden count_at eps factor", floats="eps factor"
)
SiluArgs = _struct("SiluArgs", "gate_up out counts", "inner count_at is_gelu unused")
ProductArgs = _struct(
    "ProductArgs",
    "x weights scales bias out counts",
    "inputs outputs row_bytes groups group count_at",
)
UnpackArgs = _struct(
    "UnpackArgs", "weights scales out", "inputs outputs row_bytes groups group first"
)
SampleArgs = _struct(
    "SampleArgs",
    "logits masks mask_of row_of cell_starts cell_tokens cell_changes cell_repeat cell_kept "
    "temperature least top_k top_p point chosen counts",
    "vocab mask_words width_bits unused",
)
ScoreArgs = _struct("ScoreArgs", "logits row_of target_starts targets found counts", "vocab unused")
CopyArgs = _struct(
    "CopyArgs",
    "pool staging slots rows counts",
    "layers pages kv_heads page_shift bytes is_gather first_layer all_layers",
)


@dataclass(frozen=True, slots=True)
class KernelShape:
    """Threads of a block, its dynamic shared memory, and how many blocks of it a multiprocessor
    should hold.
    """

    threads: int
    shared_bytes: int
    per_processor: int


WEIGHT_KINDS = ("int8", "int4", "fp8")


def kernel_shapes(key: KernelsKey) -> dict[str, KernelShape]:
    """Every kernel of a compilation."""
    if isinstance(key, ProductKey):
        return _product_shapes(key)
    assert isinstance(key, ModuleKey)
    dim = key.head_dim
    shapes = {
        "tree_merge": KernelShape(128, 0, 8),
        "rope_append": KernelShape(128, 0, 8),
        "norm_add": KernelShape(256, 32, 4),
        "silu_mul": KernelShape(256, 0, 4),
        "mask_sample": KernelShape(512, 4 * 2048 + 256 + 128 + 32, 2),
        "score_rows": KernelShape(256, 64, 4),
        "kv_copy": KernelShape(256, 0, 4),
    }
    if key.is_exact:
        row, columns = (dim + 4) * 4, 32
        shared = (16 + 2 * columns) * row + 16 * (columns + 1) * 4
        return {"tree_attention_small": KernelShape(128, shared, 2), **shapes}
    columns = 32 if dim > 128 else 64
    is_bytes = key.kept_name == "e4m3"
    stages = 4 if is_bytes or dim == 64 else 3 if dim <= 128 else 2
    ring = stages * 2 * columns * _pitch(dim * (1 if is_bytes else 2))
    queries = 64 * _pitch(dim * 2) if dim > (64 if is_bytes else 128) else 0
    groups = columns // 16
    return {
        "tree_attention_small": KernelShape(
            groups * 32, ring + 16 * columns * 2 + 2 * groups * 64, 2
        ),
        "tree_attention_large": KernelShape(128, ring + queries, 2),
        **shapes,
    }


def _pitch(num_bytes: int) -> int:
    """From one row of so many bytes to the next in shared memory; see `struct Pitch`."""
    pieces = num_bytes // 16
    return 16 * (pieces if pieces & (pieces - 1) == 0 else pieces | 1)


def _product_shapes(key: ProductKey) -> dict[str, KernelShape]:
    is_exact = key.type_name == "float"
    shapes: dict[str, KernelShape] = {}
    for kind in WEIGHT_KINDS:
        shapes[f"product_{kind}_few"] = KernelShape(256, 0 if is_exact else 8 * 16 * 20 * 4, 2)
        if not is_exact:
            shapes[f"product_{kind}_many"] = KernelShape(256, 8 * 32 * 20 * 4, 1)
        shapes[f"unpack_{kind}"] = KernelShape(256, 0, 4)
    return shapes


def address(tensor: torch.Tensor | None) -> int:
    """Null for none."""
    return 0 if tensor is None else tensor.data_ptr()


class Kernels:
    """Launches the kernels of a model by name: those of one module, and its products if it has
    weights of 8 or 4 bits.
    """

    def __init__(self, driver: Driver, key: ModuleKey, products: ProductKey | None = None) -> None:
        self.driver = driver
        self.key = key
        self.shapes = kernel_shapes(key)
        if products is not None:
            self.shapes |= kernel_shapes(products)

    def launch(self, name: str, args: ctypes.Structure, most_blocks: int | None = None) -> None:
        """`most_blocks`: how many have work at most; None: as many as the device holds."""
        shape = self.shapes[name]
        grid = self.driver.num_processors * shape.per_processor
        if most_blocks is not None:
            grid = max(1, min(grid, most_blocks))
        self.driver.launch(Launch(name, grid, shape.threads, shape.shared_bytes, args))
