"""A Ray cluster of this machine alone, small and quiet, whose every process is gone afterwards; and
programs that can be run on it all the time.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmprog

PATIENCE = 240.0
"""Seconds. Nothing here is a matter of time: it is how long a busy machine may take."""
OPTIONS: dict[str, Any] = {"dtype": "float32", "threads": 1, "kv_memory_mb": 32}
SEEDS = range(100, 112)
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_TOKEN": "0" * 64,  # else one is written to the user's home
}
"""Of Ray; must be set before it is imported."""


def until(condition: Callable[[], bool], what: str) -> None:
    """Waits for the condition."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE:g} seconds"
        time.sleep(0.05)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def running_cluster() -> Iterator[str]:
    """Ray and Serve, with this process as the driver; more logical processors than there are. Gives
    the address of Serve's HTTP proxy.
    """
    import ray
    from ray import serve

    before = offspring()
    with tempfile.TemporaryDirectory(
        prefix="ray-", dir="/tmp"
    ) as folder:  # sockets' paths are short
        ray.init(
            address="local",
            num_cpus=8,
            include_dashboard=False,
            object_store_memory=80 * 1024 * 1024,
            log_to_driver=False,
            logging_level="error",
            _temp_dir=folder,
        )
        try:
            port = free_port()
            serve.start(http_options={"host": "127.0.0.1", "port": port})
            yield f"http://127.0.0.1:{port}"
        finally:
            started = offspring() - before
            serve.shutdown()
            ray.shutdown()
            until(lambda: not any(map(_is_running, started)), f"processes {started} end")


@contextmanager
def second_node(resource: str) -> Iterator[None]:
    """One more node of the cluster that this process is in, as of another machine, with a resource
    of that name.
    """
    import ray

    started = len(ray.nodes())
    command = ["ray.scripts.scripts", "start", "--block", "--num-cpus", "2"]
    command += ["--address", ray.get_runtime_context().gcs_address]
    command += ["--resources", json.dumps({resource: 1})]
    command += ["--object-store-memory", str(80 * 1024 * 1024)]
    node = subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: len(ray.nodes()) > started, "the second node joins")
        yield
    finally:
        node.terminate()
        node.wait(PATIENCE)


def offspring() -> set[int]:
    """All processes below this one."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            pid = int(entry.name)
            parent = parent_of(pid)
            if parent is not None:
                parents[pid] = parent
    found: set[int] = set()
    grown = {os.getpid()}
    while grown:
        grown = {pid for pid, parent in parents.items() if parent in grown and pid not in found}
        found |= grown
    return found


def parent_of(pid: int) -> int | None:
    """None for a process that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[1])


def _is_running(pid: int) -> bool:
    return parent_of(pid) is not None


@lmprog.function
def story(s: lmprog.Branch, seed: int) -> list[str]:
    """Samples, forks, a choice and a join, all with seeds."""
    s += f"Program {seed} begins."
    s += lmprog.gen("first", max_tokens=24, temperature=1.0, seed=seed, ignore_eos=True)
    forks = s.fork(2)
    for index, fork in enumerate(forks):
        fork += f" {index}:"
        fork += lmprog.gen(
            "more", max_tokens=24, temperature=1.0, seed=seed + index, ignore_eos=True
        )
    s += forks[0]["more"] + forks[1]["more"]
    s += lmprog.select("end", [" this", " that", " those"])
    return [s["first"], *(fork["more"] for fork in forks), s["end"]]


class Load:
    """Runs the programs of `SEEDS` again and again, in threads, until the block ends; then each
    must have ended with what it has on a single runtime, or on one of several.
    """

    def __init__(
        self,
        fleet: lmprog.Fleet,
        alone: Mapping[int, list[str] | tuple[list[str], ...]],
        threads: int = 6,
    ) -> None:
        self._fleet, self._alone = fleet, alone
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._body, args=(number,)) for number in range(threads)
        ]
        self.num_done = 0
        self.wrong: list[object] = []

    def _body(self, number: int) -> None:
        seeds = list(SEEDS)
        while not self._stop.is_set():
            for seed in seeds[number:] + seeds[:number]:
                try:
                    value = story.using(backend=self._fleet).run(seed).value
                except lmprog.LmprogError as error:
                    self.wrong.append(error)
                    return
                right = self._alone[seed]
                if value not in (right if isinstance(right, tuple) else (right,)):
                    self.wrong.append((seed, value))
                self.num_done += 1
                if self._stop.is_set():
                    return

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        until(lambda: self.num_done > 0 or bool(self.wrong), "the first program ends")
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in self._threads), "a program hangs"
        assert not self.wrong, self.wrong[:3]
