"""`python -m benchmarks.gpu`: its parts run, without a GPU on the emulated device; what fails or is
not installed is named; figures of no GPU never come into the documentation.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import __main__ as gpu_benchmark
from benchmarks.gpu import ablations, engines
from benchmarks.gpu.engines import Texts, Workload
from benchmarks.models import make_comparable
from benchmarks.peers.compare import Side
from benchmarks.runner import run
from lmprog.native import compiler
from lmprog.runtime.engine.model.locate import NANO

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
FAKE = """
import time
from benchmarks.peers.side_loop import serve
def run(case):
    time.sleep({sleep})
    return [[5] * min({most}, case["out"]) for _ in case["own"]]
serve(run)
"""


def fake(name: str, most: int = 99, sleep: float = 0.0) -> Side:
    side = Side(name, [sys.executable, "-c", FAKE.format(most=most, sleep=sleep)])
    side.start()
    return side


@needs_compiler
def test_engines_are_compared_on_the_same_tokens(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    asked = ["--device", "emulated", "--parts", "engines", "--rounds", "1"]
    assert run(gpu_benchmark.main, [*asked, "--json", str(tmp_path / "out.json")]) == 0
    found = json.loads((tmp_path / "out.json").read_text())["engines"]
    assert list(found["rows"]) == ["lmprog tree", "transformers continuous batching"]
    ours, theirs = found["rows"].values()
    assert list(ours) == list(engines.TINY)
    assert list(theirs) == [name for name, one in engines.TINY.items() if not one.options]
    for name, times in [*ours.items(), *theirs.items()]:
        assert times["same"] == [1.0], name
        assert len(times["whole"]) == 1
        assert len(times["first"]) == (not engines.TINY[name].options)
    assert set(found["missing"]) == {"lmprog flashinfer", "vLLM", "SGLang", "mini-sglang"}


@needs_compiler
def test_each_ablation_runs_beside_the_default_and_gives_its_tokens() -> None:
    found = {one.name: one for one in ablations.measure_ablations("emulated", 0, 1e6)}
    assert list(found) == list(ablations.VARIANTS)
    assert "FlashInfer" in found.pop("attention flashinfer").missing
    for name, one in found.items():
        assert not one.missing, one
        assert one.rate > 0
        assert one.default_rate > 0
        assert one.same == 1.0 or name == "fp8 keys and values"


@needs_compiler
def test_what_an_ablation_switches_off_is_off(tmp_path: Path) -> None:
    make_comparable(tmp_path, "tiny")
    base = {"device": "emulated", "dtype": "float32", "kv_memory_mb": 2, "context_len": 64}
    replays, begun = [], []
    for name in ("default", "graphs off", "one step ahead off"):
        variant = ablations.VARIANTS.get(name, ablations.Variant({}))
        stepped = ablations.Stepped(tmp_path, base | {"speculation": "off"}, variant)
        after = stepped.engine.forward_after
        counted: list[int] = []

        def forward_after(*given: Any, after: Any = after, counted: Any = counted) -> Any:
            counted.append(1)
            return after(*given)

        stepped.engine.forward_after = forward_after
        stepped.run(" a text", [" one", " two"], 4)
        replays.append(stepped.engine.num_replays)
        begun.append(len(counted))
    assert [one > 0 for one in replays] == [True, False, True]
    assert [one > 0 for one in begun] == [True, True, False]


def test_a_variant_that_cannot_run_is_named() -> None:
    def load() -> ablations.Stepped:
        raise RuntimeError("no memory\nand a long trace")

    none: Any = None
    one = ablations._tried("virtual pool", none, load, none, (ablations.TINY, 1))
    assert one.missing == "no memory"
    assert "| virtual pool | no memory |" in ablations.table([one])


def test_sides_that_are_slow_or_short_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_ANSWER_SECONDS", 20.0)
    sides = [fake("lmprog tree"), fake("one token short", most=4), fake("short", most=2)]
    workloads = {"some": Workload(4, 3, 2, 5)}
    found = engines.run_round(sides, Texts(NANO), workloads, "1")
    assert list(found) == ["lmprog tree", "one token short"]
    assert found["one token short"]["some"][2] == 1.0
    monkeypatch.setattr(engines, "_ANSWER_SECONDS", 0.1)
    sides.append(fake("slow", sleep=1e3))
    engines.run_round(sides[3:], Texts(NANO), workloads, "2")
    for side in sides:
        side.close()
    missing = [side.missing for side in sides]
    short, ended = "it gave fewer tokens than asked for", "it ended before its time"
    assert missing == ["", "", short, ended]


def test_a_tree_of_texts_shares_its_levels() -> None:
    case = Texts(NANO).case(Workload(5, 2, 3, 4, levels=2), "1")
    assert len(case["own"]) == 4
    assert {len(one) for one in case["own"]} == {6}
    assert len({tuple(one[:3]) for one in case["own"]}) == 2


def test_a_part_that_fails_is_said_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> tuple[str, Any]:
        raise RuntimeError("this shape does not fit")

    def works(asked: gpu_benchmark.Asked, _: float) -> tuple[str, Any]:
        return f"a table of {asked.device}", []

    monkeypatch.setattr(gpu_benchmark, "MEASURES", {"kernels": fails, "engines": works})
    assert run(gpu_benchmark.main, ["--device", "emulated", "--parts", "kernels,engines"]) == 1
    said = capsys.readouterr().out
    assert "kernels: failed: this shape does not fit" in said
    assert "a table of emulated" in said


def test_figures_of_no_gpu_never_come_into_the_documentation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = gpu_benchmark.PAGE.read_text()
    with pytest.raises(SystemExit):
        run(gpu_benchmark.main, ["--device", "emulated", "--docs"])
    assert "has figures of GPUs only" in capsys.readouterr().err
    assert gpu_benchmark.PAGE.read_text() == before


def test_a_part_is_renewed_and_the_others_stay(tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    page.write_text(gpu_benchmark.PAGE.read_text())
    gpu_benchmark.write({"engines": gpu_benchmark.section("engines", "GPU A", "| one |")}, page)
    gpu_benchmark.write({"kernels": gpu_benchmark.section("kernels", "GPU B", "| two |")}, page)
    gpu_benchmark.write({"engines": gpu_benchmark.section("engines", "GPU C", "| three |")}, page)
    text = page.read_text()
    assert "GPU A" not in text
    assert "Nothing yet" not in text
    assert text.index("GPU B") < text.index("| two |") < text.index("GPU C")
    assert "| three |" in text
    before, after = (
        gpu_benchmark.PAGE.read_text().partition(gpu_benchmark.MARKS[0])[i] for i in (0, 2)
    )
    assert text.startswith(before)
    assert text.endswith(after.partition(gpu_benchmark.MARKS[1])[2])
