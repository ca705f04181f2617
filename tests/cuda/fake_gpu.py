"""A GPU that is none, for a process of its own: `cuda.bindings` as it is, on a driver that is not.

The installed package marshals our calls into `fake_libcuda.cpp`, which hands each launch back; the
emulator does it. What torch does on a GPU (memory, streams, events, graphs) is replaced.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from lmprog.runtime.engine.device import cuda_driver, loading
from lmprog.runtime.engine.device.cuda_driver import CudaDriver, why_not
from lmprog.runtime.engine.device.driver import Launch, ModuleKey
from lmprog.runtime.engine.device.emulated_driver import (
    EmulatedDriver,
    KernelFault,
    emulated_kernels,
)
from lmprog.runtime.engine.device.kernels import kernel_shapes

_STREAM = 0x5EED
_Dims = ctypes.POINTER(ctypes.c_uint)
_ON_LAUNCH = ctypes.CFUNCTYPE(
    None, ctypes.c_char_p, _Dims, _Dims, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p
)


class FakeGpuDriver(CudaDriver):
    """Loads and launches as its base does; everything is done at once, in the processor's memory."""

    def __init__(self, key: ModuleKey, library: ctypes.CDLL) -> None:
        super().__init__(0, key)
        self.device = torch.device("cpu")
        self.num_launches = 0
        self._emulator = EmulatedDriver(emulated_kernels(key))
        self._shapes = kernel_shapes(key)
        self._callback = _ON_LAUNCH(self._launched)  # kept: the library calls it
        self._failure: Exception | None = None
        library.fake_cuda_on_launch(self._callback)

    def launch(self, launch: Launch) -> None:
        super().launch(launch)
        if self._failure is not None:
            raise self._failure

    def memory(self, num_bytes: int) -> torch.Tensor:
        return self._emulator.memory(num_bytes)

    def pinned(self, num_bytes: int) -> torch.Tensor:
        return self._emulator.pinned(num_bytes)

    def event(self) -> Any:
        return SimpleNamespace(wait=lambda: None)

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


def _pretend() -> None:
    """torch without CUDA says what torch with it would on a GPU of ours."""
    properties = SimpleNamespace(name="fake", multi_processor_count=3, major=9, minor=0)
    torch.cuda.set_device = lambda _: None
    torch.cuda.get_device_properties = lambda _: properties
    torch.cuda.current_stream = lambda _: SimpleNamespace(cuda_stream=_STREAM)
    torch.cuda.device_count = lambda: 1
    torch.cuda.get_device_capability = lambda _: (9, 0)
    torch.version.cuda = "13.0"
    cuda_driver.compiled = lambda key, architecture: b"cubin " + architecture.encode()


def answers() -> None:
    """Tokens of the engine on the fake GPU, beside the processor's."""
    from tests.cuda.test_emulated_engine import alone, answers, engine_of, rig_for

    wanted = alone()
    opened: list[FakeGpuDriver] = []

    def open_driver(_: str, key: ModuleKey) -> FakeGpuDriver:
        opened.append(FakeGpuDriver(key, LIBRARY))
        return opened[-1]

    loading.open_driver = open_driver
    assert answers(rig_for("emulated"), at_once=10) == wanted
    (driver,) = opened
    assert engine_of("emulated").driver is driver
    print(driver.name, driver.num_launches)


def opens() -> None:
    """Whether the driver can be used, and opens."""
    print(why_not(0))
    CudaDriver(0, ModuleKey("bf16", 128))


if __name__ == "__main__":
    # whoever asks for libcuda.so.1 afterwards gets this one, which has that name
    LIBRARY = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
    _pretend()
    {"answers": answers, "opens": opens}[sys.argv[2]]()
