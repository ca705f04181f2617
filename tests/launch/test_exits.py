"""However a process with an engine in it ends, it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lmprog
from lmprog import wire
from lmprog.errors import RuntimeGone
from lmprog.native import library

HERE = Path(__file__).parent
SOURCE = str(Path(wire.__file__).parents[2])
HUNG = 120.0
"""Seconds after which a process that takes one or two has not ended."""
CODES = {"raise": 1, "interrupt": 130}


@pytest.mark.skipif(library("engine") is None, reason="no C++ compiler")
@pytest.mark.parametrize(
    "way",
    [
        *("end", "raise", "exit", "interrupt", "close", "delete", "cycle", "fork", "thread"),
        *("daemon", "held"),
    ],
)
def test_a_process_with_an_engine_ends_in_every_way(way: str) -> None:
    """`held`: while another thread, which stands still by then, holds the lock of the engine's."""
    ended = subprocess.run(
        [sys.executable, str(HERE / "exits.py"), way],
        timeout=HUNG,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
        check=False,
    )
    assert ended.returncode in (CODES.get(way, 0), -2 if way == "interrupt" else 0), ended.stderr


def test_a_runtime_whose_device_is_lost_ends_and_its_programs_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), SOURCE]))

    @lmprog.function
    def tale(s: lmprog.Branch) -> str:
        s += "Once"
        return str(s.gen(max_tokens=50, ignore_eos=True))

    with lmprog.Runtime("nano", module="lost_engine_child") as runtime:
        with pytest.raises(RuntimeGone, match="exit code 1"):
            tale.using(backend=runtime).run()
        assert runtime.process.wait(HUNG) == 1
