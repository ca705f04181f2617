"""The way of a step's small arrays to the device: packed into one pinned buffer, sent by one copy.

Addresses are fixed by a layout, so that a graph that was captured with a layout serves every step
of that layout. Knows arrays and bytes, not what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from lmprog.runtime.engine.device.driver import DeviceEvent, Driver

_ALIGNMENT = 256
Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class StagingLayout:
    """Room in bytes for each array, in the order in which they lie. Equal rooms, equal layouts."""

    rooms: tuple[tuple[str, int], ...]
    offsets: dict[str, int] = field(init=False, compare=False)
    num_bytes: int = field(init=False, compare=False)
    room_of: dict[str, int] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        offsets, at = {}, 0
        for name, room in self.rooms:
            offsets[name] = at
            at += -(-max(room, 1) // _ALIGNMENT) * _ALIGNMENT
        object.__setattr__(self, "offsets", offsets)
        object.__setattr__(self, "num_bytes", at)
        object.__setattr__(self, "room_of", dict(self.rooms))

    @staticmethod
    def exact(arrays: Arrays) -> StagingLayout:
        """Room for what there is."""
        return _layout(tuple([(name, array.nbytes) for name, array in arrays.items()]))

    @staticmethod
    def rounded(arrays: Arrays) -> StagingLayout:
        """Room for what there is and up to twice as much, so that few layouts serve many steps; for
        what is computed by rows of these arrays a quarter more at most, beyond 64 of them.
        """
        rooms = [(name, _room(array.nbytes, name in _ROWS)) for name, array in arrays.items()]
        return _layout(tuple(rooms))


_ROWS = frozenset(("tokens", "logit_tokens"))
_FEW_BYTES = 64 * 4


def _room(num_bytes: int, is_fine: bool) -> int:
    whole = 1 << (max(num_bytes, 32) - 1).bit_length()
    if not is_fine or whole <= _FEW_BYTES:
        return whole
    step = whole // 8
    return -(-num_bytes // step) * step


@lru_cache(256)
def _layout(rooms: tuple[tuple[str, int], ...]) -> StagingLayout:
    return StagingLayout(rooms)


class Staging:
    """One pinned buffer and its counterpart on the device; both grow. Growing moves them: `moves`
    counts how often.
    """

    def __init__(self, driver: Driver, num_bytes: int) -> None:
        self._driver = driver
        self.moves = -1
        self._sent: DeviceEvent | None = None
        self._allocate(num_bytes)

    def send(self, arrays: Arrays, layout: StagingLayout | None = None) -> dict[str, int]:
        """Copies `arrays` to the device; their addresses there, valid until the next call. None:
        packed as they are.
        """
        layout = layout or StagingLayout.exact(arrays)
        if self._sent is not None:
            self._sent.wait()  # the buffer may still be read
        if layout.num_bytes > len(self._pinned):
            self._driver.event().wait()  # what was begun may read the old one
            self._allocate(2 * layout.num_bytes)
        host, rooms, offsets = self._host, layout.room_of, layout.offsets
        for name, array in arrays.items():
            at, size = offsets[name], array.nbytes
            if size < rooms[name]:
                host[at + size : at + rooms[name]] = 0  # what a graph computes beyond the step
            if size:
                own = np.ascontiguousarray(array).reshape(-1)
                host[at : at + size] = own.view(np.uint8)
        self._driver.copy(self._there[: layout.num_bytes], self._pinned[: layout.num_bytes])
        self._sent = self._driver.event()
        base = self._there.data_ptr()
        return {name: base + offset for name, offset in layout.offsets.items()}

    def read(self, address: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """The array at an address that `send` gave, as torch sees it on the device."""
        at = address - self._there.data_ptr()
        return self._there[at : at + count * dtype.itemsize].view(dtype)

    def _allocate(self, num_bytes: int) -> None:
        self.moves += 1
        self._pinned = self._driver.pinned(num_bytes)
        self._host = self._pinned.numpy()
        self._there = self._driver.memory(num_bytes)
