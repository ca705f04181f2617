"""Programs of twelve kinds while their replicas fail: each fault finds all of them in their middle."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fleet_faults import KINDS, Trial, outcome
from lmprog import wire
from lmprog.backends.client import RuntimeBackend, describe
from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.fleet import fleet_channel
from lmprog.fleet.fleet_channel import FleetChannel
from lmprog.fleet.members import Member
from lmprog.launch import Connection, greet
from lmprog.launch.restarts import HangTimeouts
from lmprog.native import compiler
from lmprog.runtime.assembly import assemble
from lmprog.runtime.tier.second_tier import PageWorth
from lmprog.transport import LocalRuntimeChannel
from tests.runtime.runtime_thread import RuntimeThread

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")

PATIENCE = 120.0


class Line:
    """A connection that brings nothing while it is held, as that to a stopped process."""

    def __init__(self, connection: Connection) -> None:
        self.info, self._connection = connection.info, connection
        self.watched = self.delivering = None
        self.send = connection.send
        self.is_open = threading.Event()
        self.is_open.set()
        self._kept: list[wire.Reply] = []

    def receive(self, timeout: float) -> list[wire.Reply]:
        self._kept += self._connection.receive(timeout)
        if not self.is_open.wait(0.01):
            return []
        kept, self._kept = self._kept, []
        return kept

    def close(self) -> None:
        self._connection.close()


class Places:
    """Runtimes in threads at fixed places. Not thread-safe: faults come one after the other."""

    def __init__(self, count: int, **options: Any) -> None:
        self._options = options
        self._lives = dict.fromkeys((f"replica-{number}" for number in range(count)), 0)
        self._threads: dict[str, RuntimeThread] = {}
        self._channels: dict[str, LocalRuntimeChannel] = {}
        self.lines: dict[str, Line] = {}
        self.generation = 0
        for name in self._lives:
            self._start(name)

    @property
    def size(self) -> int:
        return len(self._lives)

    def _start(self, name: str) -> None:
        channel = LocalRuntimeChannel()
        given = {"threads": 1, "scheduler": SchedulerConfig(num_pages=96), **self._options}
        config = RuntimeConfig("dummy:tiny", generation=self.generation, **given)
        loop, _ = assemble(config, channel)
        self._channels[name], self._threads[name] = channel, RuntimeThread(loop, channel)
        self._lives[name] += 1

    def current(self) -> Sequence[Member]:
        dial = self._dial
        return [
            Member(name, functools.partial(dial, name), life)  # type: ignore[arg-type]
            for name, life in self._lives.items()
        ]

    def _dial(self, name: str) -> Line:
        self.lines[name] = Line(greet(self._channels[name].connect()))
        return self.lines[name]

    def replace(self, name: str) -> None:
        """As after a kill."""
        self._threads[name].end()
        self._start(name)

    def end(self, name: str, why: str, grace: float) -> None:
        if why != "its process ended":  # then another one is there by now
            self.replace(name)

    def close(self, grace: float) -> bool:
        for thread in self._threads.values():
            thread.end()
        return True


class Faults:
    """Seven kinds; those of time let the fleet's time pass, and none of ours."""

    def __init__(self, channel: FleetChannel, places: Places) -> None:
        self._channel, self._places = channel, places

    @property
    def kinds(self) -> list[Callable[[], None]]:
        return [
            *(self.killed, self.told_to_end, self.stopped, self.paused),
            *(self.drained, self.all_killed, self.updated),
        ]

    def _busiest(self) -> str:
        loads = self._channel.loads
        return max(loads, key=loads.__getitem__)

    def _hold(self) -> str:
        name = self._busiest()
        self._places.lines[name].is_open.clear()
        return name

    def _pass_until(self, happens: Callable[[], object]) -> None:
        def passed() -> object:
            with self._channel._lock:
                self._channel._now += 0.3
            return happens()

        until(passed)

    def killed(self) -> None:
        """Without a word."""
        self._places.replace(self._hold())

    def told_to_end(self) -> None:
        self._places.replace(self._busiest())

    def stopped(self) -> None:
        name = self._hold()
        self._pass_until(lambda: name not in self._channel._links)

    def paused(self) -> None:
        name = self._hold()
        self._pass_until(lambda: self._channel._router._replicas[name].is_silent)
        self._places.lines[name].is_open.set()

    def drained(self) -> None:
        self._channel.drain(self._busiest(), 0.0)

    def all_killed(self) -> None:
        for line in self._places.lines.values():
            line.is_open.clear()
        for name in list(self._channel.loads):
            self._places.replace(name)

    def updated(self) -> None:
        self._places.generation += 1
        self._channel.replace_all(self._places.generation, 0.0)


def until(happens: Callable[[], object]) -> None:
    ends = time.monotonic() + PATIENCE
    while not happens():
        assert time.monotonic() < ends
        time.sleep(0.002)


@pytest.fixture(scope="module")
def expected() -> list[object]:
    """Of each kind, on one replica without a fault."""
    with RuntimeBackend(FleetChannel(Places(1))) as backend:
        return [outcome(backend, number) for number in range(len(KINDS))]


@pytest.mark.parametrize("has_store", [False, True])
def test_no_program_of_twelve_kinds_is_wrong_or_lost_by_faults_of_seven_kinds(
    has_store: bool, expected: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_channel, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(fleet_channel, "DIAL_SECONDS", 0.01)
    monkeypatch.setattr(PageWorth, "_is_worth", lambda self, saved, cost: True)
    store = {"kv_disk_mb": 4, "kv_disk_folder": str(tmp_path), "kv_store": "machine"}
    places = Places(2, **(store if has_store else {}))
    channel = FleetChannel(places, hang=HangTimeouts(stall=20.0, frozen=20.0, longest_step=20.0))
    stored = 0.0
    with RuntimeBackend(channel) as backend, ThreadPoolExecutor(len(KINDS)) as threads:
        for fault in Faults(channel, places).kinds:
            assert channel.wait_for(2, PATIENCE)
            middle = threading.Barrier(len(KINDS), fault, PATIENCE)
            ready = functools.partial(outcome, backend, between=middle.wait)
            assert list(threads.map(ready, range(len(KINDS)))) == expected, fault.__name__
            stored = max(stored, describe(backend).get("tier_pages_stored", 0.0))
        until(lambda: {one.generation for one in channel.replicas()} == {1})
        assert channel.num_moved > len(KINDS)
        assert bool(stored) == has_store


def test_the_trial_tells_wrong_and_lost_programs_from_right_ones(expected: list[object]) -> None:
    channel = FleetChannel(Places(1))
    trial = Trial(Faults(channel, Places(0)), channel, programs=4, count=0)  # type: ignore[arg-type]
    with RuntimeBackend(channel) as backend:
        trial.run(backend, 1, expected[1])
        trial.run(backend, 0, expected[1])
        trial.run(backend, 2, expected[2])
    trial.run(backend, 3, expected[3])
    wrong, lost = trial.differences
    assert wrong.startswith("program 0 (chain) wrong: ")
    assert lost.startswith("program 3 (forks) lost: ")
