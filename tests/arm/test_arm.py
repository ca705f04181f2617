"""The kernels on processors of another family: cross-compiled for ARM, run by an emulator.

Needs a cross compiler and qemu (Debian: g++-aarch64-linux-gnu, qemu-user-static).
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
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


@pytest.fixture(scope="session")
def engine() -> Path:
    """The engine's library for ARM: kept among the compiled kernels, under a name that hashes
    sources, flags and compiler, and made by one test process while others wait.
    """
    said = subprocess.run([str(COMPILER), "--version"], capture_output=True, check=True).stdout
    digest = hashlib.sha256(native.prebuilt_name("engine").encode() + said).hexdigest()[:20]
    kept = native.cache_folder() / "arm" / f"engine-{digest}.so"
    kept.parent.mkdir(parents=True, exist_ok=True)
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
                made = Path(scratch) / kept.name
                assert native.link(native.LIBRARIES["engine"], str(COMPILER), "arm64", made) == []
                made.replace(kept)
    return kept


def linked(engine: Path, source: Path, folder: Path) -> Path:
    """A program with the engine; its own code is compiled quickly."""
    kernels = native.kernels_folder()
    program = folder / source.stem
    command = [
        *(str(COMPILER), "-O1", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"),
        *(f"-I{kernels / 'include'}", f"-I{kernels / 'cpu'}", str(source)),
        *(str(engine), f"-Wl,-rpath,{engine.parent}", "-o", str(program)),
    ]
    subprocess.run(command, check=True)
    return program


def test_every_path_computes_what_the_generic_one_does(engine: Path, tmp_path: Path) -> None:
    done = run("max", linked(engine, HERE / "paths.cpp", tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    compared = {line.split()[0] for line in done.stdout.splitlines()[1:]}
    assert compared == {"neonbf16", "neondot", "neon"}


@pytest.mark.parametrize(
    ("processor", "path"),
    [("max", "neonbf16"), ("neoverse-n1", "neondot"), ("cortex-a53", "neon")],
)
def test_a_processor_gets_the_best_path_that_it_has(
    processor: str, path: str, engine: Path, tmp_path: Path
) -> None:
    source = tmp_path / "best.cpp"
    source.write_text(
        '#include <stdio.h>\n#include "lmprog_engine.h"\n'
        "int main() { puts(lmprog_engine_best_path()); }\n"
    )
    assert run(processor, linked(engine, source, tmp_path)).stdout == f"{path}\n"
