"""Compiles every kernel for every architecture, by nvcc or by NVRTC, which compiles them for users;
registers, shared memory, occupancy.

    python -m benchmarks.gpu.compiled [--by nvrtc] [--write]

Fails where a kernel spills registers, needs a stack, or does not fit a multiprocessor. `--write`
renews the compiler's table in tests/cuda, which is checked in: those rows that were made of other
sources than there are. All of them take ten minutes of processor time.
"""

from __future__ import annotations

import csv
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

from benchmarks import runner
from lmprog.native import kernels_folder
from lmprog.runtime.engine.device import cuda_driver
from lmprog.runtime.engine.device.cuda_driver import ARCHITECTURES
from lmprog.runtime.engine.device.driver import MODULES, PRODUCT_MODULES, KernelsKey
from lmprog.runtime.engine.device.kernels import kernel_shapes

_TESTS = Path(__file__).parents[2] / "tests" / "cuda"
TABLES = {"nvcc": _TESTS / "compiled.csv", "nvrtc": _TESTS / "compiled_nvrtc.csv"}
"""Made by nvcc 13.0 and NVRTC 13.5; a test holds the kernels to them."""
RECORDED: tuple[KernelsKey, ...] = (*MODULES, *PRODUCT_MODULES)


@dataclass(frozen=True, slots=True)
class Processor:
    """What a multiprocessor has, by the CUDA programming guide's table of compute capabilities."""

    shared_kb: int
    block_shared_kb: int
    threads: int
    blocks: int
    registers: int = 65_536


PROCESSORS = {
    "80": Processor(164, 163, 2048, 32),
    "86": Processor(100, 99, 1536, 16),
    "89": Processor(100, 99, 1536, 24),
    "90a": Processor(228, 227, 2048, 32),
    "100a": Processor(228, 227, 2048, 32),
    "120": Processor(100, 99, 1536, 24),
}


@dataclass(frozen=True, slots=True)
class Compiled:
    """One kernel as compiled; `blocks` of it are resident on a multiprocessor."""

    module: str
    architecture: str
    kernel: str
    registers: int
    stack: int
    spills: int
    shared: int
    threads: int
    blocks: int
    sources: str
    """See `sources_of`; "-": others than there are."""

    @property
    def is_sound(self) -> bool:
        return self.stack == self.spills == 0 < self.blocks


@cache
def sources_of(source: str, kernel: str) -> str:
    """A digest of what a kernel of a file of kernels/cuda is made of: what declares it, and the file
    that defines it with all that this includes; without comments and spaces. Of one that a macro
    declares, of all of its file.
    """
    folder = kernels_folder() / "cuda"
    files = {path.name: _bare(path.read_text("utf-8")) for path in folder.glob("*.cu*")}
    declared = re.search(rf"LM_KERNEL\({kernel},.*?\{{(\w+).*?\}}", files[source])
    said = "" if declared is None else declared[0]
    todo = [source]
    if declared is not None:
        todo = [name for name, text in files.items() if f"LM_DEVvoid{declared[1]}(const" in text]
        assert todo, declared[1]
    met: set[str] = set()
    while todo:
        name = todo.pop()
        if name not in met:
            met.add(name)
            todo += [one for one in re.findall(r'#include"(.*?)"', files[name]) if one in files]
    texts = [said, *(files[name] for name in sorted(met - {"emu.h"}))]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:8]


def _bare(text: str) -> str:
    return re.sub(r"\s+", "", re.sub(r"//[^\n]*", "", text))


def recorded(compiler: str) -> list[Compiled]:
    """The table that is checked in."""
    numbers = {field.name for field in fields(Compiled) if field.type in (int, "int")}
    with TABLES[compiler].open() as file:
        rows = list(csv.DictReader(file))
    return [
        Compiled(**{name: int(x) if name in numbers else x for name, x in row.items()})  # type: ignore[arg-type]
        for row in rows
    ]


def stale(rows: list[Compiled]) -> set[tuple[str, str]]:
    """Modules and architectures, of all there are, with a kernel that `rows` lack or have of other
    sources.
    """
    known = {(row.module, row.architecture, row.kernel): row.sources for row in rows}
    return {
        (key.name, architecture)
        for key, architecture in product(RECORDED, ARCHITECTURES)
        for name in kernel_shapes(key)
        if known.get((key.name, architecture, name)) != sources_of(key.source, name)
    }


def resident(architecture: str, threads: int, registers: int, shared: int) -> int:
    """Blocks that a multiprocessor holds: by registers, shared memory, threads, and its limit."""
    has = PROCESSORS[architecture]
    if shared > has.block_shared_kb << 10:
        return 0
    warps = threads // 32
    by_registers = has.registers // (-(-registers * 32 // 256) * 256 * warps)
    by_shared = (has.shared_kb << 10) // (shared + 1024)  # each block has 1 KiB of the system's
    return min(by_registers, by_shared, has.threads // threads, has.blocks)


def said_by_nvcc(key: KernelsKey, architecture: str) -> str:
    """Raises CalledProcessError where a module does not compile."""
    with tempfile.TemporaryDirectory() as folder:
        source = str(kernels_folder() / "cuda" / key.source)
        options = ["-std=c++17", f"-arch=sm_{architecture}", "-cubin", "-Xptxas", "-v"]
        command = ["nvcc", *options, *key.defines, "-o", f"{folder}/out.cubin", source]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr


COMPILERS = {"nvcc": said_by_nvcc, "nvrtc": cuda_driver.account}
"""What each says of a module for an architecture, in the same words."""


def compiled(key: KernelsKey, architecture: str, compiler: str) -> Iterator[Compiled]:
    """Every kernel of a module."""
    shapes, said = kernel_shapes(key), COMPILERS[compiler](key, architecture)
    found = re.findall(
        r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
        r"(\d+) bytes spill loads.*?Used (\d+) registers",
        said,
        re.DOTALL,
    )
    assert {name for name, *_ in found} == set(shapes), said
    for name, stack, stores, loads, registers in sorted(found):
        shape = shapes[name]
        blocks = resident(architecture, shape.threads, int(registers), shape.shared_bytes)
        yield Compiled(
            key.name,
            architecture,
            name,
            int(registers),
            int(stack),
            int(stores) + int(loads),
            shape.shared_bytes,
            shape.threads,
            blocks,
            sources_of(key.source, name),
        )


Made = dict[tuple[str, str], list[Compiled]]
"""By module and architecture."""


def _by_module(rows: list[Compiled]) -> Made:
    made: Made = {}
    for row in rows:
        made.setdefault((row.module, row.architecture), []).append(row)
    return made


def keep(made: Made, by: str) -> None:
    """Writes the compiler's table, in the order of modules."""
    order = [(key.name, architecture) for key, architecture in product(RECORDED, ARCHITECTURES)]
    with TABLES[by].open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(Compiled)])
        writer.writerows(astuple(row) for own in order for row in made.get(own, ()))


@runner.command
def main(
    *,
    by: Literal["nvcc", "nvrtc"] = "nvcc",
    write: Annotated[bool, "renew the compiler's table"] = False,
) -> int:
    if by == "nvcc" and shutil.which("nvcc") is None:
        print("nvcc is not installed; the table that is checked in was made by CUDA 13.0")
        return 1
    made = _by_module(recorded(by) if write else [])
    old = stale([row for rows in made.values() for row in rows])
    for key, architecture in product(RECORDED, ARCHITECTURES):
        if (key.name, architecture) in old:
            made[key.name, architecture] = list(compiled(key, architecture, by))
            if write:  # at once: what is stopped goes on there
                keep(made, by)
    rows = [row for own in made.values() for row in own]
    for row in rows:
        if row.kernel.startswith("tree_attention") or not row.is_sound:
            print(*astuple(row))
    wrong = [row for row in rows if not row.is_sound]
    print(f"{len(rows)} kernels, {len(wrong)} that spill, need a stack or do not fit")
    return int(bool(wrong))
