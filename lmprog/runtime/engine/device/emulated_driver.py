"""The driver without a device: the CUDA sources as a host library, run by the emulator in
`kernels/cuda/emu.h`, and its memory: counted, bounded where a test wants it, and mapped behind
reserved addresses.

Work is queued and done only when an event is waited for, and then by turns all of it, or up to that
event; what is begun aside mostly only when it is joined. So a host that changes what a pending copy
reads, reads what a pending kernel writes, or does not join, gets wrong results here as it would on
a device. Fresh memory, pinned too, is full of NaN, and so are addresses without memory, at which
kernels are stopped. After a kernel's fault every call fails, as in the context of a GPU. What a
driver refuses is refused, within a capture too, and some of what it would let pass: a handle that
is mapped twice, or addresses given up while memory is behind them. Every launch runs its blocks and
warps in another order, drawn from a seed. For tests: it is thousands of times slower than a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import subprocess
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lmprog.errors import NotSupported
from lmprog.native import cache_folder, compiler, kernels_folder
from lmprog.runtime.engine.device.device_memory import DeviceMemoryFull, MemoryInfo
from lmprog.runtime.engine.device.driver import KernelsKey, Launch

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


# --- the driver -----------------------------------------------------------------------------------

_FLAGS = ("-std=c++17", "-fPIC", "-shared", "-fvisibility=hidden", "-Wno-unknown-pragmas")
_ALIGNMENT = 256
_EARLY = 3
"""Every third work that is begun aside is done at once, the others when they are joined."""


class KernelFault(Exception):
    """A kernel did what it must not: the emulator's account of it."""


class CaptureRefused(Exception):
    """What cannot be part of a graph was begun while one was captured."""


@dataclass(frozen=True, slots=True)
class KernelNeeds:
    """What a kernel was compiled to be launched with."""

    index: int
    argument_bytes: int
    threads: int
    shared_bytes: int


class _Library:
    """The opened library of one compilation."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self._launch = library.lmprog_emulator_launch
        self._launch.restype = ctypes.c_char_p
        number = ctypes.c_int
        self._launch.argtypes = (
            number,
            ctypes.c_void_p,
            number,
            number,
            ctypes.c_uint,
            ctypes.c_uint64,
        )
        self._allow, self._forget = library.lmprog_emulator_allow, library.lmprog_emulator_forget
        self._allow.argtypes, self._allow.restype = (ctypes.c_void_p, ctypes.c_size_t), None
        self._forget.argtypes, self._forget.restype = (ctypes.c_void_p,), None
        self._loads = library.lmprog_emulator_loads
        self._loads.argtypes, self._loads.restype = (), ctypes.c_uint64
        self.kernels: dict[str, KernelNeeds] = {}
        name, args, threads, shared = (
            ctypes.c_char_p(),
            ctypes.c_int(),
            ctypes.c_int(),
            ctypes.c_uint(),
        )
        out = ctypes.byref
        while library.lmprog_emulator_kernel(
            len(self.kernels), out(name), out(args), out(threads), out(shared)
        ):
            needs = KernelNeeds(len(self.kernels), args.value, threads.value, shared.value)
            self.kernels[(name.value or b"").decode()] = needs

    def allow_range(self, address: int, num_bytes: int) -> None:
        """Kernels may touch these addresses until they are forgotten."""
        self._allow(address, num_bytes)

    def forget_range(self, address: int) -> None:
        """The one that begins there."""
        self._forget(address)

    def run(self, launch: Launch, seed: int) -> None:
        """Raises KernelFault."""
        needs = self.kernels[launch.kernel]
        if ctypes.sizeof(launch.args) != needs.argument_bytes:
            raise KernelFault(
                f"{launch.kernel} takes {needs.argument_bytes} bytes of arguments, "
                f"not {ctypes.sizeof(launch.args)}"
            )
        args = ctypes.byref(launch.args)
        said = self._launch(
            needs.index, args, launch.grid, launch.threads, launch.shared_bytes, seed
        )
        if said is not None:
            raise KernelFault(f"{launch.kernel}: {said.decode()}")

    @property
    def bytes_read(self) -> int:
        """Of global memory, by the last launch."""
        return int(self._loads())


class EmulatedKernels:
    """The kernels of several compilations, by their names."""

    def __init__(self, *paths: Path) -> None:
        self._libraries = [_Library(path) for path in paths]
        self._last = self._libraries[0]

    @property
    def kernels(self) -> dict[str, KernelNeeds]:
        return {name: needs for one in self._libraries for name, needs in one.kernels.items()}

    def allow(self, memory: torch.Tensor) -> None:
        """Kernels may touch `memory` for as long as it lives."""
        self.allow_range(memory.data_ptr(), memory.nbytes)
        weakref.finalize(memory.untyped_storage(), self.forget_range, memory.data_ptr())

    def allow_range(self, address: int, num_bytes: int) -> None:
        """Kernels may touch these addresses until they are forgotten."""
        for one in self._libraries:
            one.allow_range(address, num_bytes)

    def forget_range(self, address: int) -> None:
        """The one that begins there."""
        for one in self._libraries:
            one.forget_range(address)

    def run(self, launch: Launch, seed: int) -> None:
        """Raises KernelFault."""
        self._last = next(one for one in self._libraries if launch.kernel in one.kernels)
        self._last.run(launch, seed)

    @property
    def bytes_read(self) -> int:
        """Of global memory, by the last launch."""
        return self._last.bytes_read


class _EmulatedEvent:
    def __init__(self, driver: EmulatedDriver, upto: int) -> None:
        self._driver, self._upto = driver, upto

    def wait(self) -> None:
        self._driver.run_upto(self._upto)


class _EmulatedMark:
    """Work beside other work: done once, whoever comes to it first."""

    def __init__(self, work: list[Callable[[], None]]) -> None:
        self._work = work

    def finish(self) -> None:
        work, self._work = self._work, []
        for one in work:
            one()


class _Unread:
    """Work of a graph, in which the host reads nothing of what the device computes: looked at when
    it is done for the first time.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        self._work, self._is_seen = work, False

    def __call__(self) -> None:
        with contextlib.nullcontext() if self._is_seen else _RefusedReads():  # type: ignore[no-untyped-call]
            self._work()
        self._is_seen = True


class _RefusedReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        is_mask = func is _ATEN.index.Tensor and any(
            one is not None and one.dtype == torch.bool for one in args[1]
        )
        if is_mask or func.overloadpacket in _READ_BY_HOST:
            raise CaptureRefused(f"{func} reads what is computed while a graph is captured")
        with self:  # inference does not take apart what is made of others
            found = func.decompose(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if found is NotImplemented else found


_ATEN = torch.ops.aten
_READ_BY_HOST = frozenset(
    [_ATEN.nonzero, _ATEN._local_scalar_dense, _ATEN.masked_select, _ATEN._unique2, _ATEN.equal]
)
"""Whose results' sizes, or values, the host must know."""


class _EmulatedGraph:
    """A list of launches and products."""

    def __init__(self, driver: EmulatedDriver, work: list[Callable[[], None]]) -> None:
        self._driver, self.work = driver, work

    def replay(self) -> None:
        for one in self.work:
            self._driver.enqueue(one)


class EmulatedDriver:
    """See `Driver`. `seed` decides in which orders blocks and warps run, `limit` how many bytes the
    device has; None: there is no bound.
    """

    def __init__(self, kernels: EmulatedKernels, seed: int = 0, limit: int | None = None) -> None:
        self.kernels = kernels
        self.device = torch.device("cpu")
        self.num_processors = 3
        self.num_launches = 0
        self._seed = seed
        self._queue: list[Callable[[], None]] = []
        self._done = self._num_waits = self._num_asides = 0
        self._captured: list[Callable[[], None]] | None = None
        self._is_graph = False
        self._fault: KernelFault | None = None
        self.count = MemoryCount(limit)
        """Of the device's memory; what torch takes within `compute` is not in it."""
        self.mapped = EmulatedMemory(self.count, kernels.allow_range, kernels.forget_range)

    def memory(self, num_bytes: int) -> torch.Tensor:
        self._refuse_in_graph("memory is asked for")
        self.count.take(num_bytes)
        whole = torch.full((num_bytes + _ALIGNMENT,), 0xFF, dtype=torch.uint8)
        start = -whole.data_ptr() % _ALIGNMENT
        view = whole[start : start + num_bytes]
        self.kernels.allow(view)
        weakref.finalize(view.untyped_storage(), self.count.give, num_bytes)
        return view

    def memory_info(self) -> MemoryInfo | None:
        return self.count.info

    def trim(self) -> None:
        self.count.most = self.count.used

    def virtual_memory(self) -> EmulatedMemory:
        return self.mapped

    def pinned(self, num_bytes: int) -> torch.Tensor:
        self._refuse_in_graph("pinned memory is asked for")
        memory = torch.full((num_bytes,), _POISON, dtype=torch.uint8)
        self.kernels.allow(memory)
        return memory

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._refuse_in_graph("a copy from or to the host is begun")
        self.enqueue(lambda: target.copy_(source))

    def launch(self, launch: Launch) -> None:
        self.enqueue(lambda: self._run(launch))

    def compute(self, work: Callable[[], object]) -> None:
        self.enqueue(_Unread(work) if self._is_graph else work)

    def event(self) -> _EmulatedEvent:
        self._refuse_in_graph("an event is recorded")
        return _EmulatedEvent(self, self._done + len(self._queue))

    def is_lost(self, error: Exception) -> bool:
        return self._fault is not None

    def aside(self, work: Callable[[], None]) -> _EmulatedMark:
        mark = _EmulatedMark(self._recorded(work))
        self._num_asides += 1
        if self._num_asides % _EARLY == 0:
            self.enqueue(mark.finish)
        return mark

    def join(self, mark: _EmulatedMark) -> None:
        self._refuse_in_graph("an event of other work is waited for")
        self.enqueue(mark.finish)

    def capture(self, work: Callable[[], None]) -> _EmulatedGraph:
        """Refuses what no capture allows."""
        work()
        self._is_graph = True
        try:
            return _EmulatedGraph(self, self._recorded(work))
        finally:
            self._is_graph = False

    def _refuse_in_graph(self, what: str) -> None:
        if self._is_graph:
            raise CaptureRefused(f"{what} while a graph is captured")

    def _recorded(self, work: Callable[[], None]) -> list[Callable[[], None]]:
        assert self._captured is None, "nothing is begun aside in a graph, nor a graph in another"
        self._captured = []
        try:
            work()
            return self._captured
        finally:
            self._captured = None

    def enqueue(self, work: Callable[[], object]) -> None:
        self._check()
        (self._queue if self._captured is None else self._captured).append(
            lambda: (work(), None)[1]
        )

    def run_upto(self, number: int) -> None:
        """Does what is queued, up to that many pieces of work since the beginning; every other time
        all of it, as a device that is fast.
        """
        self._check()
        self._num_waits += 1
        if self._num_waits % 2:
            number = self._done + len(self._queue)
        with torch.inference_mode():
            while self._done < number:
                work = self._queue.pop(0)
                self._done += 1
                try:
                    work()
                except BaseException:  # as on a device, nothing after a fault is worth anything
                    self._done += len(self._queue)
                    self._queue.clear()
                    raise

    def _run(self, launch: Launch) -> None:
        self.num_launches += 1
        try:
            self.kernels.run(launch, self._seed + self.num_launches)
        except KernelFault as fault:
            self._fault = fault
            raise

    def _check(self) -> None:
        """Raises KernelFault where there has been one."""
        if self._fault is not None:
            raise KernelFault("an earlier kernel has failed") from self._fault


def emulated_kernels(
    *keys: KernelsKey, sources: Path | None = None, optimize: str = "-O2"
) -> EmulatedKernels:
    """The kernels of `keys` from `sources` (None: those of lmprog), compiled where they have not
    been before.
    """
    folder = sources or kernels_folder() / "cuda"
    return EmulatedKernels(*(_build(key, folder, optimize) for key in keys))


def _build(key: KernelsKey, sources: Path, optimize: str) -> Path:
    cxx = compiler()
    if cxx is None:
        raise NotSupported("the emulated device needs a C++ compiler, and none is found")
    digest = hashlib.sha256(f"{_version(cxx)}|{_FLAGS}|{optimize}|{key}".encode())
    for path in sorted(sources.iterdir()):
        digest.update(path.read_bytes())
    target = cache_folder() / "native" / f"emulated-{key.name}-{digest.hexdigest()[:20]}.so"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        built = Path(scratch) / "library.so"
        command = [
            cxx,
            optimize,
            *_FLAGS,
            *key.defines,
            str(sources / "emulated.cpp"),
            "-o",
            str(built),
        ]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise NotSupported(
                f"the emulated kernels cannot be compiled by {cxx}:\n{result.stderr}"
            )
        os.replace(built, target)
    return target


@cache
def _version(cxx: str) -> str:
    return subprocess.run([cxx, "--version"], capture_output=True, text=True, check=True).stdout
