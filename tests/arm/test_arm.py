"""The kernels on processors of another family: cross-compiled for ARM, run by an emulator.

Needs a cross compiler and qemu (Debian: g++-aarch64-linux-gnu, qemu-user-static).
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from lmprog import native

COMPILER = shutil.which("aarch64-linux-gnu-g++")
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
SYSTEM = Path("/usr/aarch64-linux-gnu")
HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(
    not (COMPILER and EMULATOR and SYSTEM.is_dir()),
    reason="needs a cross compiler for ARM and qemu",
)


def run(processor: str, program: Path) -> subprocess.CompletedProcess[str]:
    command = [str(EMULATOR), "-cpu", processor, "-L", str(SYSTEM), str(program)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the engine's library for ARM."""
    made = tmp_path_factory.mktemp("arm")
    left_out = native.link(native.LIBRARIES["engine"], COMPILER or "", "arm64", made / "engine.so")
    assert left_out == []
    return made


def linked(folder: Path, source: Path) -> Path:
    kernels = native.kernels_folder()
    program = folder / source.stem
    command = [
        *(str(COMPILER), "-O2", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"),
        *(f"-I{kernels / 'include'}", f"-I{kernels / 'cpu'}", str(source)),
        *(str(folder / "engine.so"), f"-Wl,-rpath,{folder}", "-o", str(program)),
    ]
    subprocess.run(command, check=True)
    return program


def test_every_path_computes_what_the_generic_one_does(folder: Path) -> None:
    done = run("max", linked(folder, HERE / "paths.cpp"))
    assert done.returncode == 0, done.stdout + done.stderr
    compared = {line.split()[0] for line in done.stdout.splitlines()[1:]}
    assert compared == {"neonbf16", "neondot", "neon"}


@pytest.mark.parametrize(
    ("processor", "path"),
    [("max", "neonbf16"), ("neoverse-n1", "neondot"), ("cortex-a53", "neon")],
)
def test_a_processor_gets_the_best_path_that_it_has(
    processor: str, path: str, folder: Path
) -> None:
    source = folder / "best.cpp"
    source.write_text(
        '#include <stdio.h>\n#include "lmprog_engine.h"\n'
        "int main() { puts(lmprog_engine_best_path()); }\n"
    )
    assert run(processor, linked(folder, source)).stdout == f"{path}\n"
