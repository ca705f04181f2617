"""The device of the tests of this folder: the emulated one, and they are skipped where there is no
compiler, as there is then no emulator; or that which LMPROG_TEST_DEVICE names. On that one those
run that `ON_DEVICE` names.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lmprog.native import compiler
from lmprog.runtime.engine.device import loading
from lmprog.runtime.engine.device.driver import MODULES, Driver, KernelsKey, ModuleKey
from lmprog.runtime.engine.device.emulated_driver import EmulatedDriver, emulated_kernels
from lmprog.runtime.engine.device.kernels import Kernels

MakeKernels = Callable[..., Kernels]
TEST_DEVICE = os.environ.get("LMPROG_TEST_DEVICE", "emulated")
ON_DEVICE = frozenset(
    [
        "test_tree_attention",
        "test_small_kernels",
        "test_mask_sample",
        "test_products",
        "test_emulated_engine",
        "test_device_families",
    ]
)
"""Files whose tests ask for results alone."""
EMULATOR_ALONE = {
    "test_shared_keys_are_loaded_once_for_all_branches_below_them": "bytes are counted",
    "test_no_result_depends_on_the_order_in_which_blocks_and_warps_run": "the order is drawn",
    "test_python_declares_what_the_kernels_were_compiled_for": "the kernels are asked",
    "test_python_declares_what_the_products_were_compiled_for": "the kernels are asked",
}
"""Of these files: what the emulator alone can do."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a device, tests of the emulator, of doubles and of tables are skipped by name."""
    here = Path(__file__).parent
    for item in items if TEST_DEVICE != "emulated" else ():
        name = item.name.partition("[")[0]
        if item.path.parent != here:
            continue
        if item.path.stem not in ON_DEVICE:
            item.add_marker(pytest.mark.skip(reason=f"{item.path.stem}: not of {TEST_DEVICE}"))
        elif name in EMULATOR_ALONE:
            reason = f"{name}: {EMULATOR_ALONE[name]} by the emulator"
            item.add_marker(pytest.mark.skip(reason=reason))


def named(device: str) -> str:
    """What a runtime is told in place of "emulated"."""
    return TEST_DEVICE if device == "emulated" else device


def make_driver(*keys: KernelsKey, seed: int = 0) -> Driver:
    """The kernels of `keys` on the device of these tests."""
    if TEST_DEVICE == "emulated":
        return EmulatedDriver(emulated_kernels(*keys), seed)
    return loading.open_driver(TEST_DEVICE, *keys)


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
    if compiler() is None and TEST_DEVICE == "emulated":
        pytest.skip("no C++ compiler")

    def make(type_name: str, head_dim: int, seed: int = 0, kept: str = "") -> Kernels:
        key = ModuleKey(type_name, head_dim, kept)
        return Kernels(make_driver(key, seed=seed), key)

    return make
