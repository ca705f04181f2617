"""The driver on a GPU: kernels compiled by NVRTC, loaded and launched by `cuda.bindings`, memory
and products by torch.

Steps run on one stream of torch's. No nvcc and no CUDA headers are needed on the user's machine:
cubins are kept in the cache folder under a hash of sources, options and compiler, so that the
second start compiles nothing. Memory mapped behind reserved addresses is a tensor by way of DLPack,
which asks nothing of the memory behind them. This file has not run on hardware yet: tests call
through the installed bindings into a library that stands for the driver.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
import weakref
from collections.abc import Callable
from ctypes import c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from lmprog.errors import NotSupported
from lmprog.native import cache_folder, kernels_folder
from lmprog.runtime.engine.device.device_memory import (
    DeviceMemoryFull,
    MemoryInfo,
    VirtualMemory,
)
from lmprog.runtime.engine.device.driver import KernelsKey, Launch
from lmprog.runtime.engine.device.kernels import kernel_shapes

MEMORY_SHORT = ("out of memory", "OUT_OF_MEMORY", "ALLOC_FAILED")
"""How errors of CUDA's runtime, its driver and its libraries say that memory is short."""
_PORTABLE = 1
"""CU_MEMHOSTREGISTER_PORTABLE: pinned for every context."""
_LEAST_CAPABILITY = (8, 0)
"""Asynchronous copies and bf16 products begin there."""
_LEAST_DRIVER = 12
_REGISTERED_BYTES = 1 << 26
"""Pinned memory of torch's has a power of two of bytes: from here on memory of ours is registered,
so that what is asked for is what is taken.
"""


def why_not(number: int) -> str | None:
    """Why GPU `number` cannot be used although there is a driver; None where it can."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    try:
        from cuda.bindings import driver
    except ImportError as error:
        return f"cuda.bindings is not installed ({error}): pip install 'lmprog[cuda]'"
    status, version = driver.cuDriverGetVersion()
    least = max(_LEAST_DRIVER, int(torch.version.cuda.partition(".")[0]))
    if status != driver.CUresult.CUDA_SUCCESS or version < 1000 * least:
        return (
            f"the NVIDIA driver is for CUDA {version // 1000}, at least {least} is needed "
            f"(torch {torch.__version__} is built for CUDA {torch.version.cuda})"
        )
    try:
        if number >= torch.cuda.device_count():
            return f"there are {torch.cuda.device_count()} GPUs"
        capability = torch.cuda.get_device_capability(number)
    except RuntimeError as error:  # torch's first call of the driver: whatever it does not like
        return f"torch cannot use it: {str(error).partition(chr(10))[0]}"
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
        architecture = architecture_of(properties.major, properties.minor)
        version = checked(driver, driver.cuDriverGetVersion())
        self.name = (
            f"{properties.name} (sm_{architecture}), driver {version}, NVRTC {compiler_version()}"
        )
        """Of the device, its driver, and what compiles for it."""
        self._libraries: list[Any] = []
        self._side: torch.cuda.Stream | None = None
        """For what is begun beside steps; made when it is first wanted, as the next one is."""
        self._capturing: torch.cuda.Stream | None = None
        self._graph_memory: Any = None
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
        if num_bytes < _REGISTERED_BYTES:
            return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
        own = np.empty(num_bytes, np.uint8)
        driver, address = self._driver, own.ctypes.data
        checked(driver, driver.cuMemHostRegister(address, num_bytes, _PORTABLE))
        memory = torch.from_numpy(own)

        def give_up(_: object) -> None:  # with `own`, which so outlives its registration
            driver.cuMemHostUnregister(address)

        weakref.finalize(memory.untyped_storage(), give_up, own).atexit = False
        return memory

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
        """Graphs share the memory that torch takes within them: they are replayed one at a time,
        and nothing in it outlives `compute`.
        """
        here = torch.cuda.current_stream(self.device)
        if self._capturing is None:
            self._capturing = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            self._graph_memory = torch.cuda.graph_pool_handle()
        self._capturing.wait_stream(here)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._capturing):
            work()
            self._capturing.synchronize()
            graph.capture_begin(self._graph_memory, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        return _CudaGraph(graph)


# --- memory behind reserved addresses -------------------------------------------------------------

_CAPSULE = b"dltensor"
_DEVICE_TYPES = {"cpu": 1, "cuda": 2}
"""DLPack's numbers."""
_UNSIGNED = 1


def checked(driver: Any, result: tuple[Any, ...]) -> Any:
    """What a call of the bindings gave besides its status."""
    status, *rest = result
    if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        raise DeviceMemoryFull("the device has no memory left")
    if status != driver.CUresult.CUDA_SUCCESS:
        raise NotSupported(f"the CUDA driver failed: {status.name}")
    return rest[0] if len(rest) == 1 else rest


class CudaMemory:
    """See `VirtualMemory`. `driver`: the module of the bindings."""

    def __init__(self, driver: Any, device: torch.device) -> None:
        self._driver, self._device = driver, device
        number = device.index or 0
        has_it = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        if not self._call("cuDeviceGetAttribute", has_it, number):
            raise NotSupported(
                f"kv_pool = 'virtual' needs virtual memory management, which {device} does not "
                "have; leave out kv_pool"
            )
        here = driver.CUmemLocation()
        here.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        here.id = number
        self._kind = driver.CUmemAllocationProp()
        self._kind.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._kind.location = here
        self._access = driver.CUmemAccessDesc()
        self._access.location = here
        self._access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        least = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.granularity = int(self._call("cuMemGetAllocationGranularity", self._kind, least))

    def reserve(self, num_bytes: int) -> torch.Tensor:
        address = int(self._call("cuMemAddressReserve", num_bytes, 0, 0, 0))
        return tensor_at(address, num_bytes, self._device)

    def create(self, num_bytes: int) -> int:
        return int(self._call("cuMemCreate", num_bytes, self._kind, 0))

    def map(self, address: int, num_bytes: int, handle: int) -> None:
        self._call("cuMemMap", address, num_bytes, 0, handle, 0)

    def set_access(self, address: int, num_bytes: int) -> None:
        self._call("cuMemSetAccess", address, num_bytes, [self._access], 1)

    def unmap(self, address: int, num_bytes: int) -> None:
        self._call("cuMemUnmap", address, num_bytes)

    def release(self, handle: int) -> None:
        self._call("cuMemRelease", handle)

    def free(self, address: int, num_bytes: int) -> None:
        self._call("cuMemAddressFree", address, num_bytes)

    def _call(self, name: str, *given: object) -> Any:
        return checked(self._driver, getattr(self._driver, name)(*given))


def _fields(**kinds: Any) -> type[ctypes.Structure]:
    return type("DlStruct", (ctypes.Structure,), {"_fields_": list(kinds.items())})


_DlTensor = _fields(
    data=c_void_p,
    device_type=c_int32,
    device_id=c_int32,
    ndim=c_int32,
    code=c_uint8,
    bits=c_uint8,
    lanes=c_uint16,
    shape=ctypes.POINTER(c_int64),
    strides=ctypes.POINTER(c_int64),
    byte_offset=c_uint64,
)
_DlManaged = _fields(tensor=_DlTensor, context=c_void_p, deleter=c_void_p)


def tensor_at(address: int, num_bytes: int, device: torch.device) -> torch.Tensor:
    """The addresses as torch sees them; nothing is read or owned. # [num_bytes] uint8"""
    shape, strides = (c_int64 * 1)(num_bytes), (c_int64 * 1)(1)
    managed: Any = _DlManaged(
        tensor=_DlTensor(
            data=address,
            device_type=_DEVICE_TYPES[device.type],
            device_id=device.index or 0,
            ndim=1,
            code=_UNSIGNED,
            bits=8,
            lanes=1,
            shape=shape,
            strides=strides,
        )
    )
    # torch looks into this struct when the last view of the tensor ends, which may be after all of
    # ours are gone: these few words are never freed
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(managed))
    capsule_of = ctypes.pythonapi.PyCapsule_New
    capsule_of.restype, capsule_of.argtypes = (
        ctypes.py_object,
        (c_void_p, ctypes.c_char_p, c_void_p),
    )
    found: torch.Tensor = from_dlpack(capsule_of(ctypes.addressof(managed), _CAPSULE, None))
    return found


# --- compiling ------------------------------------------------------------------------------------

ARCHITECTURES = ("80", "86", "89", "90a", "100a", "120")
"""What the kernels are compiled for in tests; a later GPU is compiled for by its own number."""


def architecture_of(major: int, minor: int) -> str:
    """The name of a compute capability, with all that this very GPU can do: "90a" for 9.0."""
    name = f"{major}{minor}"
    return f"{name}a" if f"{name}a" in ARCHITECTURES else name


def compiled(key: KernelsKey, architecture: str) -> bytes:
    """The cubin of a module. Raises NotSupported, with what the compiler said."""
    nvrtc = _nvrtc()
    options = _options(key, architecture)
    sources = _sources()
    digest = hashlib.sha256(f"{compiler_version()}|{key.source}|{options}".encode())
    for name, text in sorted(sources.items()):
        digest.update(f"{name}\0{text}\0".encode())
    target = cache_folder() / "cubin" / f"{key.name}-{digest.hexdigest()[:24]}"
    if target.exists():
        return target.read_bytes()
    cubin, _ = _compile(nvrtc, sources, key.source, options)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as scratch:
        scratch.write(cubin)
    os.replace(scratch.name, target)  # atomic: two processes may compile at once
    return cubin


def compiler_version() -> str:
    nvrtc = _nvrtc()
    major, minor = _checked(nvrtc, nvrtc.nvrtcVersion())
    return f"{major}.{minor}"


def account(key: KernelsKey, architecture: str) -> str:
    """What NVRTC says of a module's registers, stack and spills; nothing is kept."""
    options = (*_options(key, architecture), "--ptxas-options=-v")
    return _compile(_nvrtc(), _sources(), key.source, options)[1]


def _options(key: KernelsKey, architecture: str) -> tuple[str, ...]:
    return (f"-arch=sm_{architecture}", "-std=c++17", "-default-device", *key.defines)


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise NotSupported(
            f"cuda.bindings is not installed ({error}): pip install 'lmprog[cuda]'"
        ) from error
    return nvrtc


def _sources() -> dict[str, str]:
    folder: Path = kernels_folder() / "cuda"
    names = [path for path in folder.iterdir() if path.suffix in (".cu", ".cuh")]
    return {path.name: path.read_text("utf-8") for path in names}


def _checked(nvrtc: Any, result: tuple[Any, ...]) -> Any:
    """What a call gave besides its status."""
    status, *rest = result
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise NotSupported(f"NVRTC failed: {status.name}")
    return rest[0] if len(rest) == 1 else rest


def _compile(
    nvrtc: Any, sources: dict[str, str], main: str, options: tuple[str, ...]
) -> tuple[bytes, str]:
    """The cubin, and what the compiler said."""
    headers = {name: text for name, text in sources.items() if name != main}
    program = _checked(
        nvrtc,
        nvrtc.nvrtcCreateProgram(
            sources[main].encode(),
            main.encode(),
            len(headers),
            [text.encode() for text in headers.values()],
            [name.encode() for name in headers],
        ),
    )
    try:
        given = [option.encode() for option in options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(given), given)
        log = b" " * _checked(nvrtc, nvrtc.nvrtcGetProgramLogSize(program))
        _checked(nvrtc, nvrtc.nvrtcGetProgramLog(program, log))
        said = log.decode(errors="replace")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise NotSupported(f"the kernels cannot be compiled: {said}")
        cubin: bytes = b" " * _checked(nvrtc, nvrtc.nvrtcGetCUBINSize(program))
        _checked(nvrtc, nvrtc.nvrtcGetCUBIN(program, cubin))
        return cubin, said
    finally:
        nvrtc.nvrtcDestroyProgram(program)
