"""The command for a first day on a GPU: it runs on the emulated device, and loses nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import ablations, day, engines
from benchmarks.runner import run
from lmprog.native import compiler


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_a_dry_run_writes_a_line_as_each_thing_ends_and_goes_on_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines and ablations have tests of their own; here they fail, and the rest goes on."""

    def failing(*_: object) -> object:
        raise RuntimeError("no peer")

    monkeypatch.setattr(engines, "measure_engines", failing)
    monkeypatch.setattr(ablations, "measure_ablations", lambda *_: [])
    out = tmp_path / "day.jsonl"
    asked = ["--device", "emulated", "--out", str(out)]
    assert run(day.main, asked) == 1
    first = lines(out)
    assert [one["thing"] for one in first] == [
        "twins f1664",
        "trees f1664",
        "copy",
        "products",
        "tree attention 2 x 64 + 16, shared",
        "tree attention 2 x 64 + 16, apart",
        "sampler 1 rows",
        "sampler 2 rows",
        "engines",
        "ablations",
    ]
    assert first[0]["found"]["wrong"] == []
    assert first[1]["found"]["is_right"]
    assert first[8]["error"] == "RuntimeError: no peer"
    monkeypatch.setattr(day.engines, "measure_engines", failing)
    assert run(day.main, asked) == 1
    assert [one["thing"] for one in lines(out)[len(first) :]] == ["engines"]


def test_what_is_carried_runs_by_itself_and_is_small(tmp_path: Path) -> None:
    folder = tmp_path / "carried"
    assert 1 << 20 < day.carry(folder, wheels=()) < day.MOST_CARRIED
    assert (folder / "kernels" / "cuda" / "module.cu").is_file()
    assert (folder / "lmprog" / "nano").is_dir()


def test_tests_of_results_are_run_on_the_device_that_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = day.Asked("cuda:1", 1, 0.0)
    assert any(name == "tests/cuda" for name, _ in day.things(asked))
    told = "import os; print(os.environ['LMPROG_TEST_DEVICE']); import sys; sys.exit({})"
    monkeypatch.setattr(day, "_TESTS", told.format(0))
    assert day.tested(asked) == "cuda:1\n"
    monkeypatch.setattr(day, "_TESTS", told.format(1))
    with pytest.raises(RuntimeError, match="cuda:1"):
        day.tested(asked)


def test_nothing_is_begun_when_the_time_is_over(tmp_path: Path) -> None:
    out = tmp_path / "day.jsonl"
    assert day.run_all(iter([("late", lambda: 1)]), out, lambda: True) == 0
    assert not out.exists()
