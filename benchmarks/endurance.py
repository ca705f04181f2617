"""What becomes of real processes that are killed, stopped, idle, busy for long, or read slowly.

    python -m benchmarks.endurance runtime-kills --times 100    SIGKILL of the runtime under 64 clients
    python -m benchmarks.endurance client-kills --times 100     SIGKILL of clients while they stream
    python -m benchmarks.endurance stopped --seconds 30         SIGSTOP of the runtime of `lmprog serve`
    python -m benchmarks.endurance idle-streams --times 10000   open streams that get nothing
    python -m benchmarks.endurance churn --times 30000          short requests, one after the other
    python -m benchmarks.endurance mixed --times 10000          requests of every kind, all different
    python -m benchmarks.endurance slow-readers --times 32      clients that ask and do not read
    python -m benchmarks.endurance clock --times 10             a wall clock that jumps

Each prints its figures and ends with exit code 1 where something was left behind, hung, wrong or
not told. This file knows kills, stops and clocks; `served_loads` the others.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated
from unittest import mock

import httpx2

import lmprog
from benchmarks import runner
from benchmarks.runner import Footprint
from benchmarks.served_loads import churn, idle_streams, mixed, served, slow_readers
from lmprog.errors import RuntimeGone

CONNECTIONS, THREADS_EACH = 8, 8
PROMPTS = 12
PATIENCE = 120.0
"""Seconds by the wall clock until something counts as hanging; the machine may be busy."""


@lmprog.function
def tell(s: lmprog.Branch, number: int) -> str:
    """A program: forks, generations, a choice."""
    s += f"Story {number}: the sea "
    branches = s.fork(3)
    for at, branch in enumerate(branches):
        branch += f"and {at} "
        branch += lmprog.gen("part", max_tokens=8, ignore_eos=True)
    parts = " ".join(branch["part"] for branch in branches)
    s += parts + lmprog.select("mood", ["calm", "rough"])
    return f"{parts} {s['mood']}"


@lmprog.function
def recite(s: lmprog.Branch, number: int) -> str:
    """One long generation, to be streamed."""
    s += f"Poem {number}: " + lmprog.gen("poem", max_tokens=40, ignore_eos=True)
    return str(s["poem"])


PROGRAMS = {"tell": tell, "recite": recite}


class Clients:
    """Threads that run programs and streams on one runtime until it dies, and what they saw."""

    def __init__(self, address: str, expected: dict[tuple[str, int], str]) -> None:
        self.seen: Counter[str] = Counter()
        self._address = address
        self._expected = expected
        self._told = threading.Lock()
        self.threads = [
            threading.Thread(target=self._connection, args=(number,), daemon=True)
            for number in range(CONNECTIONS)
        ]

    def _connection(self, number: int) -> None:
        try:
            with (
                lmprog.connect(self._address) as backend,
                ThreadPoolExecutor(THREADS_EACH) as threads,
            ):
                for at in range(THREADS_EACH):
                    threads.submit(self._until_it_dies, backend, number + at)
        except RuntimeGone:
            self._count("died while connecting")

    def _until_it_dies(self, backend: lmprog.backends.Backend, number: int) -> None:
        draw, name = random.Random(number), list(PROGRAMS)[number % 2]
        bound = PROGRAMS[name].using(backend=backend, temperature=0)
        while True:
            prompt = draw.randrange(PROMPTS)
            try:
                is_streamed = name == "recite"
                text = [*bound.stream(prompt)][-1].value if is_streamed else bound.run(prompt).value
            except RuntimeGone:
                self._count("told that it died")
                return
            except Exception as error:  # noqa: BLE001 - counted, and then the script fails
                self._count(f"wrong error: {type(error).__name__}: {error}")
                return
            is_right = text == self._expected[name, prompt]
            self._count("right" if is_right else "wrong text")

    def _count(self, what: str) -> None:
        with self._told:
            self.seen[what] += 1


def texts_of_a_new_runtime() -> dict[tuple[str, int], str]:
    """What each program gives for each prompt, whatever else happens."""
    with lmprog.Runtime("nano", threads=1) as healthy:
        return {
            (name, number): program.using(backend=healthy, temperature=0).run(number).value
            for name, program in PROGRAMS.items()
            for number in range(PROMPTS)
        }


def runtime_kills(times: int) -> bool:
    """Each time a new runtime, 64 threads of programs and streams, and a kill at any moment."""
    dice, seen, latest = random.Random(1), Counter[str](), 0.0
    expected = texts_of_a_new_runtime()
    before = Footprint.of(os.getpid())
    for number in range(times):
        with lmprog.Runtime("nano", threads=1) as runtime:
            clients = Clients(runtime.address, expected)
            for thread in clients.threads:
                thread.start()
            time.sleep(dice.uniform(0.0, 2.0))
            os.kill(runtime.process.pid, signal.SIGKILL)
            killed = time.monotonic()
            for thread in clients.threads:
                thread.join(PATIENCE)
                seen["hanging connections"] += thread.is_alive()
            latest = max(latest, time.monotonic() - killed)
        seen += clients.seen
        print(f"{number + 1} kills: {dict(seen)}", flush=True)
    after = Footprint.of(os.getpid())
    print(f"all clients had ended at most {latest:.1f} s after a kill; {before} -> {after}")
    allowed = {"right", "told that it died", "died while connecting"}
    return set(+seen) <= allowed and after.files <= before.files + 8


CLIENT = (
    "import sys, lmprog\n"
    "from benchmarks.endurance import recite, tell\n"
    "with lmprog.connect(sys.argv[1]) as backend:\n"
    "    print('begun', flush=True)\n"
    "    for number in range(10**6):\n"
    "        list(recite.using(backend=backend).stream(number % 5))\n"
    "        tell.using(backend=backend).run(number % 5)\n"
)


def client_kills(times: int) -> bool:
    """Four clients at a time are killed at any moment; at the end the runtime holds nothing."""
    dice = random.Random(2)
    with lmprog.Runtime("nano", threads=1) as runtime:
        expected = tell.using(backend=runtime, temperature=0).run(0).value
        before = Footprint.of(runtime.process.pid)
        for begin in range(0, times, 4):
            command = [sys.executable, "-c", CLIENT, runtime.address]
            clients = [
                subprocess.Popen(command, stdout=subprocess.PIPE)
                for _ in range(min(4, times - begin))
            ]
            for client in clients:
                assert client.stdout is not None
                client.stdout.readline()
            for client in clients:
                time.sleep(dice.uniform(0.0, 0.5))
                client.kill()
            for client in clients:
                client.communicate()
        holds = _until_nothing_is_held(runtime)
        is_right = tell.using(backend=runtime, temperature=0).run(0).value == expected
        after = Footprint.of(runtime.process.pid)
    print(f"{times} clients killed; then held: {holds}; the same answer: {is_right}")
    print(f"the runtime: {before} -> {after}")
    return not any(holds.values()) and is_right and after.files <= before.files + 2


def _until_nothing_is_held(runtime: lmprog.Runtime) -> dict[str, float]:
    ends = time.monotonic() + PATIENCE
    while True:
        figures = lmprog.get_server_info(runtime)
        holds = {name: figures[name] for name in ("open_branches", "running", "waiting")}
        if not any(holds.values()) or time.monotonic() > ends:
            return holds
        time.sleep(0.1)


def stopped(seconds: int) -> bool:
    """The runtime of a server stands still: how soon `/ready` says so, and what becomes of it."""
    with served() as server:
        ready = httpx2.Client(base_url=server.url, timeout=PATIENCE, trust_env=False)

        def status() -> int:
            return int(ready.get("/ready").status_code)

        old = server.runtime_pid()
        os.kill(old, signal.SIGSTOP)
        began = time.monotonic()
        told = _until(lambda: status() != 200, began)
        replaced = _until(lambda: server.runtime_pid() != old and status() == 200, began)
        rest = max(0.0, began + seconds - time.monotonic())
        time.sleep(rest)
        is_gone = not os.path.exists(f"/proc/{old}")
        still_ready = status() == 200
        ready.close()
    print(
        f"/ready said so after {told:.1f} s; a new runtime was ready after {replaced:.1f} s; "
        f"after {seconds} s the old one was gone: {is_gone}, ready: {still_ready}"
    )
    return told <= PATIENCE and replaced <= PATIENCE and is_gone and still_ready


def _until(holds: Callable[[], bool], began: float) -> float:
    """Seconds since `began` until it holds."""
    while not holds() and time.monotonic() - began <= PATIENCE:
        time.sleep(0.05)
    return time.monotonic() - began


JUMPING = (
    "import pathlib, random, time\n"
    "real, dice = time.time, random.Random(3)\n"
    "def jumping():\n"
    "    pathlib.Path(__file__).with_name('jumped').touch()\n"
    "    return real() + dice.choice([-1e7, -3600, 0, 3600, 1e7])\n"
    "time.time = jumping\n"
    "time.time()\n"
)
"""Imported by Python itself at the start of a process, before anything of lmprog."""


def clock(times: int) -> bool:
    """A runtime whose wall clock jumps by hours and months at every look: the texts are the same,
    and no timeout strikes early.
    """
    expected, rounds = texts_of_a_new_runtime(), max(1, times)
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ):
        Path(folder, "sitecustomize.py").write_text(JUMPING)
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
        with lmprog.Runtime("nano", threads=1) as runtime:
            found = [
                program.using(backend=runtime, temperature=0, timeout=PATIENCE).run(number).value
                == expected[name, number]
                for _ in range(rounds)
                for name, program in PROGRAMS.items()
                for number in range(PROMPTS)
            ]
        has_jumped = Path(folder, "jumped").exists()
    print(f"{sum(found)} of {len(found)} texts are right; the clock jumped: {has_jumped}")
    return all(found) and has_jumped


TRIALS: dict[str, tuple[Callable[[int], bool], int]] = {
    "runtime-kills": (runtime_kills, 100),
    "client-kills": (client_kills, 100),
    "stopped": (stopped, 30),
    "idle-streams": (idle_streams, 10_000),
    "churn": (churn, 30_000),
    "mixed": (mixed, 10_000),
    "slow-readers": (slow_readers, 32),
    "clock": (clock, 10),
}
"""And the usual number of times."""


@runner.command
def main(
    trial: Annotated[str, {"choices": list(TRIALS)}],
    *,
    times: int | None = None,
    seconds: int | None = None,
) -> int:
    what, usual = TRIALS[trial]
    is_well = what(times or seconds or usual)
    print("well" if is_well else "NOT WELL")
    return 0 if is_well else 1
