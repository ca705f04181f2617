"""What a kernel's machine code is made of, loop by loop: instructions, products of matrices,
branches, calls, atomics that spin.

    python -m benchmarks.gpu.machine_code [--disassembler cuobjdump] [--write]

Needs nvcc and cuobjdump (a wheel of NVIDIA's has it: nvidia-cuda-cuobjdump, with nvidia-cuda-nvdisasm
beside it). `--write` renews tests/cuda/machine_code.csv, which is checked in; a test holds it to
`PER_PRODUCT` and `CALLS`, and the kernels too where both tools are there.
"""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Annotated

from benchmarks import runner
from lmprog.native import kernels_folder
from lmprog.runtime.engine.device.driver import KernelsKey, ModuleKey, ProductKey

TABLE = Path(__file__).parents[2] / "tests" / "cuda" / "machine_code.csv"
RECORDED: tuple[tuple[KernelsKey, str], ...] = (
    (ModuleKey("bf16", 128), "80"),
    (ModuleKey("bf16", 128), "90a"),
    (ProductKey("bf16"), "90a"),
)
"""Made by nvcc 13.0, disassembled by cuobjdump 13.5."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop that counts (see `loops`), or the whole of a kernel (`begin` -1)."""

    module: str
    architecture: str
    kernel: str
    begin: int
    instructions: int
    matrix: int
    """Products on the matrix units."""
    branches: int
    calls: int
    spinning: int
    """Atomics that are tried again until nobody came between."""


PER_PRODUCT = {"tree_attention_large": 9.0, "tree_attention_small": 24.0}
"""Instructions of the loop for each product on the matrix units."""
CALLS = {"rope_append": 8, "kv_copy": 6, "mask_sample": 4, "unpack": 1, "silu_mul": 1}
"""In a loop. Of `rope_append`, `kv_copy`, `unpack` and `silu_mul` they are divisions, once for many bytes; of
`mask_sample` the way of a warp whose lanes came apart, which its lanes do not. No others have any.
"""

_LINE = re.compile(r"^\s+/\*([0-9a-f]{4,5})\*/\s+(@!?U?P\w+\s+)?([A-Z0-9_.]+)(.*?);")
_TARGET = re.compile(r"0x([0-9a-f]+)")
_NEEDED = ("HMMA", "IMMA", "QMMA", "LDGSTS")
"""Without which a turn of a loop does no work: products of matrices, asynchronous copies."""


@dataclass(frozen=True, slots=True)
class Instruction:
    at: int
    name: str
    target: int | None
    """Of a branch."""
    is_conditional: bool


def parsed(sass: str) -> Iterator[Instruction]:
    """All but those that fill up."""
    for found in filter(None, map(_LINE.match, sass.splitlines())):
        at, predicate, name, rest = found.groups()
        target = _TARGET.search(rest) if name.startswith(("BRA", "CALL")) else None
        to = None if target is None else int(target[1], 16)
        if name.startswith("CALL"):  # over the next instruction it is a jump, written so by ptxas
            name, to = ("BRA", to) if to == int(at, 16) + 32 else (name, None)
        if name != "NOP":
            yield Instruction(
                int(at, 16), name, to, bool(predicate) or name != "BRA" or " P" in rest
            )


def loops(sass: str) -> Iterator[tuple[int, list[str]]]:
    """Where each loop that counts begins, and its instructions; the whole kernel first, at -1. Of a
    kernel that multiplies matrices it is the shortest one with most of its products, and of that
    the shortest way with all products and copies: that of a tile without mask and cap. Else the
    innermost ones.
    """
    code = list(parsed(sass))
    yield -1, [one.name for one in code]
    back = [(one.target, one.at) for one in code if one.target is not None and one.target < one.at]
    inner = [
        (begin, end)
        for begin, end in back
        if not any(begin <= other and last < end for other, last in back)
    ]

    def within(begin: int, end: int) -> list[Instruction]:
        return [one for one in code if begin <= one.at <= end]

    products = {span: sum(_is_product(one.name) for one in within(*span)) for span in back}
    most = max(products.values(), default=0)
    if not most:
        for begin, end in inner:
            yield begin, [one.name for one in within(begin, end)]
        return
    begin, end = min((one for one in back if products[one] == most), key=lambda x: x[1] - x[0])
    yield begin, shortest_way(within(begin, end))


def shortest_way(code: list[Instruction]) -> list[str]:
    """From the first to the last instruction, by forward branches, with as much of what is needed
    as there can be.
    """
    index_of = {one.at: index for index, one in enumerate(code)}
    best: list[tuple[int, int, int | None] | None] = [None] * len(code)
    best[-1] = (0, -1, None)
    for index in range(len(code) - 2, -1, -1):
        one = code[index]
        following = [] if one.target is not None and not one.is_conditional else [index + 1]
        if one.target is not None and one.at < one.target in index_of:
            following.append(index_of[one.target])
        own = int(one.name.startswith(_NEEDED))
        ways = [(best[to], to) for to in following]
        found = [(way[0] + own, way[1] - 1, to) for way, to in ways if way is not None]
        best[index] = max(found, default=None)
    names, at = list[str](), 0
    while True:
        names.append(code[at].name)
        way = best[at]
        if way is None or way[2] is None:
            return names
        at = way[2]


def _is_product(name: str) -> bool:
    return name.startswith(("HMMA", "IMMA", "QMMA"))


def counted(key: KernelsKey, architecture: str, kernel: str, begin: int, code: list[str]) -> Loop:
    def number(*prefixes: str) -> int:
        return sum(name.startswith(prefixes) for name in code)

    return Loop(
        key.name,
        architecture,
        kernel,
        begin,
        len(code),
        sum(map(_is_product, code)),
        number("BRA"),
        number("CALL"),
        number("ATOMS.CAS", "ATOM.CAS", "ATOMG.CAS"),
    )


def disassembled(key: KernelsKey, architecture: str, disassembler: str) -> Iterator[Loop]:
    """Raises CalledProcessError where a module does not compile."""
    with tempfile.TemporaryDirectory() as folder:
        made = f"{folder}/out.cubin"
        source = str(kernels_folder() / "cuda" / key.source)
        options = ["-std=c++17", f"-arch=sm_{architecture}", "-cubin"]
        subprocess.run(["nvcc", *options, *key.defines, "-o", made, source], check=True)
        said = subprocess.run(
            [disassembler, "-sass", made], capture_output=True, text=True, check=True
        ).stdout
    for text in said.split("Function : ")[1:]:
        kernel, _, body = text.partition("\n")
        for begin, code in loops(body):
            yield counted(key, architecture, kernel.strip(), begin, code)


def over_budget(rows: list[Loop]) -> list[str]:
    """What has more than it may: spinning atomics, calls in a loop, instructions for a product."""
    found = []
    for row in rows:
        name = f"{row.module} sm_{row.architecture} {row.kernel}"
        if row.spinning:
            found.append(f"{name}: {row.spinning} atomics that spin")
        if row.begin < 0:
            continue
        calls = max((n for start, n in CALLS.items() if row.kernel.startswith(start)), default=0)
        if row.calls > calls:
            found.append(f"{name}: {row.calls} calls in a loop")
        most = PER_PRODUCT.get(row.kernel)
        if most and row.matrix and row.instructions > most * row.matrix:
            each = row.instructions / row.matrix
            found.append(f"{name}: {each:.1f} instructions for a product, not {most}")
    return found


@runner.command
def main(
    *,
    disassembler: str = "cuobjdump",
    write: Annotated[bool, "renew the table"] = False,
) -> int:
    for tool in ("nvcc", disassembler):
        if shutil.which(tool) is None:
            print(f"{tool} is not installed")
            return 1
    rows = [row for key, sm in RECORDED for row in disassembled(key, sm, disassembler)]
    runner.head(*(field.name for field in fields(Loop)))
    for row in rows:
        if row.begin < 0 or row.matrix or row.calls or row.spinning:
            runner.say(*astuple(row))
    if write:
        with TABLE.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([field.name for field in fields(Loop)])
            writer.writerows(astuple(row) for row in rows)
    wrong = over_budget(rows)
    print(*wrong, sep="\n")
    return int(bool(wrong))
