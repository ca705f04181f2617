"""What is said of the kernels without a GPU: the compile table, and the model of a step."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.gpu import __main__ as gpu_benchmark
from benchmarks.gpu import compiled as table_of_compiled
from benchmarks.gpu import machine_code, model
from benchmarks.gpu.compiled import (
    RECORDED,
    TABLES,
    Compiled,
    compiled,
    recorded,
    resident,
    sources_of,
    stale,
)
from benchmarks.runner import run
from lmprog.errors import NotSupported
from lmprog.native import compiler as host_compiler
from lmprog.native import kernels_folder
from lmprog.runtime.engine.device import cuda_driver
from lmprog.runtime.engine.device.cuda_driver import ARCHITECTURES, architecture_of
from lmprog.runtime.engine.device.driver import ModuleKey
from lmprog.runtime.engine.device.kernels import kernel_shapes


@pytest.mark.parametrize("compiler", TABLES)
def test_the_table_has_every_kernel_for_every_architecture_and_none_spills(compiler: str) -> None:
    rows = {(row.module, row.architecture, row.kernel): row for row in recorded(compiler)}
    for key in RECORDED:
        for architecture in ARCHITECTURES:
            for name, shape in kernel_shapes(key).items():
                row = rows.pop((key.name, architecture, name), None)
                if row is None:
                    continue  # `OLDER` has how many there are
                assert row.is_sound, row
                assert (row.shared, row.threads) == (shape.shared_bytes, shape.threads)
                assert row.blocks == resident(architecture, row.threads, row.registers, row.shared)
    assert not rows


OLDER = {"nvcc": 0, "nvrtc": 0}
"""Modules and architectures of each table with rows that are marked as older, or lack some."""


@pytest.mark.parametrize("compiler", TABLES)
def test_no_row_is_of_other_sources_unless_it_says_so(compiler: str) -> None:
    """`python -m benchmarks.gpu.compiled --by ... --write` makes those anew that are."""
    rows, source = recorded(compiler), {key.name: key.source for key in RECORDED}
    of_others = [
        row for row in rows if row.sources not in ("-", sources_of(source[row.module], row.kernel))
    ]
    assert of_others == [], "make them anew"
    assert len(stale(rows)) == OLDER[compiler]


def test_what_is_stale_is_said() -> None:
    rows = [
        Compiled(key.name, architecture, name, 1, 0, 0, 0, 32, 1, sources_of(key.source, name))
        for key in RECORDED
        for architecture in ARCHITECTURES
        for name in kernel_shapes(key)
    ]
    assert stale(rows) == set()
    changed = replace(rows[7], sources="0" * 8)
    gone = [changed if row is rows[7] else row for row in rows[:-1]]
    both = {(row.module, row.architecture) for row in (rows[7], rows[-1])}
    assert stale(gone) == both


def test_sources_are_those_that_a_kernel_is_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"module.cu": ("tree_merge", "norm_add"), "products.cu": ("product_int8_few",)}
    of = {name: sources_of(file, name) for file, all_ in names.items() for name in all_}
    assert len(set(of.values())) == 3
    shutil.copytree(kernels_folder() / "cuda", tmp_path / "cuda")
    merge = tmp_path / "cuda" / "tree_merge.cuh"
    merge.write_text("// said otherwise\n" + merge.read_text().replace("own = ", "own  = "))
    monkeypatch.setattr(table_of_compiled, "kernels_folder", lambda: tmp_path)
    now = sources_of.__wrapped__
    assert now("module.cu", "tree_merge") == of["tree_merge"]
    merge.write_text(merge.read_text().replace("all - start < 2", "all - start < 3"))
    assert now("module.cu", "tree_merge") != of["tree_merge"]
    assert now("module.cu", "norm_add") == of["norm_add"]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_a_module_still_compiles_without_spilling() -> None:
    """One of them, so that the tests stay quick; `python -m benchmarks.gpu.compiled` does all."""
    assert all(row.is_sound for row in compiled(ModuleKey("bf16", 128), "90a", "nvcc"))


def machine_code_table() -> list[machine_code.Loop]:
    with machine_code.TABLE.open() as file:
        return [
            machine_code.Loop(
                *(row[name] for name in ("module", "architecture", "kernel")),
                *(int(row[name]) for name in list(row)[3:]),
            )
            for row in csv.DictReader(file)
        ]


def test_the_machine_code_is_within_its_budgets() -> None:
    rows = machine_code_table()
    assert machine_code.over_budget(rows) == []
    large = [row for row in rows if row.kernel == "tree_attention_large" and row.begin >= 0]
    assert [row.matrix for row in large] == [128, 128]
    over = replace(large[0], instructions=1300, calls=1)
    spins = replace(rows[0], spinning=1)
    assert len(machine_code.over_budget([over, spins])) == 3


def test_the_shortest_way_leaves_out_what_a_plain_tile_does_not_do() -> None:
    code = """
        /*0010*/ MOV R1, R2 ;
        /*0020*/ @P0 BRA 0x50 ;
        /*0030*/ FADD R1, R2 ;
        /*0040*/ MUFU.EX2 R1, R2 ;
        /*0050*/ HMMA.16816.F32 R1, R2 ;
        /*0060*/ BRA.DIV ~URZ, 0x90 ;
        /*0070*/ @!P1 BRA 0x10 ;
        /*0080*/ EXIT ;
        /*0090*/ CALL.REL.NOINC 0x10 ;
        /*00a0*/ BRA 0x70 ;
    """
    whole, loop = machine_code.loops(code)
    assert len(whole[1]) == 10
    assert loop == (0x10, ["MOV", "BRA", "HMMA.16816.F32", "BRA.DIV", "BRA"])


@pytest.mark.skipif(
    shutil.which("nvcc") is None or shutil.which("cuobjdump") is None,
    reason="no nvcc, or no cuobjdump",
)
def test_the_kernels_are_still_those_of_the_table_of_machine_code() -> None:
    key = ModuleKey("bf16", 128)
    rows = list(machine_code.disassembled(key, "90a", "cuobjdump"))
    recorded = [
        row for row in machine_code_table() if (row.module, row.architecture) == (key.name, "90a")
    ]
    assert rows == recorded, "python -m benchmarks.gpu.machine_code --write"


def test_a_kernel_that_does_not_fit_has_no_resident_block() -> None:
    assert resident("86", 128, 255, 100 << 10) == 0
    assert resident("90a", 128, 128, 0) == 4
    assert resident("90a", 1024, 64, 0) == 1


def test_the_model_is_bounded_by_its_limits() -> None:
    shape, hardware = model.Shape(), model.Hardware()
    for branches, prefix, own in [(16, 512, 64), (64, 512, 16)]:
        found = model.step(model.fork(branches, prefix, own), shape, hardware)
        assert found.once <= found.tree < found.paged
    alone = model.step(model.fork(4, 0, 512), shape, hardware)
    assert alone.once == alone.tree == alone.paged


def test_keys_of_8_bits_are_half_of_the_bytes_and_bounded_by_making_numbers_of_them() -> None:
    hardware = model.Hardware()
    wide, small = (model.Shape(kept_bytes=size) for size in (2, 1))
    alone, shared = model.fork(4, 0, 512), model.fork(64, 2048, 64)
    for batch in (alone, shared):
        of_16, of_8 = (model.step(batch, shape, hardware) for shape in (wide, small))
        assert of_8.paged == pytest.approx(of_16.paged / 2)
        assert of_8.once <= of_8.tree
    assert model.step(alone, small, hardware).tree == model.step(alone, small, hardware).once
    freely = replace(hardware, integers_per_second=1e18)
    assert model.step(shared, small, freely).tree < model.step(shared, small, hardware).tree


def test_products_are_bounded_by_what_they_read() -> None:
    shape, hardware = model.Shape(), model.Hardware()
    least = shape.weight_bytes / hardware.bytes_per_second
    found = {
        kind: [model.products(tokens, kind, shape, hardware) for tokens in (1, 32, 64, 2048)]
        for kind in model.WEIGHTS
    }
    for kind, bytes_each in model.WEIGHTS.items():
        assert found[kind] == sorted(found[kind])
        assert found[kind][0] >= least * bytes_each / 2
    assert found["int4"][0] < found["int8"][0] == found["fp8"][0] < found["16 bits"][0]
    assert found["int8"][3] > found["16 bits"][3], "unpacking is not free"


@pytest.mark.skipif(host_compiler() is None, reason="no C++ compiler")
def test_the_benchmark_of_kernels_runs_on_the_emulator(tmp_path: Path) -> None:
    """Its figures mean nothing there; that it can be run on a GPU one day is what is shown."""
    asked = ["--device", "emulated", "--parts", "kernels", "--json", str(tmp_path / "out.json")]
    assert run(gpu_benchmark.main, asked) == 0
    rows = json.loads((tmp_path / "out.json").read_text())["kernels"]
    assert len(rows) == 6
    assert all(row["microseconds"] > 0 for row in rows[2:])  # behind two rates


def test_the_benchmark_says_where_there_is_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(gpu_benchmark.main, ["--device", "cuda:77"]) == 1
    assert "device 'cuda:77' cannot be used" in capsys.readouterr().out


def test_the_newest_features_of_an_architecture_are_used_where_they_are_known() -> None:
    assert [architecture_of(8, 0), architecture_of(9, 0), architecture_of(10, 0)] == [
        "80",
        "90a",
        "100a",
    ]
    assert architecture_of(12, 1) == "121"


class FakeNvrtc:
    """Answers like cuda.bindings.nvrtc; what it is asked for is kept."""

    nvrtcResult = SimpleNamespace(NVRTC_SUCCESS=SimpleNamespace(name="NVRTC_SUCCESS"))

    def __init__(self, fails: bool) -> None:
        self.status = SimpleNamespace(name="ERROR") if fails else self.nvrtcResult.NVRTC_SUCCESS
        self.compilations: list[list[bytes]] = []
        self.headers: list[bytes] = []

    def _done(self, *answer: object) -> tuple[object, ...]:
        return (self.nvrtcResult.NVRTC_SUCCESS, *answer)

    def nvrtcVersion(self) -> tuple[object, ...]:
        return self._done(13, 0)

    def nvrtcCreateProgram(self, *given: object) -> tuple[object, ...]:
        self.headers = given[4]  # type: ignore[assignment]
        return self._done("program")

    def nvrtcCompileProgram(self, _: object, count: int, options: list[bytes]) -> tuple[object]:
        assert count == len(options)
        self.compilations.append(options)
        return (self.status,)

    def nvrtcGetCUBINSize(self, _: object) -> tuple[object, ...]:
        return self._done(5)

    def nvrtcGetCUBIN(self, _: object, room: bytes) -> tuple[object, ...]:
        assert len(room) == 5
        return self._done()

    def nvrtcGetProgramLogSize(self, _: object) -> tuple[object, ...]:
        return self._done(3)

    def nvrtcGetProgramLog(self, _: object, room: bytes) -> tuple[object, ...]:
        return self._done()

    def nvrtcDestroyProgram(self, _: object) -> tuple[object, ...]:
        return self._done()


def test_a_cubin_is_compiled_once(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvrtc(fails=False)
    monkeypatch.setattr(cuda_driver, "_nvrtc", lambda: fake)
    monkeypatch.setenv("LMPROG_CACHE", str(tmp_path))
    key = ModuleKey("bf16", 64)
    first = cuda_driver.compiled(key, "90a")
    assert cuda_driver.compiled(key, "90a") == first
    assert len(fake.compilations) == 1
    cuda_driver.compiled(key, "80")
    assert len(fake.compilations) == 2
    assert b"-arch=sm_90a" in fake.compilations[0]
    assert b"-DLM_TYPE=bf16" in fake.compilations[0]
    assert b"dev.cuh" in fake.headers


def test_what_the_compiler_refuses_is_said(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_driver, "_nvrtc", lambda: FakeNvrtc(fails=True))
    monkeypatch.setenv("LMPROG_CACHE", str(tmp_path))
    with pytest.raises(NotSupported, match="the kernels cannot be compiled"):
        cuda_driver.compiled(ModuleKey("bf16", 64), "90a")
