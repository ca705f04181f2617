"""The driver on a GPU, as far as it goes without one: the installed `cuda.bindings` marshals its
calls into a library of ours, and the emulator does what is launched (`fake_gpu.py`).
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lmprog.errors import NotSupported
from lmprog.native import compiler
from lmprog.runtime.engine.device.cuda_driver import CudaDriver, why_not
from lmprog.runtime.engine.device.device_memory import DeviceMemoryFull

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler"),
    pytest.mark.skipif(
        importlib.util.find_spec("cuda") is None, reason="cuda.bindings is not installed"
    ),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    flags = ("-shared", "-fPIC", "-Wall", "-Wextra", "-Wl,-soname,libcuda.so.1")
    subprocess.run(
        [str(compiler()), *flags, "-o", str(made), str(HERE / "fake_libcuda.cpp")], check=True
    )
    return made


CALLS = ["cuLibraryLoadData", "cuLibraryGetKernel", "cuKernelGetFunction", "cuFuncSetAttribute"]
_OLD, _OLDER_THAN_TORCH = {"FAKE_CUDA_VERSION": "11040"}, {"FAKE_CUDA_VERSION": "12080"}
_REFUSED = {"FAKE_TORCH_REFUSES": "The NVIDIA driver on your system is too old\nPlease update"}
_TESTS = {
    "LMPROG_TEST_DEVICE": "cuda:0",
    "FAKE_GPU_TESTS": "test_tree_attention.py test_small_kernels.py test_products.py test_items.py",
    "FAKE_GPU_CHOICE": "whole_prompt or kv_copy or silu or company or loaded_once or shared_prefix",
}
CASES: list[tuple[str, dict[str, str]]] = [
    ("tests", _TESTS),  # first: the device of tests is named when they are imported
    ("opens", {}),
    *(("opens", given) for given in (_OLD, _OLDER_THAN_TORCH, _REFUSED)),
    *(("opens", {"FAKE_CUDA_FAILS": call}) for call in CALLS),
    ("verbs", {"FAKE_CUDA_VMM": "1"}),
    ("unmappable", {}),
    ("pins", {}),
    ("answers", {}),
    ("maps", {"FAKE_CUDA_VMM": "1", "FAKE_CUDA_MEMORY": str(8 << 20)}),
]
Said = Callable[..., Any]


@pytest.fixture(scope="module")
def said(library: Path) -> Said:
    """What a case gives; all in one process, since that takes long to begin."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.cuda.fake_gpu", str(library), json.dumps(CASES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])

    def of(name: str, **environment: str) -> Any:
        return next(
            one
            for (own, given), one in zip(CASES, found, strict=True)
            if own == name and environment.items() <= given.items()
        )

    return of


def test_launches_through_the_installed_bindings_give_the_tokens_of_the_processor(
    said: Said,
) -> None:
    name, launches = said("answers")
    assert name == "fake (sm_90a), driver 13000, NVRTC 13.5"
    assert launches > 30


def test_memory_is_mapped_through_the_installed_bindings_and_returns_when_idle(
    said: Said,
) -> None:
    """64 pages of 4 KiB in each of two layers lie in one handle of 2 MiB a layer."""
    assert said("maps") == [8, 4, 8, 4, 8]


def test_what_a_driver_refuses_is_an_error_and_a_full_device_says_so(said: Said) -> None:
    assert said("verbs") == ["the CUDA driver failed: CUDA_ERROR_INVALID_VALUE"] * 5 + [
        "the device has no memory left"
    ]


def test_a_device_without_virtual_memory_is_one_line(said: Said) -> None:
    assert said("unmappable").startswith("kv_pool = 'virtual' needs virtual memory management")


def test_the_tests_of_this_folder_run_on_the_device_that_is_named(said: Said) -> None:
    """Those that only make sense on the emulator are skipped."""
    ends = said("tests")
    assert ends.keys() == {"passed", "skipped"}, ends
    assert ends["passed"] > 15
    assert ends["skipped"] > 1


def test_large_memory_of_the_host_is_pinned_to_the_byte_and_given_up(said: Said) -> None:
    """torch's own would take 128 MiB for these 65."""
    size = (65 << 20) + 16
    assert said("pins") == [size, size, 0]


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails_is_an_error_with_its_name(call: str, said: Said) -> None:
    reason, error = said("opens", FAKE_CUDA_FAILS=call)
    assert reason is None
    assert "the CUDA driver failed: CUDA_ERROR_INVALID_IMAGE" in error


def test_a_driver_that_is_too_old_is_one_line(said: Said) -> None:
    reason, _ = said("opens", **_OLD)
    assert reason.startswith("the NVIDIA driver is for CUDA 11, at least 13 is needed")


def test_a_driver_that_is_older_than_the_cuda_of_torch_is_one_line(said: Said) -> None:
    """So that device="auto" goes on with the processor."""
    reason, _ = said("opens", **_OLDER_THAN_TORCH)
    assert reason == (
        "the NVIDIA driver is for CUDA 12, at least 13 is needed "
        f"(torch {torch.__version__} is built for CUDA 13.0)"
    )
    reason, _ = said("opens", **_REFUSED)
    assert reason == "torch cannot use it: The NVIDIA driver on your system is too old"


def test_a_driver_that_can_be_used_opens(said: Said) -> None:
    assert said("opens") == [None, None]


def test_torch_without_cuda_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.version.cuda", None)
    assert "is built without CUDA" in str(why_not(0))


def _told(error: Exception) -> object:
    def synchronize(_device: object) -> None:
        raise error

    return synchronize


def test_any_error_of_cuda_but_short_memory_means_that_the_device_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = CudaDriver.__new__(CudaDriver)
    driver.device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
    for lost in (
        torch.AcceleratorError("an illegal memory access was encountered"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx"),
        NotSupported("the CUDA driver failed: CUDA_ERROR_LAUNCH_FAILED"),
    ):
        assert driver.is_lost(lost)
    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    others = (
        full,
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        DeviceMemoryFull("no memory left"),
        ValueError("a mask is too short"),
    )
    assert not any(driver.is_lost(one) for one in others)
    monkeypatch.setattr(torch.cuda, "synchronize", _told(torch.AcceleratorError("illegal")))
    assert driver.is_lost(others[-1])
