"""`lmprog evaluate`: a program of a file on the rows of a file, with an exit code for pipelines."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmprog.cli import main
from lmprog.evaluation.evaluated import Evaluation
from lmprog.testing import Scripted

PROGRAM = """
import lmprog

@lmprog.function
def echo(s: lmprog.Branch, word: str) -> str:
    s.instruction("task", "Say")
    s += f" {word}:"
    return s.gen(max_tokens=8).value

@lmprog.function
def worse(s: lmprog.Branch, word: str) -> str:
    s += f"Mumble {word}:"
    return s.gen(max_tokens=8).value

def is_right(value, row):
    return value == row["word"]
"""


def say(prompt: str) -> str:
    return "?" if "Mumble" in prompt or "w9" in prompt else prompt.split()[-1].rstrip(":")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "echoed.py").write_text(PROGRAM)
    (tmp_path / "rows.csv").write_text("word\n" + "".join(f"w{nth}\n" for nth in range(10)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lmprog.cli.evaluate.backend_for", lambda given: Scripted(say))
    return tmp_path


def test_the_score_is_printed_and_decides_on_the_exit_code(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = ["evaluate", "echoed.py::echo", "--rows", "rows.csv", "--metric"]
    assert main([*plain, "echoed.py::is_right", "--at-least", "0.9"]) == 0
    assert "score 0.900 [" in capsys.readouterr().out
    assert main([*plain, "word", "--at-least", "0.95"]) == 1
    assert "the score 0.900 is below 0.95" in capsys.readouterr().err


def test_it_writes_a_page_and_json_and_goes_on_from_a_checkpoint(folder: Path) -> None:
    given = ["evaluate", "echoed.py::echo", "--rows", "rows.csv", "--metric", "word"]
    kept = ["--checkpoint", "kept.jsonl", "--html", "page.html", "--save", "found.json"]
    assert main([*given, *kept]) == main([*given, *kept]) == 0
    assert Evaluation.load(folder / "found.json").score == 0.9
    assert "<table class=rows" in (folder / "page.html").read_text()
    assert len((folder / "kept.jsonl").read_text().splitlines()) == 11


def test_a_program_that_is_worse_beyond_noise_fails(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--rows", "rows.csv", "--metric", "word", "--against"]
    assert main(["evaluate", "echoed.py::echo", *given, "echoed.py::worse"]) == 0
    assert "difference +0.900" in capsys.readouterr().out
    assert main(["evaluate", "echoed.py::worse", *given, "echoed.py::echo"]) == 1


def test_what_is_not_there_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["evaluate", "echoed.py::echo", "--rows", "rows.csv", "--metric"]
    assert main([*given, "echoed.py::is_rihgt"]) == 2
    assert "has no 'is_rihgt'" in capsys.readouterr().err
    assert main([*given, "word", "--tuned", "none.json"]) == 2
    assert main([*given, "word", "--against", "echoed.py::worse", "--save", "x"]) == 2
