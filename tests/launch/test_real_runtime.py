"""Life and death of the real runtime process, on the shipped model, in the middle of its work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import lmprog
from lmprog.errors import LmprogError, RuntimeGone

from .busy_parent import endless

HERE = Path(__file__).parent


def runs(pid: int) -> bool:
    """A zombie does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_runtime_killed_in_its_work_fails_the_program_within_two_seconds() -> None:
    with lmprog.Runtime("nano") as runtime:
        ended: list[float] = []
        caught: list[BaseException] = []

        def program() -> None:
            try:
                endless.using(backend=runtime).run()
            except* RuntimeGone as group:  # one for each branch
                caught.extend(group.exceptions)
                ended.append(time.monotonic())

        thread = threading.Thread(target=program)
        thread.start()
        time.sleep(1.0)
        assert thread.is_alive()
        start = time.monotonic()
        os.kill(runtime.process.pid, signal.SIGKILL)
        thread.join(10.0)
        assert len(caught) == 16
        assert "SIGKILL" in str(caught[0])
        assert ended[0] - start < 2.0


def test_a_busy_runtime_ends_within_two_seconds_of_its_killed_parent() -> None:
    source = str(Path(lmprog.__file__).parents[1])
    parent = subprocess.Popen(
        [sys.executable, str(HERE / "busy_parent.py")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert parent.stdout
    pid = int(parent.stdout.readline())
    time.sleep(1.0)
    assert runs(pid)
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 2.0
    while runs(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not runs(pid)


def test_a_busy_runtime_stops_well_when_asked() -> None:
    runtime = lmprog.Runtime("nano")
    stream = endless.using(backend=runtime).run(stream=True)
    time.sleep(0.5)
    start = time.monotonic()
    runtime.close()
    assert time.monotonic() - start < 5.0
    assert runtime.process.exit_code == 0
    with pytest.raises(LmprogError):
        stream.text()
