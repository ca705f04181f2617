"""Memory of the native engine's pages: as bytes, for a second tier; given back; and made ready
before a step writes to it.

Slots are laid out in blocks of 16 (`lmprog_attention.h`), so a page is one stretch of bytes in each
layer's keys and in its values where the page size is a multiple of 16. The first write to each huge
page of the system's takes milliseconds, and running streams would wait for it in the middle of a
step. Pages are allocated from the lowest on, those that were freed first (`radix.pages`), so what
comes next lies behind the highest page ever written: its memory is asked for in a thread, while
steps go on where it will be needed soon, and more of it in the pauses between them. Knows arrays
and numbers of pages; what is in them stays as it is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

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


# --- memory ahead of steps ------------------------------------------------------------------------

TOKENS_AHEAD = 1024
"""So much memory is asked for ahead of steps, at most."""
TOKENS_AT_REST = 4096
"""So much in a pause, at most, and no more than an eighth of all."""
_TOKENS_AT_ONCE = 256
"""In a pause. A step that comes meanwhile competes with no more than that."""
_PAUSE_SECONDS = 0.1


class MemoryAhead:
    """`populate(first, last)` has the memory of these pages given; False: the system cannot, and is
    not asked again. One thread calls the methods.

    A pause begins `pause_seconds` after a step. There is none before the first step, so that a
    short program takes no more memory than it needs, and none between `restart` and the next step.
    """

    def __init__(
        self,
        populate: Callable[[int, int], bool],
        num_pages: int,
        page_size: int,
        pause_seconds: float = _PAUSE_SECONDS,
    ) -> None:
        self._populate = populate
        self._num_pages = num_pages
        self._num_ahead = max(1, TOKENS_AHEAD // page_size)
        self._num_at_rest = min(TOKENS_AT_REST // page_size, num_pages // 8)
        self._num_at_once = max(1, _TOKENS_AT_ONCE // page_size)
        self._pause_seconds = pause_seconds
        self._state = threading.Condition()
        self._highest = -1  # page that a step has written to
        self._given = 0  # pages below were asked for
        self._wanted = 0  # pages below are to be asked for at once
        self._is_asking = self._is_closed = False
        self._is_possible = True
        self._is_in_step = False
        self._step_ended = 0.0
        self._thread: threading.Thread | None = None

    def reach(self, page: int) -> None:
        """A step begins that writes to pages up to this one. Asks for more memory once half of what
        was asked for ahead is written to.
        """
        self._is_in_step = True
        needed = min(page + 1 + self._num_ahead // 2, self._num_pages)
        is_short = needed > max(self._given, self._wanted)
        if not is_short and page <= self._highest:
            return
        with self._state:
            waits_for_more = self._given >= self._goal
            self._highest = max(page, self._highest)
            if is_short:
                self._wanted = min(page + 1 + self._num_ahead, self._num_pages)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kv-memory", daemon=True)
                self._thread.start()
            if is_short or waits_for_more:
                self._state.notify_all()

    def step_ended(self) -> None:
        """A pause begins some time from now, unless another step does."""
        self._is_in_step, self._step_ended = False, time.monotonic()

    def restart(self) -> None:
        """Memory of pages is about to be given back: nothing counts as given. Returns when nothing
        is being given any more.
        """
        with self._state:
            self._state.wait_for(self._is_quiet)
            self._given = self._wanted = 0
            self._highest = -1

    def close(self) -> None:
        """Ends the thread."""
        with self._state:
            self._is_closed = True
            self._state.notify_all()
        # Garbage collection runs in any thread, also in this one.
        if self._thread not in (None, threading.current_thread()):
            self._thread.join()

    @property
    def _goal(self) -> int:
        """Pages below are to be asked for in a pause."""
        if self._highest < 0:
            return 0
        return min(self._highest + 1 + self._num_at_rest, self._num_pages)

    def _is_quiet(self) -> bool:
        return not self._is_possible or (not self._is_asking and self._given >= self._wanted)

    def _run(self) -> None:
        while (stretch := self._next()) is not None:
            is_possible = False  # also where it raises: nobody waits for a thread that ended
            try:
                is_possible = self._populate(*stretch)
            finally:
                with self._state:
                    self._is_asking, self._is_possible = False, is_possible
                    self._state.notify_all()

    def _next(self) -> tuple[int, int] | None:
        """Waits until pages are to be asked for; None: never again."""
        with self._state:
            while self._is_possible and not self._is_closed:
                first, goal = self._given, self._goal
                if first < self._wanted:
                    self._given = self._wanted
                elif first >= goal:
                    self._state.wait()
                    continue
                elif (left := self._until_pause()) > 0:
                    self._state.wait(left)
                    continue
                else:
                    self._given = min(first + self._num_at_once, goal)
                self._is_asking = True
                return first, self._given
        return None

    def _until_pause(self) -> float:
        """Seconds that must pass at least; 0 or less: it is one."""
        if self._is_in_step:
            return _PAUSE_SECONDS
        return self._step_ended + self._pause_seconds - time.monotonic()
