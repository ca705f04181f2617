"""The driver on a GPU: kernels loaded and launched by `cuda.bindings`, memory and products by
torch.

Steps run on one stream of torch's. This file has not run on hardware yet: tests launch
through the installed bindings into a library that stands for the driver.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from lmprog.runtime.engine.device.cuda_memory import CudaMemory, checked
from lmprog.runtime.engine.device.device_memory import (
    DeviceMemoryFull,
    MemoryInfo,
    VirtualMemory,
)
from lmprog.runtime.engine.device.driver import KernelsKey, Launch
from lmprog.runtime.engine.device.kernels import kernel_shapes
from lmprog.runtime.engine.device.nvrtc import architecture_of, compiled

MEMORY_SHORT = ("out of memory", "OUT_OF_MEMORY", "ALLOC_FAILED")
"""How errors of CUDA's runtime, its driver and its libraries say that memory is short."""
_LEAST_CAPABILITY = (8, 0)
"""Asynchronous copies and bf16 products begin there."""
_LEAST_DRIVER = 12_000


def why_not(number: int) -> str | None:
    """Why GPU `number` cannot be used although there is a driver; None where it can."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    try:
        from cuda.bindings import driver
    except ImportError as error:
        return f"cuda.bindings is not installed ({error}): pip install 'lmprog[cuda]'"
    status, version = driver.cuDriverGetVersion()
    if status != driver.CUresult.CUDA_SUCCESS or version < _LEAST_DRIVER:
        return f"the NVIDIA driver is for CUDA {version // 1000}, at least 12 is needed"
    if number >= torch.cuda.device_count():
        return f"there are {torch.cuda.device_count()} GPUs"
    capability = torch.cuda.get_device_capability(number)
    if capability < _LEAST_CAPABILITY:
        return f"compute capability {capability[0]}.{capability[1]}, at least 8.0 is needed"
    return None


class _CudaEvent:
    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def wait(self) -> None:
        self._event.synchronize()


@dataclass(frozen=True, slots=True)
class _CudaMark:
    event: torch.cuda.Event


class _CudaGraph:
    def __init__(self, graph: torch.cuda.CUDAGraph) -> None:
        self._graph = graph

    def replay(self) -> None:
        self._graph.replay()


class CudaDriver:
    """See `Driver`."""

    def __init__(self, number: int, *keys: KernelsKey) -> None:
        from cuda.bindings import driver

        self.device = torch.device("cuda", number)
        torch.cuda.set_device(self.device)
        properties = torch.cuda.get_device_properties(self.device)
        self.num_processors = int(properties.multi_processor_count)
        self._driver: Any = driver
        self.name = f"{properties.name}, driver {checked(driver, driver.cuDriverGetVersion())}"
        architecture = architecture_of(properties.major, properties.minor)
        self._libraries: list[Any] = []
        self._side: torch.cuda.Stream | None = None
        """For what is begun beside steps; made when it is first wanted."""
        self._kernels: dict[str, Any] = {}
        for key in keys:
            self._load(key, compiled(key, architecture))

    def _load(self, key: KernelsKey, cubin: bytes) -> None:
        driver = self._driver
        library = checked(driver, driver.cuLibraryLoadData(cubin, [], [], 0, [], [], 0))
        self._libraries.append(library)
        most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        for name, shape in kernel_shapes(key).items():
            kernel = checked(driver, driver.cuLibraryGetKernel(library, name.encode()))
            function = checked(driver, driver.cuKernelGetFunction(kernel))
            checked(driver, driver.cuFuncSetAttribute(function, most, shape.shared_bytes))
            self._kernels[name] = function

    def memory(self, num_bytes: int) -> torch.Tensor:
        try:
            return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)
        except torch.OutOfMemoryError as error:
            raise DeviceMemoryFull(str(error)) from error

    def memory_info(self) -> MemoryInfo:
        return MemoryInfo(
            *(int(number) for number in checked(self._driver, self._driver.cuMemGetInfo()))
        )

    def trim(self) -> None:
        torch.cuda.empty_cache()

    def virtual_memory(self) -> VirtualMemory:
        return CudaMemory(self._driver, self.device)

    def pinned(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        with torch.inference_mode():  # memory is made in it, and may be changed in it only
            target.copy_(source, non_blocking=True)

    def launch(self, launch: Launch) -> None:
        args = (ctypes.c_void_p * 1)(ctypes.addressof(launch.args))
        stream = torch.cuda.current_stream(self.device).cuda_stream
        checked(
            self._driver,
            self._driver.cuLaunchKernel(
                self._kernels[launch.kernel],
                *(launch.grid, 1, 1),
                *(launch.threads, 1, 1),
                launch.shared_bytes,
                stream,
                ctypes.addressof(args),
                0,
            ),
        )

    def compute(self, work: Callable[[], object]) -> None:
        try:
            with torch.inference_mode():
                work()
        except torch.OutOfMemoryError as error:
            raise DeviceMemoryFull(str(error)) from error

    def event(self) -> _CudaEvent:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return _CudaEvent(event)

    def is_lost(self, error: Exception) -> bool:
        """After any error of CUDA's but that memory is short. Most are errors of work that was
        begun before, and come again with every call of the context; those of cuBLAS are plain
        RuntimeErrors, told by their text, and so is short memory that torch did not ask for.
        """
        if isinstance(error, (DeviceMemoryFull, torch.OutOfMemoryError)):
            return False
        said = str(error)
        is_short = any(words in said for words in MEMORY_SHORT)
        if not is_short and (isinstance(error, torch.AcceleratorError) or "CUDA" in said):
            return True
        try:
            torch.cuda.synchronize(self.device)
        except RuntimeError:
            return True
        return False

    def aside(self, work: Callable[[], None]) -> _CudaMark:
        if self._side is None:
            self._side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._side):
            work()
        return _CudaMark(self._side.record_event())

    def join(self, mark: _CudaMark) -> None:
        torch.cuda.current_stream(self.device).wait_event(mark.event)

    def capture(self, work: Callable[[], None]) -> _CudaGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return _CudaGraph(graph)
