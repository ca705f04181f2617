"""Of another process it is known whether it has handled a signal: while it is stopped, while its
handler runs, and after."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from lmprog.linux import SignalWatch, is_linux

NUMBER = signal.SIGUSR1
CHILD = """
import faulthandler, os, signal, sys, threading

blocked = threading.Event()

def blocks():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    blocked.set()
    sys.stdin.read()

threading.Thread(target=blocks, daemon=True).start()
blocked.wait()
os.write(2, bytes(int(sys.argv[1])))
faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
print("ready", flush=True)
while True:
    signal.pause()
"""
"""One thread blocks the signal, as those of ZeroMQ do. Stderr is filled before."""

pytestmark = pytest.mark.skipif(not is_linux(), reason="other systems do not tell")


@contextmanager
def child(written: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", CHILD, str(written)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as started:
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == b"ready\n"
            yield started
        finally:
            started.kill()


def until(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not look():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def written_by(started: subprocess.Popen[bytes]) -> bytes:
    assert started.stderr is not None
    os.set_blocking(started.stderr.fileno(), False)
    return started.stderr.read() or b""


def is_stopped(started: subprocess.Popen[bytes]) -> bool:
    with open(f"/proc/{started.pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "T"


def test_a_stopped_process_has_not_handled_it_and_has_once_it_goes_on() -> None:
    with child() as started:
        started.send_signal(signal.SIGSTOP)
        until(lambda: is_stopped(started))
        watch = SignalWatch(started.pid, NUMBER)
        assert watch.can_tell
        started.send_signal(NUMBER)
        assert not watch.is_handled()
        started.send_signal(signal.SIGCONT)
        until(lambda: watch.is_handled() and watch.is_handled())
        assert b"most recent call first" in written_by(started)


def test_it_is_not_handled_while_its_handler_runs() -> None:
    """It writes to a pipe that is full."""
    with child(written=65_536) as started:
        watch = SignalWatch(started.pid, NUMBER)
        started.send_signal(NUMBER)
        until(lambda: bool(watch._blocked() - watch._blocked_before))
        assert not watch.is_handled()
        text = b""
        while not watch.is_handled():
            text += written_by(started)
        assert b"most recent call first" in text + written_by(started)


def test_one_that_has_ended_is_not_waited_for() -> None:
    with child() as started:
        watch = SignalWatch(started.pid, NUMBER)
        started.kill()
        started.wait()
        assert watch.is_handled()
