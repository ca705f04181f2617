"""The driver on a GPU, as far as it goes without one: the installed `cuda.bindings` marshals its
calls into a library of ours, and the emulator does what is launched (`fake_gpu.py`).
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

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


def run(library: Path, *asked: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.cuda.fake_gpu", str(library), *asked],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


CALLS = ["cuLibraryLoadData", "cuLibraryGetKernel", "cuKernelGetFunction", "cuFuncSetAttribute"]
CASES = [
    {},
    {"FAKE_CUDA_VERSION": "11040"},
    *({"FAKE_CUDA_FAILS": call} for call in CALLS),
    {},
]


@pytest.fixture(scope="module")
def opened(library: Path) -> list[list[str | None]]:
    """Of each case why the driver cannot be used, and what is wrong where it is opened; all in one
    process, since that takes long to begin.
    """
    done = run(library, "opens", json.dumps(CASES))
    assert done.returncode == 0, done.stderr
    found: list[list[str | None]] = json.loads(done.stdout)
    return found


def test_launches_through_the_installed_bindings_give_the_tokens_of_the_processor(
    library: Path,
) -> None:
    done = run(library, "answers")
    assert done.returncode == 0, done.stderr
    name, _, launches = done.stdout.rpartition(" ")
    assert name == "fake, driver 13000"
    assert int(launches) > 30


def test_memory_is_mapped_through_the_installed_bindings_and_returns_when_idle(
    library: Path,
) -> None:
    """64 pages of 4 KiB in each of two layers lie in one handle of 2 MiB a layer."""
    done = run(library, "maps", FAKE_CUDA_VMM="1", FAKE_CUDA_MEMORY=str(8 << 20))
    assert (done.returncode, done.stdout) == (0, "[8, 4, 8, 4, 8]\n"), done.stderr


def test_what_a_driver_refuses_is_an_error_and_a_full_device_says_so(library: Path) -> None:
    done = run(library, "verbs", FAKE_CUDA_VMM="1")
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said == ["the CUDA driver failed: CUDA_ERROR_INVALID_VALUE"] * 5 + [
        "the device has no memory left"
    ]


def test_a_device_without_virtual_memory_is_one_line(library: Path) -> None:
    done = run(library, "verbs")
    assert done.returncode == 1
    assert "NotSupported: kv_pool = 'virtual' needs virtual memory management" in done.stderr


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails_is_an_error_with_its_name(
    call: str, opened: list[list[str | None]]
) -> None:
    reason, error = opened[CASES.index({"FAKE_CUDA_FAILS": call})]
    assert reason is None
    assert error is not None
    assert "the CUDA driver failed: CUDA_ERROR_INVALID_IMAGE" in error


def test_a_driver_that_is_too_old_is_one_line(opened: list[list[str | None]]) -> None:
    reason, _ = opened[CASES.index({"FAKE_CUDA_VERSION": "11040"})]
    assert reason == "the NVIDIA driver is for CUDA 11, at least 12 is needed"


def test_a_driver_that_can_be_used_opens(opened: list[list[str | None]]) -> None:
    assert opened[0] == opened[-1] == [None, None]


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
