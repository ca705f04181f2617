"""What this machine has: cores for threads, memory that is free, torch; and memory from the
operating system, handed out front to back on aligned addresses.

Knows the operating system and what is installed, and how many pages of keys and values a budget
holds. The system's own pages are given only when they are first written, and huge ones are asked
for.
"""

from __future__ import annotations

import importlib.util
import mmap
import os

import numpy as np
from numpy.typing import NDArray

from lmprog import linux
from lmprog.errors import InvalidParameter, ModelError, NotSupported

_GIB = 1 << 30
TORCH_INSTALL = "pip install 'lmprog[torch]'"


def has_torch() -> bool:
    """Nothing is imported for that."""
    return importlib.util.find_spec("torch") is not None


def require_torch(what: str) -> None:
    """Raises NotSupported where torch, which `what` needs, is not installed."""
    if not has_torch():
        raise NotSupported(f"{what} needs torch, which is not installed: {TORCH_INSTALL}")


def default_threads() -> int:
    """OMP_NUM_THREADS, else the physical cores that this process may use, and no more than its
    container has the time of.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    cores = {linux.core_of(one) for one in linux.allowed_processors()}
    return min(max(1, len(cores)), linux.processors())


def free_memory() -> int:
    """Bytes that can be taken without swapping, and within the limit of a container; 4 GiB where
    the system does not say.
    """
    free, left = linux.memory_available() or 4 * _GIB, linux.memory_left()
    return free if left is None else min(left, free)


ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register. Everything that `Region.take` returns starts
on a multiple.
"""

Bytes = NDArray[np.uint8]


def pages_that_fit(num_bytes: int, bytes_per_page: int) -> int:
    """How many whole pages a budget holds; refuses one that holds none."""
    if bytes_per_page <= 0:
        raise ValueError(f"bytes_per_page must be positive, got {bytes_per_page}")
    fit = num_bytes // bytes_per_page
    if fit < 1:
        raise InvalidParameter(
            f"{num_bytes} bytes of key/value memory hold no page: one needs {bytes_per_page} "
            "bytes. "
            "Give more memory or a smaller page size.",
            name="kv_memory",
            value=num_bytes,
            allowed=f">= {bytes_per_page}",
        )
    return fit


def aligned(num_bytes: int) -> int:
    """`num_bytes` rounded up to the alignment."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def allocate(num_bytes: int) -> mmap.mmap:
    """Zeros, until they are written. Raises ModelError where the system does not give them."""
    try:
        region = mmap.mmap(-1, max(num_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise ModelError(
            f"the system does not give {num_bytes:,} bytes of memory at once ({error}); "
            f"{free_memory():,} are free: give a smaller kv_memory_mb, or smaller weights"
        ) from error
    linux.use_huge_pages(region)
    return region


class Region:
    """One block, cut up by `take`; what is taken keeps the whole alive.

    Zeros, or a file's `memory`, which may be read-only.
    """

    def __init__(self, num_bytes: int, memory: mmap.mmap | None = None) -> None:
        self.num_bytes = num_bytes
        self._taken = 0
        whole = allocate(num_bytes) if memory is None else memory
        self._whole = whole
        self._memory: Bytes = np.frombuffer(whole, np.uint8)[:num_bytes]

    def take(self, num_bytes: int) -> Bytes:
        """The next bytes; the caller owns them from now on."""
        start, end = self._taken, self._taken + num_bytes
        if end > self.num_bytes:
            raise ValueError(f"the region holds {self.num_bytes} bytes, {end} were asked for")
        self._taken = aligned(end)
        return self._memory[start:end]

    def populate(self, part: Bytes, start: int, end: int) -> bool:
        """Has the system give the memory of bytes `start .. end` of `part`, which was taken from
        here, as a write would; what they hold stays. Other threads run meanwhile. False where it
        cannot.
        """
        begin = part.ctypes.data - self._memory.ctypes.data
        first = (begin + start) // mmap.PAGESIZE * mmap.PAGESIZE
        last = -(-(begin + end) // mmap.PAGESIZE) * mmap.PAGESIZE
        return linux.populate_pages(self._memory.ctypes.data + first, last - first)

    def give_back(self, part: Bytes, start: int, end: int) -> None:
        """Returns the system's pages inside bytes `start .. end` of `part`, which was taken from
        here, to the system. They are zeros from now on.
        """
        begin = part.ctypes.data - self._memory.ctypes.data
        first = -(-(begin + start) // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (begin + end) // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            linux.give_back_pages(self._whole, first, last - first)
