"""A runtime without HTTP: what ends it, and with which exit code."""

from __future__ import annotations

import os
import signal
import time

import pytest

from lmprog import wire
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
            super().__init__(runtime, HangTimeouts(silence=0.5, stall=1.0, frozen=1.0))
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


class Looked:
    """A runtime that computes nothing, and the clock of whoever looks at it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.answers = True
        self._asked = False
        monkeypatch.setattr(bare.time, "monotonic", lambda: self.now)
        self.watch = bare.RuntimeWatch(self)  # type: ignore[arg-type]

    def looks(self, seconds: float) -> bool:
        """Whether it goes on after so long without and with a look."""
        ends = self.now + seconds
        while self.now < ends:
            self.now += bare._LOOK
            if not self.watch.goes_on():
                return False
        return True

    def connect(self, name: str) -> Looked:
        return self

    def busy_seconds(self) -> float:
        return 0.0

    def send(self, ops: list[wire.Op]) -> None:
        self._asked = True

    def receive(self, timeout: float) -> list[wire.Reply]:
        if not (self.answers and self._asked):
            return []
        self._asked = False
        return [wire.Described(1, {"running": 0.0}, {})]


def test_one_that_stands_still_is_found_early_enough_to_start_again_within_10_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = Looked(monkeypatch)
    assert looked.looks(60.0)
    looked.answers, stood = False, looked.now
    assert not looked.looks(60.0)
    assert bare.HANGS.frozen < looked.now - stood <= bare.HANGS.frozen + 1.0 <= 5.0
    assert "computes nothing" in (looked.watch.trouble or "")


def test_a_pause_of_the_whole_container_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch stood still as long as the runtime, which has had no time to answer since."""
    looked = Looked(monkeypatch)
    assert looked.looks(5.0)
    for _ in range(8):  # from each moment between two questions
        looked.answers, looked.now = False, looked.now + 3600.0
        assert looked.looks(0.1)
        looked.answers = True
        assert looked.looks(1.1)
