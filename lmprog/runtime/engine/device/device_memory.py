"""The memory of a device as the engine asks for it: allocated as a whole, or addresses to which
memory is mapped as it is needed.

Knows verbs only; a driver's file implements them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


class DeviceMemoryFull(Exception):
    """The device has less free memory than is asked for."""


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Bytes of a device's memory."""

    free: int
    total: int


class VirtualMemory(Protocol):
    """Addresses that stay, and memory that comes and goes behind them. Sizes and addresses are
    multiples of `granularity`. The verbs act at once, not in the order of the device's work: what
    is unmapped must not be in use.
    """

    @property
    def granularity(self) -> int:
        """Bytes; 2 MiB on GPUs of today."""
        ...

    def reserve(self, num_bytes: int) -> torch.Tensor:
        """Addresses without memory; nobody may touch them yet. # [num_bytes] uint8"""
        ...

    def create(self, num_bytes: int) -> int:
        """Memory without an address; its handle. Raises DeviceMemoryFull."""
        ...

    def map(self, address: int, num_bytes: int, handle: int) -> None:
        """Puts all of the handle's memory behind reserved addresses. Its content is undefined."""
        ...

    def set_access(self, address: int, num_bytes: int) -> None:
        """The device may read and write these addresses, which are all mapped."""
        ...

    def unmap(self, address: int, num_bytes: int) -> None:
        """What one `map` has put there; nobody may touch the addresses any more."""
        ...

    def release(self, handle: int) -> None:
        """Its memory is free again once it is mapped nowhere."""
        ...

    def free(self, address: int, num_bytes: int) -> None:
        """Gives up what one `reserve` has given, with nothing mapped there."""
        ...


class DeviceMemory(Protocol):
    """Where tensors of a device live, and the way between them and the host."""

    @property
    def device(self) -> torch.device: ...

    def memory(self, num_bytes: int) -> torch.Tensor:
        """Memory that kernels may touch, as bytes, aligned to 256; undefined content. Raises
        DeviceMemoryFull. # [num_bytes] uint8
        """
        ...

    def pinned(self, num_bytes: int) -> torch.Tensor:
        """Host memory that copies to and from the device can use. # [num_bytes] uint8"""
        ...

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None: ...

    def memory_info(self) -> MemoryInfo | None:
        """What is free now, and was all the time since `trim`: what is given up here stays with
        this process until then. None: the device's memory has no bound of its own.
        """
        ...

    def trim(self) -> None:
        """Gives back to the device what was given up here."""
        ...

    def virtual_memory(self) -> VirtualMemory:
        """Raises NotSupported where the device has none."""
        ...
