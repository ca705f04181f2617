"""A GPU that is none, for a process of its own: `cuda.bindings` as it is, on a driver that is not.

The installed package marshals our calls into `fake_libcuda.cpp`, which hands each launch back; the
emulator does it. What torch does on a GPU (memory, streams, events, graphs) is replaced.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from lmprog.errors import NotSupported
from lmprog.runtime.engine.device import cuda_driver, loading
from lmprog.runtime.engine.device.cuda_driver import CudaDriver, CudaMemory, why_not
from lmprog.runtime.engine.device.device_memory import DeviceMemoryFull, VirtualMemory
from lmprog.runtime.engine.device.driver import KernelsKey, Launch, ModuleKey
from lmprog.runtime.engine.device.emulated_driver import (
    EmulatedDriver,
    EmulatedKernels,
    KernelFault,
    emulated_kernels,
)

_STREAM = 0x5EED
_Dims = ctypes.POINTER(ctypes.c_uint)
_ON_LAUNCH = ctypes.CFUNCTYPE(
    None, ctypes.c_char_p, _Dims, _Dims, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p
)


class FakeGpuDriver(CudaDriver):
    """Loads and launches as its base does; everything is done at once, in the processor's memory."""

    def __init__(self, library: ctypes.CDLL, *keys: KernelsKey) -> None:
        super().__init__(0, *keys)
        self.device = torch.device("cpu")
        self.num_launches = 0
        self._emulator = EmulatedDriver(emulated_kernels(*keys))
        self._library = library
        self._callback = _ON_LAUNCH(self._launched)  # kept: the library calls it
        self._failure: Exception | None = None

    def launch(self, launch: Launch) -> None:
        self._library.fake_cuda_on_launch(self._callback)
        super().launch(launch)
        if self._failure is not None:
            raise self._failure

    def memory(self, num_bytes: int) -> torch.Tensor:
        return self._emulator.memory(num_bytes)

    def virtual_memory(self) -> VirtualMemory:
        return WatchedMemory(self._driver, self.device, self._emulator.kernels)

    def pinned(self, num_bytes: int) -> torch.Tensor:
        return self._emulator.pinned(num_bytes)

    def event(self) -> Any:
        return SimpleNamespace(wait=lambda: None)

    def aside(self, work: Callable[[], None]) -> Any:
        work()

    def join(self, mark: Any) -> None:
        """It is done."""

    def capture(self, work: Callable[[], None]) -> Any:
        return SimpleNamespace(replay=work)

    def _launched(
        self, kernel: bytes, blocks: Any, threads: Any, shared_bytes: int, stream: int, args: int
    ) -> None:
        """What arrived at the library. An exception here would be swallowed by ctypes."""
        try:
            assert (blocks[1], blocks[2], threads[1], threads[2]) == (1, 1, 1, 1)
            assert stream == _STREAM
            name = kernel.decode()
            size = self._emulator.kernels.kernels[name].argument_bytes
            given = type(
                "Given", (ctypes.Structure,), {"_fields_": [("bytes", ctypes.c_char * size)]}
            )
            copied = given.from_buffer_copy(ctypes.string_at(args, size))
            launch = Launch(name, blocks[0], threads[0], shared_bytes, copied)
            self.num_launches += 1
            self._emulator.kernels.run(launch, seed=self.num_launches)
        except (AssertionError, KernelFault) as error:
            self._failure = error


class WatchedMemory(CudaMemory):
    """Maps as its base does, and tells the emulator which addresses have memory."""

    def __init__(self, driver: Any, device: torch.device, kernels: EmulatedKernels) -> None:
        super().__init__(driver, device)
        self._kernels = kernels

    def set_access(self, address: int, num_bytes: int) -> None:
        super().set_access(address, num_bytes)
        self._kernels.allow_range(address, num_bytes)

    def unmap(self, address: int, num_bytes: int) -> None:
        self._kernels.forget_range(address)
        super().unmap(address, num_bytes)


def _device_count() -> int:
    refusal = os.environ.get("FAKE_TORCH_REFUSES")
    if refusal:
        raise RuntimeError(refusal)
    return 1


def _pretend() -> None:
    """torch without CUDA says what torch with it would on a GPU of ours."""
    properties = SimpleNamespace(name="fake", multi_processor_count=3, major=9, minor=0)
    torch.cuda.set_device = lambda _: None
    torch.cuda.get_device_properties = lambda _: properties
    torch.cuda.current_stream = lambda _: SimpleNamespace(cuda_stream=_STREAM)
    torch.cuda.device_count = _device_count
    torch.cuda.get_device_capability = lambda _: (9, 0)
    torch.version.cuda = "13.0"
    cuda_driver.compiler_version = lambda: "13.5"
    cuda_driver.compiled = lambda key, architecture: b"cubin " + architecture.encode()


def answers() -> tuple[str, int]:
    """The fake GPU's name and launches, where its tokens are the processor's."""
    from tests.cuda.test_emulated_engine import alone, answers, engine_of, rig_for

    wanted = alone()
    opened: list[FakeGpuDriver] = []

    def open_driver(_: str, *keys: KernelsKey) -> FakeGpuDriver:
        opened.append(FakeGpuDriver(LIBRARY, *keys))
        return opened[-1]

    loading.open_driver = open_driver
    assert answers(rig_for("emulated"), at_once=10) == wanted
    (driver,) = opened
    assert engine_of("emulated").driver is driver
    return driver.name, driver.num_launches


def maps() -> list[int]:
    """Tokens with memory that is mapped when it is needed, and what the driver says is free: before,
    after, and when it was given back.
    """
    from lmprog.runtime.engine.kept_pages import page_release
    from lmprog.runtime.scheduling.scheduler import IdleMemory
    from tests.cuda.test_virtual_pages import alone, answers, virtual_engine, virtual_rig

    loading.open_driver = lambda _, *keys: FakeGpuDriver(LIBRARY, *keys)
    engine = virtual_engine()
    free = [engine.driver.memory_info().free]
    rig = virtual_rig(engine)
    give_back = page_release(engine)
    for _ in range(2):
        assert answers(rig, at_once=10) == alone()
        free.append(engine.driver.memory_info().free)
        idle = IdleMemory(rig.scheduler, give_back, 0.0)
        idle.turn(0.0)
        free.append(engine.driver.memory_info().free)
    return [number >> 20 for number in free]


def verbs() -> list[str]:
    """Every verb; what is done twice is refused, and a full device says so."""
    said = []
    memory = CudaMemory(CudaDriver(0, ModuleKey("bf16", 128))._driver, torch.device("cpu"))
    size = memory.granularity
    addresses = memory.reserve(4 * size)
    base = addresses.data_ptr()
    handles = [memory.create(size) for _ in range(2)]
    memory.map(base + size, size, handles[0])
    memory.set_access(base + size, size)
    addresses[size : 2 * size] = 7
    assert int(addresses[size : 2 * size].sum()) == 7 * size
    refused = [
        lambda: memory.map(base + size, size, handles[1]),
        lambda: memory.set_access(base, size),
        lambda: memory.unmap(base, size),
        lambda: memory.free(base, 4 * size),
        lambda: memory.release(99),
    ]
    for verb in refused:
        try:
            verb()
        except NotSupported as error:
            said.append(str(error))
    memory.unmap(base + size, size)
    for handle in handles:
        memory.release(handle)
    memory.free(base, 4 * size)
    try:
        memory.create(1 << 40)
    except DeviceMemoryFull as error:
        said.append(str(error))
    return said


def unmappable() -> str:
    """What is said of a device without such memory."""
    try:
        CudaMemory(CudaDriver(0, ModuleKey("bf16", 128))._driver, torch.device("cpu"))
    except NotSupported as error:
        return str(error)
    return ""


def tests() -> dict[str, int]:
    """How many tests of these files end how, where LMPROG_TEST_DEVICE names the fake GPU."""
    import pytest

    loading.open_driver = lambda _, *keys: FakeGpuDriver(LIBRARY, *keys)
    ends: dict[str, int] = {}

    class Counting:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.when == "call" or report.skipped:
                ends[report.outcome] = ends.get(report.outcome, 0) + 1

    here = os.path.dirname(__file__)
    files = [os.path.join(here, name) for name in os.environ["FAKE_GPU_TESTS"].split()]
    given = ["-q", "-p", "no:cacheprovider", "-k", os.environ["FAKE_GPU_CHOICE"], *files]
    with contextlib.redirect_stdout(sys.stderr):
        pytest.main(given, plugins=[Counting()])
    return ends


def pins() -> list[int]:
    """Bytes that are registered while memory of the host is in use, and afterwards."""
    driver = CudaDriver(0, ModuleKey("bf16", 128))
    pinned: torch.Tensor | None = driver.pinned((65 << 20) + 16)
    assert pinned is not None
    view = pinned[16:].view(torch.int32)
    view[:4].fill_(3)
    said = [LIBRARY.fake_cuda_registered()]
    del pinned
    said.append(LIBRARY.fake_cuda_registered())
    del view
    return [*said, LIBRARY.fake_cuda_registered()]


def opens() -> tuple[str | None, str | None]:
    """Whether the driver can be used, and what is said where it is opened."""
    reason = why_not(0)
    try:
        CudaDriver(0, ModuleKey("bf16", 128))
    except NotSupported as error:
        return reason, str(error)
    return reason, None


def all_of(cases: list[tuple[str, dict[str, str]]]) -> Iterator[Any]:
    """What each case gives with its environment, or how it failed."""
    looks = {one.__name__: one for one in (opens, answers, maps, verbs, unmappable, pins, tests)}
    for name, environment in cases:
        os.environ.update(environment)
        try:
            yield looks[name]()
        except Exception:  # noqa: BLE001 - the test says which
            yield traceback.format_exc()
        for variable in environment:
            del os.environ[variable]


if __name__ == "__main__":
    # whoever asks for libcuda.so.1 afterwards gets this one, which has that name
    LIBRARY = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
    _pretend()
    print(json.dumps(list(all_of(json.loads(sys.argv[2])))))
