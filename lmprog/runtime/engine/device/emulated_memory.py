"""The emulated device's memory: counted, bounded where a test wants it, and mapped behind reserved
addresses.

Refuses what a driver refuses, and some of what it would let pass: a handle that is mapped twice, or
addresses given up while memory is behind them. Addresses without memory are full of NaN, and
kernels that touch them are stopped. Knows bytes; knows nothing of what is in them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from lmprog.runtime.engine.device.device_memory import DeviceMemoryFull, MemoryInfo

_POISON = 0xFF
"""In every byte: NaN in each of the types."""


class MemoryFault(Exception):
    """Memory was mapped, unmapped or given up as no driver allows."""


class MemoryCount:
    """Bytes in use. `limit` None: there is no bound."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.used = self.most = 0

    def take(self, num_bytes: int) -> None:
        """Raises DeviceMemoryFull."""
        if self.limit is not None and self.used + num_bytes > self.limit:
            raise DeviceMemoryFull(
                f"{num_bytes} bytes were asked for; "
                f"{self.limit - self.used} of the device's {self.limit} are free"
            )
        self.used += num_bytes
        self.most = max(self.most, self.used)

    def give(self, num_bytes: int) -> None:
        self.used -= num_bytes

    @property
    def info(self) -> MemoryInfo | None:
        """As of an allocator that keeps what is given up, which is why `most` counts."""
        return None if self.limit is None else MemoryInfo(self.limit - self.most, self.limit)


@dataclass(slots=True)
class Mapping:
    """Memory behind addresses."""

    handle: int
    num_bytes: int
    is_accessible: bool = False


class EmulatedMemory:
    """See `VirtualMemory`. `allow` and `forget` tell the emulator which addresses kernels may
    touch.
    """

    def __init__(
        self,
        count: MemoryCount,
        allow: Callable[[int, int], None],
        forget: Callable[[int], None],
        granularity: int = 1 << 14,
    ) -> None:
        self.granularity = granularity
        self._count, self._allow, self._forget = count, allow, forget
        self._ranges: dict[int, torch.Tensor] = {}
        self._handles: dict[int, int] = {}
        self._mappings: dict[int, Mapping] = {}
        self.num_created = 0

    @property
    def num_handles(self) -> int:
        """Created and not released."""
        return len(self._handles)

    @property
    def mapped_bytes(self) -> int:
        return sum(one.num_bytes for one in self._mappings.values())

    def reserve(self, num_bytes: int) -> torch.Tensor:
        self._check(num_bytes)
        whole = torch.full((num_bytes + self.granularity,), _POISON, dtype=torch.uint8)
        start = -whole.data_ptr() % self.granularity
        view = whole[start : start + num_bytes]
        self._ranges[view.data_ptr()] = view
        return view

    def create(self, num_bytes: int) -> int:
        self._check(num_bytes)
        self._count.take(num_bytes)
        self.num_created += 1
        self._handles[self.num_created] = num_bytes
        return self.num_created

    def map(self, address: int, num_bytes: int, handle: int) -> None:
        self._check(address, num_bytes)
        self._content(address, num_bytes)
        if self._handles.get(handle) != num_bytes:
            raise MemoryFault(f"handle {handle} has no {num_bytes} bytes")
        for at, one in self._mappings.items():
            if at < address + num_bytes and address < at + one.num_bytes:
                raise MemoryFault(f"address {address:#x} has memory already")
            if one.handle == handle:
                raise MemoryFault(f"handle {handle} is mapped twice")
        self._mappings[address] = Mapping(handle, num_bytes)

    def set_access(self, address: int, num_bytes: int) -> None:
        inside = [at for at in self._mappings if address <= at < address + num_bytes]
        if sum(self._mappings[at].num_bytes for at in inside) != num_bytes:
            raise MemoryFault(f"not all of {num_bytes} bytes at {address:#x} have memory")
        for at in inside:
            self._mappings[at].is_accessible = True
            self._allow(at, self._mappings[at].num_bytes)

    def unmap(self, address: int, num_bytes: int) -> None:
        mapping = self._mappings.get(address)
        if mapping is None or mapping.num_bytes != num_bytes:
            raise MemoryFault(f"{num_bytes} bytes at {address:#x} were not mapped as one")
        del self._mappings[address]
        if mapping.is_accessible:
            self._forget(address)
        with torch.inference_mode():
            self._content(address, num_bytes).fill_(_POISON)
        if mapping.handle not in self._handles:
            self._count.give(num_bytes)

    def release(self, handle: int) -> None:
        if handle not in self._handles:
            raise MemoryFault(f"there is no handle {handle}")
        num_bytes = self._handles.pop(handle)
        if all(one.handle != handle for one in self._mappings.values()):
            self._count.give(num_bytes)

    def free(self, address: int, num_bytes: int) -> None:
        found = self._ranges.get(address)
        if found is None or len(found) != num_bytes:
            raise MemoryFault(f"{num_bytes} bytes at {address:#x} were not reserved as one")
        if any(address <= at < address + num_bytes for at in self._mappings):
            raise MemoryFault(f"addresses from {address:#x} are given up with memory behind them")
        del self._ranges[address]

    def _content(self, address: int, num_bytes: int) -> torch.Tensor:
        for start, own in self._ranges.items():
            if start <= address and address + num_bytes <= start + len(own):
                return own[address - start : address - start + num_bytes]
        raise MemoryFault(f"{num_bytes} bytes at {address:#x} are not reserved")

    def _check(self, *numbers: int) -> None:
        if any(number % self.granularity for number in numbers) or 0 in numbers:
            raise MemoryFault(f"{numbers} are no multiples of {self.granularity} bytes")
