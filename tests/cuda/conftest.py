"""Emulated kernels for the tests of this folder; skipped where there is no compiler, as there is
then no emulator.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lmprog.native import compiler
from lmprog.runtime.engine.device.driver import ModuleKey
from lmprog.runtime.engine.device.emulated_driver import EmulatedDriver, emulated_kernels
from lmprog.runtime.engine.device.kernels import Kernels

MakeKernels = Callable[..., Kernels]


@pytest.fixture
def kernels_of() -> MakeKernels:
    """kernels_of("bf16", 64): those of that module, on a driver of their own."""
    if compiler() is None:
        pytest.skip("no C++ compiler")

    def make(type_name: str, head_dim: int, seed: int = 0) -> Kernels:
        key = ModuleKey(type_name, head_dim)
        return Kernels(EmulatedDriver(emulated_kernels(key), seed), key)

    return make
