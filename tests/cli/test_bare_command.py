"""A runtime without HTTP: what ends it, and with which exit code."""

from __future__ import annotations

import os
import signal
import time

import pytest

from lmprog.cli import bare
from lmprog.cli.arguments import parser
from lmprog.launch import RuntimeProcess
from lmprog.launch.restarts import HangTimeouts


def test_a_runtime_that_hangs_is_ended_so_that_it_is_restarted(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It listens all the while: a probe of its port finds nothing wrong."""
    stopped: list[RuntimeProcess] = []
    original = bare.RuntimeWatch

    class Watch(original):  # type: ignore[misc,valid-type]
        def __init__(self, runtime: RuntimeProcess) -> None:
            super().__init__(runtime, HangTimeouts(silence=0.5, stall=1.0))
            ends = time.monotonic() + 60
            while not self._progress._progress and time.monotonic() < ends:
                assert self.goes_on(), "one that answers goes on"
                time.sleep(0.05)
            os.kill(runtime.pid, signal.SIGSTOP)
            stopped.append(runtime)

    monkeypatch.setattr(bare, "RuntimeWatch", Watch)
    given = parser().parse_args(["serve", "dummy:tiny", "--no-http", "--threads", "1"])
    assert bare.run(given) == 1
    assert not stopped[0].alive
    assert "the runtime hangs and is ended: its loop has not answered" in capfd.readouterr().err
