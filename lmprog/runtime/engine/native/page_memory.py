"""The native engine's pages and recurrent states as bytes: for a second tier, given back to the
system, and taken from it ahead.

Slots of keys and values are laid out in blocks of 16 (`lmprog_attention.h`), so a page is one
stretch of bytes in each layer's keys and in its values where the page size is a multiple of 16. A
state is one stretch in each recurrent layer. Knows memory; knows no batch and no tree.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_left
from collections.abc import Sequence
from ctypes import byref
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from lmprog.runtime.engine.machine.resources import Region
from lmprog.runtime.engine.model.resolution import StateSlots
from lmprog.runtime.engine.model.shape import ModelShape
from lmprog.runtime.engine.model.weight_table import up32
from lmprog.runtime.engine.native import interface
from lmprog.runtime.engine.native.interface import CAttentionShape

Arrays: TypeAlias = "Sequence[NDArray[np.uint8]]"
"""One for each layer, or for its keys and for its values: [pages or slots, bytes]."""


class SlotMemory:
    """Slots of recurrent states, or of frames: `layers` of `region`, one array for each layer, or
    for its keys and for its values.

    A state as bytes is the layers' parts of its slot one after the other, cut into `num_parts`
    parts of `part_bytes`; the last one may not be full.
    """

    def __init__(self, region: Region, layers: Arrays, num_slots: int, part_bytes: int) -> None:
        """The arrays have so many slots."""
        self._region = region
        self._layers = [layer.reshape(num_slots, -1) for layer in layers]
        self.num_parts = state_parts(sum(layer.shape[1] for layer in self._layers), part_bytes)
        self._stretches: list[list[tuple[int, slice, slice]]] = [[] for _ in range(self.num_parts)]
        """Of each part: a layer, where in its slot, where in the part."""
        place = 0
        for number, layer in enumerate(self._layers):
            done, width = 0, layer.shape[1]
            while done < width:
                part, at = divmod(place, part_bytes)
                count = min(width - done, part_bytes - at)
                inside = slice(done, done + count), slice(at, at + count)
                self._stretches[part].append((number, *inside))
                done, place = done + count, place + count

    def read(self, number: int, into: bytearray) -> None:
        """Copies part `number` of all slots' parts."""
        slot, part = divmod(number, self.num_parts)
        contents = np.frombuffer(into, np.uint8)
        for layer, inside, place in self._stretches[part]:
            contents[place] = self._layers[layer][slot, inside]

    def write(self, number: int, contents: bytes | bytearray) -> None:
        slot, part = divmod(number, self.num_parts)
        given = np.frombuffer(contents, np.uint8)
        for layer, inside, place in self._stretches[part]:
            self._layers[layer][slot, inside] = given[place]

    def populate(self, first: int, last: int) -> bool:
        """Has the system give the memory of slots `first .. last`; False where it cannot."""
        return _populate(self._region, self._layers, first, last)

    def give_back(self, slots: Sequence[int]) -> None:
        """Returns the memory of these slots, in ascending order, to the system."""
        _give_back(self._region, self._layers, slots)


def _populate(region: Region, arrays: Arrays, first: int, last: int) -> bool:
    """Of elements `first .. last` of each array."""
    widths = [array.shape[1] for array in arrays]
    return all(
        region.populate(array, first * width, last * width)
        for array, width in zip(arrays, widths, strict=True)
    )


def _give_back(region: Region, arrays: Arrays, numbers: Sequence[int]) -> None:
    """Of these elements of each array, in ascending order."""
    for first, last in _runs(numbers):
        for array in arrays:
            width = array.shape[1]
            region.give_back(array, first * width, last * width)


def state_parts(state_bytes: int, page_bytes: int) -> int:
    """Parts of the size of a page that a state is kept in."""
    return -(-state_bytes // page_bytes)


class NativePageMemory:
    """`parts` of `region`: all pages, one array for each layer's keys and one for its values.

    The numbers behind those of pages are the parts of recurrent states, or of frames, slot after
    slot.
    """

    def __init__(self, region: Region, parts: Arrays, num_pages: int) -> None:
        self._region = region
        self._num_pages = num_pages
        self.slots: SlotMemory | None = None
        """Of states, or of frames, whose parts are numbered behind the pages."""
        self._parts = [part.reshape(num_pages, -1) for part in parts]
        ends = np.cumsum([part.shape[1] for part in self._parts]).tolist()
        self._places = [
            slice(end - part.shape[1], end) for end, part in zip(ends, self._parts, strict=True)
        ]
        self.page_bytes = int(ends[-1]) if ends else 0

    def read(self, page: int, into: bytearray) -> None:
        """Copies the page."""
        if page >= self._num_pages:
            assert self.slots is not None, "there is nothing behind the pages"
            self.slots.read(page - self._num_pages, into)
            return
        contents = np.frombuffer(into, np.uint8)
        for place, part in zip(self._places, self._parts, strict=True):
            contents[place] = part[page]

    def write(self, page: int, contents: bytes | bytearray) -> None:
        """Nothing may read the page meanwhile."""
        if page >= self._num_pages:
            assert self.slots is not None, "there is nothing behind the pages"
            self.slots.write(page - self._num_pages, contents)
            return
        given = np.frombuffer(contents, np.uint8)
        for place, part in zip(self._places, self._parts, strict=True):
            part[page] = given[place]

    def populate(self, first: int, last: int) -> bool:
        """Has the system give the memory of pages `first .. last`, layer by layer; False where it
        cannot.
        """
        return _populate(self._region, self._parts, first, last)

    def give_back(self, pages: Sequence[int]) -> None:
        """Returns the memory of these pages, in ascending order, to the system; of the parts of a
        slot all or none are among them.
        """
        behind = bisect_left(pages, self._num_pages)
        if self.slots is not None:
            each = self.slots.num_parts
            slots = {(page - self._num_pages) // each for page in pages[behind:]}
            self.slots.give_back(sorted(slots))
        _give_back(self._region, self._parts, pages[:behind])


def _runs(pages: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges (first, end) of consecutive numbers."""
    numbers = np.asarray(pages, np.int64)
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(numbers, breaks) if len(run)]


# --- how large they are, known before an engine is made


def layers_apart(shape: ModelShape) -> list[int]:
    """Layers whose keys and values are of no use behind a window: only layers with windows read
    them.
    """
    readers: dict[int, list[int]] = {layer: [layer] for layer in shape.keeping}
    for layer in range(shape.num_layers):
        if (source := shape.source_of(layer)) is not None:
            readers[source].append(layer)
    return [
        layer
        for layer, all_readers in readers.items()
        if all(shape.windows[reader] is not None for reader in all_readers)
    ]


def page_bytes(
    shape: ModelShape, kv_dtype: str, page_size: int, layers: Sequence[int] | None = None
) -> int:
    """Memory of one page over these layers, of all where None are said; known before an engine is
    made.
    """
    attention = c_attention(shape, kv_dtype, page_size)
    pages = 16  # whole blocks of slots for every page size
    sizes = (
        int(size(byref(attention[layer]), pages * page_size))
        for layer in (shape.keeping if layers is None else layers)
        for size in kv_sizes(interface.opened())
    )
    return sum(sizes) // pages


def state_bytes(shape: ModelShape) -> int:
    """Of all recurrent layers, for one sequence; and what a predictor goes on from."""
    each = interface.opened().lmprog_engine_state_bytes(byref(c_recurrent(shape)))
    return int(each) * shape.num_recurrent + shape.predicts * given_bytes(shape)


def given_bytes(shape: ModelShape) -> int:
    """What a layer that predicts further tokens goes on from, in a slot of states."""
    return 4 * up32(shape.hidden)


def c_recurrent(shape: ModelShape, slots: StateSlots | None = None) -> interface.CRecurrent:
    recurrent = shape.recurrent
    if recurrent is None:
        return interface.CRecurrent()
    named = (
        *("taps", "channels", "heads", "groups", "key_dim", "value_dim"),
        *("rate_scale", "least_step"),
    )
    return interface.CRecurrent(
        kind=interface.RECURRENT_KINDS[recurrent.kind],
        num_slots=0 if slots is None else slots.num_slots,
        norm_eps=recurrent.norm_eps or shape.norm_eps,
        **{name: getattr(recurrent, name) for name in named},
    )


def c_mixture(shape: ModelShape) -> interface.CMixture:
    """Without experts where no layer has a mixture."""
    mixture = shape.mixture
    if mixture is None:
        return interface.CMixture()
    sizes = mixture.experts, mixture.used, mixture.inner, mixture.shared_parts
    named = ("normalized", "sigmoid", "share_floor", "share_scale")
    return interface.CMixture(
        *sizes,
        shared_gated=mixture.is_shared_gated,
        **{name: getattr(mixture, name) for name in named},
    )


def kv_sizes(library: ctypes.CDLL) -> tuple[ctypes._CFuncPtr, ctypes._CFuncPtr]:  # type: ignore[name-defined]
    return library.lmprog_attention_key_bytes, library.lmprog_attention_value_bytes


def c_attention(shape: ModelShape, kv_dtype: str, page_size: int) -> list[CAttentionShape]:
    """Of each layer."""
    return [
        CAttentionShape(
            num_heads=heads.num_heads,
            num_kv_heads=heads.num_kv_heads,
            head_dim=heads.head_dim,
            v_head_dim=heads.head_dim,
            page_size=page_size,
            kv_type=interface.TYPES[kv_dtype],
        )
        for heads in map(shape.heads_of, range(shape.num_layers))
    ]
