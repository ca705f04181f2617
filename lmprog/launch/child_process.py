"""A child process with its two pipes, its folder and its log: started, waited for, ended; and how
the signals that end the parent are seen meanwhile. A command that runs on every machine becomes
another rank of the model here, where it is not the first.

Knows processes and what they are called. Knows neither channels nor what other ranks do.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from lmprog.config import RuntimeConfig
from lmprog.errors import Detail, LmprogError, RuntimeGone, from_wire
from lmprog.launch.parent_pipe import FOLDER_VARIABLE, config_to_json
from lmprog.linux import SignalWatch, await_end, busy_seconds

_WAIT_VARIABLES = frozenset({"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"})
"""Environment variables that set how OpenMP threads wait for each other."""
STACK_SIGNAL = signal.SIGUSR1
"""Upon this a runtime writes the stacks of its threads to its log."""
_STACK_SECONDS = 1.0  # for writing that, at most: a full pipe may hold it up for ever
_BLIND_STACK_SECONDS = 0.4  # where the system does not tell when it is written
_NUM_LAST_LINES = 12
_LOG_TAIL_BYTES = 8192


class Child:
    """A running child. `command` gets the two descriptors appended; `folder` is removed with it.

    The child's output goes to a log in the folder, or (`keep_log=False`) to our own stderr.
    """

    def __init__(self, command: Sequence[str], folder: Path, *, keep_log: bool = True) -> None:
        self.folder = folder
        self._log = folder / "runtime.log"
        self._owner = os.getpid()
        self._buffer = b""
        self._closing = threading.Lock()
        self._ready_fd, ready_write = os.pipe()
        parent_read, self._life_fd = os.pipe()
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    [*command, "--ready-fd", str(ready_write), "--parent-fd", str(parent_read)],
                    stdin=subprocess.DEVNULL,
                    stdout=log if keep_log else sys.stderr,
                    stderr=log if keep_log else sys.stderr,
                    pass_fds=(ready_write, parent_read),
                    start_new_session=True,  # Ctrl-C in a terminal is the parent's business
                    env={**environment_of_children(), FOLDER_VARIABLE: str(folder)},
                )
        except BaseException:
            os.close(self._ready_fd)
            os.close(self._life_fd)
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            os.close(ready_write)
            os.close(parent_read)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal's number where a signal ended it."""
        return self._process.poll()

    def wait_ready(self, timeout: float, show: Callable[[str], None]) -> dict[str, Detail]:
        """The facts that the child reports once it serves.

        Raises the child's own error where it reports one, `RuntimeGone` where it ends, or is not
        ready after `timeout` seconds. `show` is given each stage of the start.
        """
        deadline = time.monotonic() + timeout
        stage = "starts"
        while (left := deadline - time.monotonic()) > 0:
            line = self._read_line(left)
            if line is None:
                continue
            if not line:
                raise self._ended("ended before it was ready")
            report = json.loads(line)
            if "stage" in report:
                stage = str(report["stage"])
                show(stage)
            elif "error" in report:
                raise self._reported(report["error"])
            else:
                return {name: value for name, value in report.items() if name != "ready"}
        raise RuntimeGone(
            f"The runtime was not ready after {timeout:g} seconds; its last report: it {stage}."
            f"{self.last_lines()}"
        )

    def wait(self, timeout: float | None) -> int | None:
        """The exit code, or None after `timeout` seconds."""
        began = time.monotonic()
        if timeout is not None and self.exit_code is None:
            await_end(self.pid, timeout)
            timeout = max(0.0, began + timeout - time.monotonic())
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def busy_seconds(self) -> float | None:
        """See `linux.busy_seconds`; None once it has ended."""
        if self.exit_code is not None:
            return None
        return busy_seconds(self.pid)

    def write_stacks(self) -> None:
        """Has the child write the stacks of its threads to its log, and waits until it has, for a
        moment at most. One that was stopped goes on.
        """
        if self.exit_code is not None:
            return
        watch = SignalWatch(self.pid, STACK_SIGNAL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, STACK_SIGNAL)
            os.kill(self.pid, signal.SIGCONT)  # a stopped process could not write
        if not watch.can_tell:
            time.sleep(_BLIND_STACK_SECONDS)
            return
        deadline = time.monotonic() + _STACK_SECONDS
        # Twice: for an instant it is neither pending nor blocked yet.
        while not (watch.is_handled() and watch.is_handled()) and time.monotonic() < deadline:
            time.sleep(0.01)

    def stop(self, grace: float) -> None:
        """Sends SIGTERM, after `grace` seconds SIGKILL, and removes the folder. Without a grace
        only SIGKILL: a child must not begin an end that it has no time for. Safe to repeat, also
        at the same time in several threads.

        Does nothing in a process that was forked from the one that started the child.
        """
        if os.getpid() != self._owner:
            return
        if self._process.poll() is None:
            if grace:
                self._process.send_signal(signal.SIGTERM)
            if not grace or self.wait(grace) is None:
                self._process.kill()
                self._process.wait()
        with self._closing:  # a descriptor that is closed twice may be somebody else's by then
            descriptors = self._ready_fd, self._life_fd
            self._ready_fd = self._life_fd = -1
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)
        shutil.rmtree(self.folder, ignore_errors=True)

    def last_lines(self) -> str:
        """The end of the child's log, to append to a message; empty where there is none."""
        try:
            with self._log.open("rb") as log:
                log.seek(max(0, self._log.stat().st_size - _LOG_TAIL_BYTES))
                text = log.read().decode(errors="replace").strip()
        except OSError:
            return ""
        if not text:
            return ""
        return "\nThe last lines of its log:\n" + "\n".join(
            f"  {line}" for line in text.splitlines()[-_NUM_LAST_LINES:]
        )

    def describe_end(self) -> str:
        """How the child ended, and the end of its log; empty while it runs."""
        code = self.wait(1.0)  # its sockets close a moment before it can be waited for
        return "" if code is None else f"Its process {_how(code)}.{self.last_lines()}"

    def _read_line(self, timeout: float) -> bytes | None:
        """One line from the child; empty at its end, None after `timeout` seconds."""
        poller = select.poll()
        poller.register(self._ready_fd, select.POLLIN)
        while b"\n" not in self._buffer:
            if not poller.poll(timeout * 1000):
                return None
            piece = os.read(self._ready_fd, 65_536)
            if not piece:
                return b""
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _ended(self, what: str) -> RuntimeGone:
        code = self.wait(2.0)
        how = "its pipe was closed" if code is None else f"it {_how(code)}"
        return RuntimeGone(f"The runtime {what}: {how}.{self.last_lines()}")

    def _reported(self, error: dict[str, object]) -> LmprogError:
        details = error.get("details")
        return from_wire(
            str(error["code"]), str(error["message"]), details if isinstance(details, dict) else {}
        )


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    name = f"signal {-code}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-code).name
    more = " (often because the machine ran out of memory)" if name == "SIGKILL" else ""
    return f"was ended by {name}{more}"


def environment_of_children() -> dict[str, str]:
    """Ours, with the path of this package where it is not installed, since the child ignores the
    current folder.

    Threads of GNU's OpenMP spin while they wait for others, so long that on a busy machine they
    occupy the core that the others need; a tenth of that gains as much on an idle one.
    """
    environment = dict(os.environ)
    if not _WAIT_VARIABLES & environment.keys():
        environment["GOMP_SPINCOUNT"] = "20000"
    root = str(Path(__file__).parents[2])
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [root, environment.get("PYTHONPATH", "")])
        )
    return environment


def python(module: str) -> list[str]:
    """The command that runs a module; `-P`, so that files in the current folder shadow no
    module.
    """
    return [sys.executable, "-P", "-m", module]


_MODULE = "lmprog.runtime.ranks.rank_main"


def become_other_rank(config: RuntimeConfig) -> None:
    """Replaces this process by the rank that it is to be; returns where it is rank 0, or where
    ranks are not started from outside.
    """
    if config.tp_ranks != "torchrun" or os.environ.get("RANK", "0") == "0":
        return
    rank = os.environ["RANK"]
    sys.stderr.write(f"lmprog: rank {rank} of {config.model}; rank 0 serves it\n")
    command = [*python(_MODULE), "--config-json", config_to_json(config)]
    os.execve(command[0], command, environment_of_children())
