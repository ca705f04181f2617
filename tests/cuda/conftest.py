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
TRIED_MODULES = tuple(key for key in MODULES if not key.kept_name or key.name in _OF_BYTES)
"""Of those with pages of e4m3 floats, one of each way to read them: compiling takes seconds."""


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
