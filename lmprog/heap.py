"""What a process keeps of memory that it has freed: bounded, and given back.

glibc has an arena for every few threads, keeps large blocks in these once a few were freed, and
gives back only what lies at their ends. A server's threads read bodies of megabytes, so it would
stay as large as all of these together have been. Where the C library is another one, nothing is
done. Knows the allocator; knows nothing of what is allocated.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import threading
from collections.abc import Callable, Iterator
from functools import cache

from lmprog.linux import resident_bytes

MOST_ARENAS = 2
"""The first thread's, and one for all others: those that allocate much have Python's lock."""
LARGE = 1 << 20
"""Bytes: the system has a block as large back when it is freed."""
LEAST_AT_END = 4 << 20
"""Bytes that may stay free at an arena's end, so that little is taken and given back in turn."""
GROWN = 16 << 20
"""Bytes by which a process is larger than ever since memory was given back, or again."""
LOOKS_EVERY = 1.0
"""Seconds."""
MOST_LOOKS = 64
"""After so many at most it is given back again: some milliseconds of a minute."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_VARIABLES = {
    _M_ARENA_MAX: "MALLOC_ARENA_MAX",
    _M_MMAP_THRESHOLD: "MALLOC_MMAP_THRESHOLD_",
    _M_TRIM_THRESHOLD: "MALLOC_TRIM_THRESHOLD_",
}
"""What an administrator has set stays."""


@cache
def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None)
    names = "gnu_get_libc_version", "mallopt", "malloc_trim"
    return library if all(hasattr(library, name) for name in names) else None


def give_back() -> None:
    """Returns what the C library keeps of freed memory. Other threads of Python run meanwhile."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def collect() -> None:
    """Frees what Python keeps in circles, and gives it back."""
    gc.collect()
    give_back()


class GrowthWatch:
    """Gives memory back when the process has grown by `GROWN`. It may hold all of that still, and
    free it without growing again: so once more after a look, after two, four, and at last after
    each `MOST_LOOKS`.
    """

    def __init__(
        self, resident: Callable[[], int], give_back: Callable[[], None] = give_back
    ) -> None:
        self._resident = resident
        self._give_back = give_back
        self._least = resident()
        """Since it was given back last."""
        self._pause = self._left = MOST_LOOKS
        """Looks between two times, and until the next."""

    def look(self) -> None:
        now = self._resident()
        self._left -= 1
        if has_grown := now - self._least >= GROWN:
            self._pause = 1
        elif self._left:
            self._least = min(now, self._least)
            return
        else:
            self._pause = min(2 * self._pause, MOST_LOOKS)
        self._give_back()
        self._left, now = self._pause, self._resident()
        self._least = now if has_grown else min(now, self._least)


@contextlib.contextmanager
def kept_small(large: int | None = LARGE) -> Iterator[None]:
    """For a process of our own, before it has threads. `large`: None where steps need blocks of
    megabytes again and again, which the system would clear each time: then glibc decides.
    """
    library = _glibc()
    if library is None or not resident_bytes():
        yield
        return
    asked = {_M_ARENA_MAX: MOST_ARENAS}
    if large is not None:
        asked |= {_M_MMAP_THRESHOLD: large, _M_TRIM_THRESHOLD: LEAST_AT_END}
    for option, value in asked.items():
        if _VARIABLES[option] not in os.environ:
            library.mallopt(option, value)
    watch, is_over = GrowthWatch(resident_bytes), threading.Event()

    def watching() -> None:
        while not is_over.wait(LOOKS_EVERY):
            watch.look()

    thread = threading.Thread(target=watching, name="lmprog-heap", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
