"""The shipped tasks: their rows are those that the script makes, and their programs run on nano."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lmprog
from examples.tasks.tasks import TASKS
from lmprog.evaluation.rows import rows_of
from tests.house import ROOT

FOLDER = ROOT / "examples" / "tasks"


def test_the_rows_are_made_by_the_script_and_none_is_in_both_halves(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "make_rows.py", tmp_path)
    subprocess.run([sys.executable, str(tmp_path / "make_rows.py")], check=True)
    files = sorted(FOLDER.glob("*.csv"))
    assert len(files) == 6
    for file in files:
        assert file.read_text() == (tmp_path / file.name).read_text()
        assert len(list(rows_of(file)[0])) == 200
    for _, rows, _ in TASKS.values():
        train, held_out = (
            {next(iter(row.values())) for row in rows_of(FOLDER / f"{rows}_{part}.csv")[0]}
            for part in ("train", "held_out")
        )
        assert not train & held_out


@pytest.mark.parametrize("name", TASKS)
def test_a_task_runs_on_the_shipped_model(name: str) -> None:
    program, rows, metric = TASKS[name]
    some = list(rows_of(FOLDER / f"{rows}_held_out.csv")[0])[:4]
    found = lmprog.evaluate(program, some, metric, on_error="raise")
    assert len(found) == 4
    assert 0 <= found.score <= 1
    assert (found.usage.generated == 0) == (name == "sort"), "a choice is scored"
