"""Memory for the keys and values of all pages, as tensors on one device.

Knows bytes, alignment and devices. It does not know what a page looks like inside (an attention
backend does), nor which pages are in use (`radix.PageAllocator` does).
"""

from __future__ import annotations

import torch

from lmprog.runtime.engine.machine.region import aligned, allocate


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
    return torch.frombuffer(allocate(num_bytes), dtype=torch.uint8)[:num_bytes]
