"""Emulated kernels for the tests of this folder; skipped where there is no compiler, as there is
then no emulator.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lmprog.native import compiler
from lmprog.runtime.engine.device.driver import MODULES, ModuleKey
from lmprog.runtime.engine.device.emulated_driver import EmulatedDriver, emulated_kernels
from lmprog.runtime.engine.device.kernels import Kernels

MakeKernels = Callable[..., Kernels]
_OF_BYTES = ("float32-e4m3", "bf1664-e4m3", "f16256-e4m3")
_BETWEEN = ("float80", "bf1680", "f1696", "bf16112", "bf1680-e4m3", "f1696-e4m3")
TRIED_MODULES = tuple(
    key
    for key in MODULES
    if (not key.kept_name and key.head_dim & (key.head_dim - 1) == 0)
    or key.name in (*_OF_BYTES, *_BETWEEN)
)
"""Compiling takes seconds: of those with pages of e4m3 floats one of each way to read them, and of
heads that are no power of two one of each way to lay them out.
"""


@pytest.fixture
def kernels_of() -> MakeKernels:
    """kernels_of("bf16", 64): those of that module, on a driver of their own; kept="e4m3" with
    pages of such floats.
    """
    if compiler() is None:
        pytest.skip("no C++ compiler")

    def make(type_name: str, head_dim: int, seed: int = 0, kept: str = "") -> Kernels:
        key = ModuleKey(type_name, head_dim, kept)
        return Kernels(EmulatedDriver(emulated_kernels(key), seed), key)

    return make
