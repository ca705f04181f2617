"""Pages of the native engine's keys and values as bytes, for a second tier.

Slots are laid out in blocks of 16 (`lmprog_attention.h`), so a page is one stretch of bytes in each
layer's keys and in its values where the page size is a multiple of 16. Knows arrays only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lmprog.runtime.engine.machine.region import Region

BLOCK_SLOTS = 16


class NativePageMemory:
    """`parts` of `region`: all pages, one array for each layer's keys and one for its values."""

    def __init__(self, region: Region, parts: Sequence[NDArray[np.uint8]], num_pages: int) -> None:
        self._region = region
        self._parts = [part.reshape(num_pages, -1) for part in parts]
        ends = np.cumsum([part.shape[1] for part in self._parts]).tolist()
        self._places = [
            slice(end - part.shape[1], end) for end, part in zip(ends, self._parts, strict=True)
        ]
        self.page_bytes = int(ends[-1])

    def read(self, page: int, into: bytearray) -> None:
        """Copies the page."""
        contents = np.frombuffer(into, np.uint8)
        for place, part in zip(self._places, self._parts, strict=True):
            contents[place] = part[page]

    def write(self, page: int, contents: bytes | bytearray) -> None:
        """Nothing may read the page meanwhile."""
        given = np.frombuffer(contents, np.uint8)
        for place, part in zip(self._places, self._parts, strict=True):
            part[page] = given[place]

    def populate(self, first: int, last: int) -> bool:
        """Has the system give the memory of pages `first .. last`, layer by layer; False where it
        cannot.
        """
        widths = [part.shape[1] for part in self._parts]
        return all(
            self._region.populate(part, first * width, last * width)
            for part, width in zip(self._parts, widths, strict=True)
        )

    def give_back(self, pages: Sequence[int]) -> None:
        """Returns the memory of these pages, in ascending order, to the system."""
        for first, last in _runs(pages):
            for part in self._parts:
                width = part.shape[1]
                self._region.give_back(part, first * width, last * width)


def _runs(pages: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges (first, end) of consecutive numbers."""
    numbers = np.asarray(pages, np.int64)
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(numbers, breaks) if len(run)]
