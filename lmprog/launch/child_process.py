"""A child process with its two pipes, its folder and its log: started, waited for, ended, never
left behind.

This module knows processes. It knows neither channels nor configurations: the command is given to
it.
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
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from lmprog.errors import Detail, LmprogError, RuntimeGone, from_wire
from lmprog.launch.parent_pipe import FOLDER_VARIABLE

_WAITING = frozenset({"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"})
"""What says how threads of OpenMP wait for each other."""
_NUM_LAST_LINES = 12
_LOG_TAIL_BYTES = 8192


class Child:
    """A running child. `command` gets the two descriptors appended; `folder` becomes the child's
    and goes with it.

    What the child prints goes to a log in the folder, or (`keep_log=False`) to our own stderr.
    """

    def __init__(self, command: Sequence[str], folder: Path, *, keep_log: bool = True) -> None:
        self.folder = folder
        self._log = folder / "runtime.log"
        self._owner = os.getpid()
        self._buffer = b""
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
                    env={**_environment(), FOLDER_VARIABLE: str(folder)},
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
        """What the child says about itself once it serves.

        Raises the child's own error where it reports one, `RuntimeGone` where it ends or stays
        silent for `timeout` seconds; it is ended then. `show` is given what the child says it is
        doing.
        """
        deadline = time.monotonic() + timeout
        doing = "starts"
        while (left := deadline - time.monotonic()) > 0:
            line = self._read_line(left)
            if line is None:
                continue
            if not line:
                raise self._ended("ended before it was ready")
            said = json.loads(line)
            if "stage" in said:
                doing = str(said["stage"])
                show(doing)
            elif "error" in said:
                raise self._reported(said["error"])
            else:
                return {name: value for name, value in said.items() if name != "ready"}
        raise RuntimeGone(
            f"The runtime was not ready after {timeout:g} seconds; the last it said is that it {doing}."
            f"{self.last_lines()}"
        )

    def wait(self, timeout: float | None) -> int | None:
        """The exit code, or None after `timeout` seconds."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def stop(self, grace: float) -> None:
        """Asks the child to end (SIGTERM), ends it after `grace` seconds, removes its folder. Safe
        to repeat.

        In a process that was forked from the one that started the child this does nothing: it is
        not its child.
        """
        if os.getpid() != self._owner:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            if self.wait(grace) is None:
                self._process.kill()
                self._process.wait()
        for descriptor in (self._ready_fd, self._life_fd):
            if descriptor >= 0:
                os.close(descriptor)
        self._ready_fd = self._life_fd = -1
        shutil.rmtree(self.folder, ignore_errors=True)

    def last_lines(self) -> str:
        """The end of the child's log, as a sentence to append to a message; empty where there is
        none.
        """
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

    def epitaph(self) -> str:
        """How the child ended and its last words; empty while it runs."""
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

    def _reported(self, said: dict[str, object]) -> LmprogError:
        details = said.get("details")
        return from_wire(
            str(said["code"]), str(said["message"]), details if isinstance(details, dict) else {}
        )


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    name = f"signal {-code}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-code).name
    more = " (often: the machine had no memory left)" if name == "SIGKILL" else ""
    return f"was ended by {name}{more}"


def _environment() -> dict[str, str]:
    """Ours, and the way to this very package where it is not installed, since the child ignores its
    folder.

    GNU's OpenMP has a thread that waits for others spin for so long that, on a machine with other
    work, it keeps from them the very core that they wait for; a tenth of that gains as much where
    there is none.
    """
    environment = dict(os.environ)
    if not _WAITING & environment.keys():
        environment["GOMP_SPINCOUNT"] = "20000"
    root = str(Path(__file__).parents[2])
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [root, environment.get("PYTHONPATH", "")])
        )
    return environment


def python(module: str) -> list[str]:
    """The command that runs a module; `-P`, so that files in the user's folder do not stand in for
    modules.
    """
    return [sys.executable, "-P", "-m", module]
