"""`lmprog serve` as a process of its own, as an operator runs it: for tests that kill, stop and end
it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

import lmprog

SOURCE = Path(lmprog.__file__).parents[1]
PATIENCE = 120.0
"""Seconds for anything that must happen; generous, since machines differ."""


class Served:
    """The process, what it says, and a client of it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said: list[str] = []
        self.logged: list[str] = []
        assert process.stdout is not None
        assert process.stderr is not None
        self._readers = [
            threading.Thread(target=lambda s=stream, to=lines: to.extend(s), daemon=True)
            for stream, lines in ((process.stdout, self.said), (process.stderr, self.logged))
        ]
        for reader in self._readers:
            reader.start()
        try:
            self._connect()
        except BaseException:
            process.kill()
            self.until_read()
            raise

    def until_read(self) -> None:
        """All that the process and its children said is read; they must have ended. A reader that
        finds its stream closed would fail in its thread, long after this test."""
        for reader in self._readers:
            reader.join(PATIENCE)
            assert not reader.is_alive(), "something of the server lives on"

    def _connect(self) -> None:
        line = self.until(lambda: next((line for line in self.logged if "http://" in line), ""))
        found = re.search(r"http://\S+", line)
        assert found is not None
        self.url = found[0]
        self.http = httpx2.Client(base_url=self.url, timeout=PATIENCE, trust_env=False)

    def until(self, look: Callable[[], Any], seconds: float = PATIENCE) -> Any:
        """What `look` gives, as soon as that is true."""
        deadline = time.monotonic() + seconds
        while not (found := look()):
            assert self.process.poll() is None, "".join(self.logged)
            assert time.monotonic() < deadline, "".join(self.logged)
            time.sleep(0.05)
        return found

    def status(self, path: str) -> int:
        code: int = self.http.get(path).status_code
        return code

    def until_ready(self) -> None:
        self.until(lambda: self.status("/ready") == 200)

    def runtime_pid(self) -> int:
        """Of the process that computes: the newest child."""
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        pids = [int(pid) for file in children for pid in file.read_text().split()]
        return max(pids)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


class Stream:
    """One streaming request in a thread; `events` grows as it is answered."""

    def __init__(self, served: Served, max_tokens: int) -> None:
        self.events: list[str] = []
        self.ended_at = 0.0
        self.failed: Exception | None = None
        self._served = served
        self._max_tokens = max_tokens
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        body = {
            "prompt": "Once upon a time",
            "max_tokens": self._max_tokens,
            "stream": True,
            "ignore_eos": True,
        }
        try:
            with self._served.http.stream("POST", "/v1/completions", json=body) as response:
                assert response.status_code == 200, response.read()
                for line in response.iter_lines():
                    if line.startswith("data: "):
                        self.events.append(line.removeprefix("data: "))
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.failed = error
        self.ended_at = time.monotonic()

    def join(self, seconds: float = PATIENCE) -> None:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the stream hangs"
        assert self.failed is None, self.failed

    @property
    def error(self) -> dict[str, Any] | None:
        """Of the last event."""
        if not self.events or self.events[-1] == "[DONE]":
            return None
        error: dict[str, Any] | None = json.loads(self.events[-1]).get("error")
        return error


def streams(served: Served, count: int, max_tokens: int) -> list[Stream]:
    """So many streams, once each of them has begun."""
    made = [Stream(served, max_tokens) for _ in range(count)]
    served.until(lambda: all(stream.events or stream.failed for stream in made))
    return made


@contextmanager
def served(*arguments: str) -> Iterator[Served]:
    """The command with nano on any free port; ready, and gone with the block. It drafts nothing, so
    that a long answer, which repeats itself, lasts as many steps as it has tokens.
    """
    with serving("nano", "--threads", "1", "--speculation", "off", *arguments) as made:
        yield made


@contextmanager
def serving(*arguments: str) -> Iterator[Served]:
    """The command on any free port; ready, and gone with the block."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "lmprog.cli", "serve", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        cwd=SOURCE,
    )
    made: Served | None = None
    try:
        made = Served(process)
        made.until_ready()
        yield made
    finally:
        process.kill()
        process.wait()
        if made is not None:
            made.http.close()
            made.until_read()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
