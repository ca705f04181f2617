"""Memory for the keys and values of all pages: how many pages a budget holds, and one allocation
for them.

Knows bytes, alignment and devices. It does not know what a page looks like inside (an attention
backend does), nor which pages are in use (`radix.pages` does).
"""

from __future__ import annotations

import mmap

import torch

from lmprog.errors import InvalidParameter

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register. Every view that `KvPool.take` returns starts
on a multiple.
"""


def pages_that_fit(num_bytes: int, bytes_per_page: int) -> int:
    """How many whole pages a budget holds; refuses one that holds none."""
    if bytes_per_page <= 0:
        raise ValueError(f"bytes_per_page must be positive, got {bytes_per_page}")
    fit = num_bytes // bytes_per_page
    if fit < 1:
        raise InvalidParameter(
            f"{num_bytes} bytes of key/value memory hold no page: one needs {bytes_per_page} bytes. "
            "Give more memory or a smaller page size.",
            name="kv_memory",
            value=num_bytes,
            allowed=f">= {bytes_per_page}",
        )
    return fit


def aligned(num_bytes: int) -> int:
    """`num_bytes` rounded up to the alignment."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


class KvPool:
    """One block of memory on one device, handed out front to back as typed views that keep it
    alive.

    On the CPU the operating system gives pages of memory only when they are first written, and is
    asked for huge ones.
    """

    def __init__(self, num_bytes: int, device: str | torch.device = "cpu") -> None:
        self.num_bytes = num_bytes
        self._taken = 0
        self._memory = _allocate(num_bytes, torch.device(device))

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """The next bytes as a contiguous tensor. Its content is undefined; the caller owns it from
        now on.
        """
        size = dtype.itemsize
        for extent in shape:
            size *= extent
        start, end = self._taken, self._taken + size
        if end > self.num_bytes:
            raise ValueError(f"the pool holds {self.num_bytes} bytes, {end} were asked for")
        self._taken = aligned(end)
        return self._memory[start:end].view(dtype).view(shape)


def _allocate(num_bytes: int, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.empty(num_bytes, dtype=torch.uint8, device=device)
    region = mmap.mmap(-1, max(num_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(
        mmap, "MADV_HUGEPAGE"
    ):  # Linux: fewer address translations for a memory of gigabytes
        region.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(region, dtype=torch.uint8)[:num_bytes]
