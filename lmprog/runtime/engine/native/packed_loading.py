"""A model's packed weights: mapped from the file that an earlier start left, or packed now and left
for the next.

The file's name hashes all that its bytes depend on: what is in the checkpoint's files, the model's
shape, the type, and how this build of the kernels packs. Small models are packed each time.
"""

from __future__ import annotations

import hashlib
from ctypes import byref
from pathlib import Path

import numpy as np

from lmprog.runtime.engine.machine.region import Region
from lmprog.runtime.engine.model import weight_table
from lmprog.runtime.engine.model.checkpoint_digests import weight_digests
from lmprog.runtime.engine.model.quantization import read_quantization
from lmprog.runtime.engine.model.shape import ModelShape, read_config
from lmprog.runtime.engine.model.stored_weights import RandomSource, stored_weights
from lmprog.runtime.engine.native import interface
from lmprog.runtime.engine.native.packing import Packed, PackedLayout, Source, packed_layout
from lmprog.weight_cache import user_cache

_SMALLEST_KEPT = 64 << 20
"""Bytes. Packing less takes a fifth of a second at most."""


def packed_checkpoint(
    folder: Path, shape: ModelShape, weight_type: str, threads: int, keep: bool = True
) -> Packed:
    """The weights of `folder`, left for the next start where `keep`. Raises ModelError where they
    do not fit `shape`.
    """
    checkpoint = stored_weights(folder, shape)
    checkpoint.check(weight_table.expected(shape), shape.tied_head)
    layout = packed_layout(shape, checkpoint, weight_type)
    files = user_cache()
    if layout.num_bytes < _SMALLEST_KEPT or not files.limit:
        return _packed_now(layout, checkpoint, threads)
    name = _name(layout, folder)
    memory = files.mapped(name, layout.num_bytes)
    if memory is None:
        label = f"{folder.name or folder}, {weight_type}"
        draft = files.draft(name, layout.num_bytes, label) if keep else None
        if draft is None:
            return _packed_now(layout, checkpoint, threads)
        try:
            region = Region(layout.num_bytes, draft.memory)
            layout.fill(layout.placed(region), checkpoint, threads)
            memory = draft.keep()
        except BaseException:
            draft.discard()
            raise
    return layout.placed(Region(layout.num_bytes, memory))


def packed_random(shape: ModelShape, seed: int, weight_type: str, threads: int) -> Packed:
    """Random weights, which no file keeps."""
    source = RandomSource(weight_table.expected(shape), seed)
    return _packed_now(packed_layout(shape, source, weight_type), source, threads)


def _packed_now(layout: PackedLayout, source: Source, threads: int) -> Packed:
    packed = layout.placed(Region(layout.num_bytes))
    layout.fill(packed, source, threads)
    return packed


def _name(layout: PackedLayout, location: Path) -> str:
    parts = (
        *(repr(layout.shape), layout.weight_type, layout.embedding_type.str),
        repr(read_quantization(read_config(location))),
        *(_packing_digest(layout.weight_type), *weight_digests(location)),
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:40]


def _packing_digest(weight_type: str) -> str:
    """How this build packs, shown on a small matrix: another layout or rounding gives another."""
    outputs, inputs = 40, 104
    numbers = np.sin(np.arange(outputs * inputs, dtype=np.float64) ** 2).astype(np.float32)
    numbers[: inputs * 8] = np.rint(numbers[: inputs * 8] * 6)  # few enough for every type
    product = interface.CProduct(interface.TYPES[weight_type], outputs, inputs)
    library = interface.opened()
    place = np.zeros(int(library.lmprog_engine_packed_bytes(byref(product))), np.uint8)
    rows = interface.CSourceRows(numbers.ctypes.data, interface.F32, outputs, inputs, 0, 1, 0)
    library.lmprog_engine_pack(byref(product), place.ctypes.data, byref(rows), 0, outputs)
    return hashlib.sha256(place.tobytes()).hexdigest()
