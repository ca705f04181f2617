"""Memory mapped behind reserved addresses of a GPU, by `cuda.bindings`.

torch sees the addresses as a tensor by way of DLPack, which asks nothing of the memory behind them.
This file has not run on hardware yet: tests call through the installed bindings into a library that
stands for the driver.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from lmprog.errors import NotSupported
from lmprog.runtime.engine.device.device_memory import DeviceMemoryFull

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
