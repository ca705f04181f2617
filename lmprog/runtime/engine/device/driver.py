"""The border between the engine and a device: a few verbs with two implementations.

Everything is asynchronous and in order, as on one stream: what a verb is given must stay as it is
until an event that was recorded after it has been waited for. Only what is begun `aside` has an
order of its own. Between our kernels torch computes
products; it enters by `compute`, so that a graph can hold it. Memory has verbs of its own
(`device_memory`). Knows kernels by name and arguments as bytes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from lmprog.runtime.engine.device.device_memory import DeviceMemory


class KernelsKey(Protocol):
    """Which kernels: one compilation."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> str:
        """The file of kernels/cuda that is compiled."""
        ...

    @property
    def defines(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class ModuleKey:
    """The kernels of a decoder between its products: one compilation per type and head size."""

    type_name: str
    head_dim: int
    kept_name: str = ""
    """How keys and values are kept; "": as `type_name` says."""

    @property
    def name(self) -> str:
        return f"{self.type_name}{self.head_dim}" + (f"-{self.kept_name}" if self.kept_name else "")

    @property
    def source(self) -> str:
        return "module.cu"

    @property
    def is_exact(self) -> bool:
        """In float, where results do not depend on the company of a query to the last bit."""
        return self.type_name == "float"

    @property
    def defines(self) -> tuple[str, ...]:
        return (
            f"-DLM_TYPE={self.type_name}",
            f"-DLM_KV={self.kept_name or self.type_name}",
            f"-DLM_DIM={self.head_dim}",
            f"-DLM_EXACT={int(self.is_exact)}",
        )


@dataclass(frozen=True, slots=True)
class ProductKey:
    """The products with weights of 8 and 4 bits, for activations of one type."""

    type_name: str

    @property
    def name(self) -> str:
        return f"products-{self.type_name}"

    @property
    def source(self) -> str:
        return "products.cu"

    @property
    def defines(self) -> tuple[str, ...]:
        is_exact = self.type_name == "float"
        return ("-DLM_PRODUCTS=1", f"-DLM_TYPE={self.type_name}", f"-DLM_EXACT={int(is_exact)}")


TYPE_NAMES = {torch.float32: "float", torch.bfloat16: "bf16", torch.float16: "f16"}
_DIMS = (64, 80, 96, 112, 128, 256)
HEAD_DIMS = {"float": (32, *_DIMS), "bf16": _DIMS, "f16": _DIMS}
"""The instantiations there are. Another head size is a number here."""
KEPT_NAMES = ("", "e4m3")
MODULES = tuple(
    ModuleKey(name, dim, kept)
    for kept in KEPT_NAMES
    for name, dims in HEAD_DIMS.items()
    for dim in dims
)
PRODUCT_MODULES = tuple(ProductKey(name) for name in HEAD_DIMS)


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel with its arguments, a struct by value."""

    kernel: str
    grid: int
    threads: int
    shared_bytes: int
    args: ctypes.Structure


class DeviceEvent(Protocol):
    """A point in the device's work."""

    def wait(self) -> None:
        """Returns when everything before it is done. Raises what went wrong in it."""
        ...


class DeviceGraph(Protocol):
    """Work that was captured once, with the pointers it had then."""

    def replay(self) -> None: ...


class DeviceMark(Protocol):
    """The end of work that was begun beside other work."""


class Driver(DeviceMemory, Protocol):
    """One device with the kernels of one model."""

    @property
    def num_processors(self) -> int:
        """Multiprocessors, by which persistent kernels choose their grids."""
        ...

    def launch(self, launch: Launch) -> None: ...

    def compute(self, work: Callable[[], object]) -> None:
        """Has torch do `work`, which reads and writes tensors of `memory` and makes no others that
        outlive it.
        """
        ...

    def event(self) -> DeviceEvent: ...

    def is_lost(self, error: Exception) -> bool:
        """Whether nothing that the device computes counts any more, after a step that ended with
        `error`.
        """
        ...

    def aside(self, work: Callable[[], None]) -> DeviceMark:
        """What `work` launches comes after all that was begun before, and beside what follows."""
        ...

    def join(self, mark: Any) -> None:
        """What follows comes after the work that `mark` is the end of, one of this driver's."""
        ...

    def capture(self, work: Callable[[], None]) -> DeviceGraph:
        """What `work` launches and computes, as a graph. It is done once before that, since
        libraries and kernels are loaded when they are first used, which no capture allows: so
        `work` is such that doing it twice changes nothing.
        """
        ...
