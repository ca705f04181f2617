"""What is compared at the first use of a device: every kernel and product, and what is kept of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmprog.errors import NotSupported
from lmprog.native import compiler
from lmprog.runtime.engine.device import evidence
from lmprog.runtime.engine.device.driver import ModuleKey, ProductKey
from lmprog.runtime.engine.device.emulated_driver import EmulatedDriver, emulated_kernels
from lmprog.runtime.engine.device.kernels import Kernels, kernel_shapes

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
KEY, PRODUCTS = ModuleKey("bf16", 64), ProductKey("bf16")
OF_ATTENTION = {"tree_attention_small", "tree_attention_large", "tree_merge"}
LOSABLE = sorted({*kernel_shapes(KEY), *kernel_shapes(PRODUCTS)} - OF_ATTENTION)


def made(key: ModuleKey = KEY) -> Kernels:
    products = ProductKey(key.type_name)
    return Kernels(EmulatedDriver(emulated_kernels(key, products)), key, products)


def losing(kernels: Kernels, lost: str) -> Kernels:
    """A device that loses every launch of one kernel."""
    launch = kernels.launch

    def launched(name: str, *given: object, **more: object) -> None:
        if name != lost:
            launch(name, *given, **more)  # type: ignore[arg-type]

    kernels.launch = launched  # type: ignore[method-assign, assignment]
    return kernels


@pytest.mark.parametrize(
    "key", [KEY, ModuleKey("float", 64), ModuleKey("bf16", 64, "e4m3")], ids=lambda key: key.name
)
def test_right_kernels_are_found_right(key: ModuleKey) -> None:
    assert evidence.wrong_kernels(evidence.kernel_errors(made(key)), key) == []


@pytest.mark.parametrize("lost", LOSABLE)
def test_a_kernel_that_does_nothing_is_found(lost: str) -> None:
    wrong = evidence.wrong_kernels(evidence.kernel_errors(losing(made(), lost)), KEY)
    name = lost.replace("unpack", "product").split("_")
    assert wrong == [f"products of {name[1]}" if name[0] == "product" else lost]


def test_what_was_right_is_kept_for_device_driver_and_compiler_and_what_was_wrong_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels, bad = made(), losing(made(), "silu_mul")
    monkeypatch.setenv("LMPROG_CACHE", str(tmp_path))
    looks: list[Kernels] = []
    real = evidence.kernel_errors

    def counted(kernels: Kernels) -> dict[str, float]:
        looks.append(kernels)
        return real(kernels)

    monkeypatch.setattr(evidence, "kernel_errors", counted)
    for _ in range(2):
        with pytest.raises(NotSupported, match=r"wrong on a GPU.*silu_mul \(nan\)"):
            evidence.require_right_kernels(bad, "a GPU")
    for name in ("a GPU", "a GPU", "a GPU, NVRTC 13.6"):
        evidence.require_right_kernels(kernels, name)
    assert looks == [bad, bad, kernels, kernels]
