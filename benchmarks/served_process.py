"""`lmprog serve` as a process, and what a process holds: memory, files, threads."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

PATIENCE = 300.0


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a process holds now."""

    kilobytes: int
    files: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Footprint:
        status = Path(f"/proc/{pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return cls(
            int(found[1]), len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))
        )

    def __str__(self) -> str:
        return f"{self.kilobytes / 1024:.0f} MB, {self.files} files, {self.threads} threads"


@dataclass(frozen=True, slots=True)
class ServedProcess:
    """A server that is ready."""

    pid: int
    url: str

    def runtime_pid(self) -> int:
        """Of the process that computes: the newest child, 0 where there is none."""
        children = Path(f"/proc/{self.pid}/task").glob("*/children")
        return max((int(pid) for file in children for pid in file.read_text().split()), default=0)


@contextmanager
def served_nano(*options: str) -> Iterator[ServedProcess]:
    """The command with nano on any free port."""
    command = [sys.executable, "-m", "lmprog.cli", "serve", "nano", "--port", "0", "--threads", "1"]
    reader: threading.Thread | None = None
    process = subprocess.Popen(
        [*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        found = (re.search(r"http://[^\s,]+", line) for line in process.stderr)
        url = next((one[0] for one in found if one is not None), None)
        assert url is not None, "the server ended before it served"
        # read on, since a full pipe would stop the server
        reader = threading.Thread(target=process.stderr.read, daemon=True)
        reader.start()
        _wait_ready(url)
        yield ServedProcess(process.pid, url.rstrip("/"))
    finally:
        process.kill()
        process.wait()
        if reader is not None:
            reader.join(PATIENCE)  # until the runtime has ended as well
        if process.stderr is not None:
            process.stderr.close()


def _wait_ready(url: str) -> None:
    ends = time.monotonic() + PATIENCE
    with httpx2.Client(base_url=url, timeout=PATIENCE, trust_env=False) as client:
        while client.get("/ready").status_code != 200:
            assert time.monotonic() < ends, "never ready"
            time.sleep(0.1)
