"""A fleet of real runtimes: programs spread, survive SIGKILL, and are the same as on one
runtime.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

import lmprog
from lmprog.backends.connecting.fleet_backend import Fleet
from lmprog.errors import InvalidParameter, LmprogError, RuntimeGone
from lmprog.fleet.fleet_channel import FleetChannel
from lmprog.fleet.local_members import LocalMembers, launches
from lmprog.fleet.members import FixedMembers, Member
from lmprog.launch import Connection, RuntimeProcess
from lmprog.launch.restarts import DelayLimits

OPTIONS = {"dtype": "float32", "threads": 1, "kv_memory_mb": 32}


@lmprog.function
def story(
    s: lmprog.Branch, start: str, seed: int, between: Callable[[], object] = str
) -> list[str]:
    """Samples, forks, a choice and a join, all with seeds; `between` is called before the choice,
    when the forks may be under way still.
    """
    s += start
    s += lmprog.gen("first", max_tokens=24, temperature=1.0, seed=seed, ignore_eos=True)
    forks = s.fork(3)
    for index, fork in enumerate(forks):
        fork += f" {index}:"
        fork += lmprog.gen(
            "more", max_tokens=24, temperature=1.0, seed=seed + index, ignore_eos=True
        )
    between()
    s += forks[0]["more"] + forks[1]["more"]
    s += lmprog.select("end", [" this", " that", " those"])
    return [s["first"], *(fork["more"] for fork in forks), s["end"]]


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet.local("dummy:tiny", replicas=2, **OPTIONS) as made:
        yield made


def members_of(fleet: Fleet) -> LocalMembers:
    assert isinstance(fleet.members, LocalMembers)
    return fleet.members


def both_up(fleet: Fleet) -> None:
    deadline = time.monotonic() + 120
    while len(fleet.channel.loads) < 2:
        assert time.monotonic() < deadline, "a replica that died was not started again"
        time.sleep(0.05)


def test_programs_on_a_fleet_are_those_of_one_runtime(fleet: Fleet) -> None:
    both_up(fleet)
    starts = [
        {"start": f"{word} upon a time", "seed": n} for n, word in enumerate(("Once", "Twice"))
    ]
    with lmprog.Runtime("dummy:tiny", **OPTIONS) as runtime:
        alone = [story.run(**start, backend=runtime).value for start in starts]
    assert [story.run(**start, backend=fleet).value for start in starts] == alone


def test_a_killed_replica_loses_no_program(fleet: Fleet) -> None:
    """It is killed when all are in their middle: each of its programs has to move."""
    starts = [{"start": f"Program {n} begins.", "seed": 100 * n} for n in range(8)]
    calm = story.run_batch(starts, backend=fleet, num_threads=8)

    def kill() -> None:
        loads = fleet.channel.loads
        busiest = max(loads, key=lambda name: loads[name])
        assert sum(loads.values()) == 8
        os.kill(members_of(fleet).processes[busiest].pid, signal.SIGKILL)

    for _ in range(2):
        both_up(fleet)
        moved = fleet.channel.num_moved
        middle = threading.Barrier(8, kill, 120)
        held = [{**start, "between": middle.wait} for start in starts]
        runs = story.run_batch(held, backend=fleet, num_threads=8)
        assert [run.value for run in runs] == [run.value for run in calm]
        assert fleet.channel.num_moved >= moved + 4


def test_a_fleet_joins_runtimes_that_run_already() -> None:
    with lmprog.Runtime("dummy:tiny", **OPTIONS) as runtime:
        with lmprog.Fleet([runtime.address]) as fleet:
            run = story.run("Hello", 1, backend=fleet)
            assert run.value == story.run("Hello", 1, backend=runtime).value
        assert runtime.process.alive  # what a fleet only joined, it does not end


def test_a_fleet_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="address"):
        lmprog.Fleet([])
    with pytest.raises(InvalidParameter, match="replica"):
        lmprog.Fleet.local("dummy:tiny", replicas=0)


def test_a_fleet_that_reaches_nobody_says_why() -> None:
    class Unreachable(FixedMembers):
        def current(self) -> list[Member]:
            return [Member("far", self._dial)]

        def _dial(self) -> Connection:
            raise RuntimeGone("it is on another machine")

    with pytest.raises(RuntimeGone, match=r"within 2 seconds\. it is on another machine"):
        FleetChannel(Unreachable([]), timeout=2.0)


def test_importing_lmprog_imports_no_fleet() -> None:
    code = "import sys, lmprog; lmprog.function; print([m for m in sys.modules if 'fleet' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


MODELS = {"small": "dummy:tiny", "large": "dummy:64x3"}


def test_several_models_are_started_together_and_each_is_looked_after() -> None:
    """One of them dies, and comes back under its own name, with its own model."""
    expected = {}
    for name, model in MODELS.items():
        with lmprog.Runtime(model, **OPTIONS) as runtime:
            expected[name] = story.run("Once", 1, backend=runtime).value
    assert expected["small"] != expected["large"]
    with lmprog.Fleet.local(MODELS, replicas=1, **OPTIONS) as fleet:
        members = members_of(fleet)
        assert list(fleet.models) == ["small", "large"]
        assert list(members.processes) == ["small-1", "large-1"]
        assert story.run("Once", 1, backend=fleet).value == expected["small"]
        os.kill(members.processes["large-1"].pid, signal.SIGKILL)
        for name, value in expected.items():
            assert story.run("Once", 1, backend=fleet[name]).value == value
        assert members.num_restarts == 1


@pytest.mark.parametrize("failing", ["first", "second"])
def test_whatever_the_start_of_a_model_raises_is_raised_and_none_is_left(failing: str) -> None:
    started = []

    def start(generation: int) -> RuntimeProcess:
        started.append(RuntimeProcess("dummy:tiny", **OPTIONS))
        return started[-1]

    def fail(generation: int) -> RuntimeProcess:
        raise RuntimeError("can't start new thread")

    both = {"first": start, "second": start, failing: fail}
    with pytest.raises(RuntimeError, match="new thread"):
        LocalMembers(both, 1)
    assert [one.alive for one in started] == [False]


def test_a_replica_whose_start_fails_in_an_unforeseen_way_is_started_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = []

    def launch(generation: int) -> RuntimeProcess:
        calls.append(generation)
        if len(calls) == 2:
            raise ValueError("what the child says is no JSON")
        return RuntimeProcess("dummy:tiny", **OPTIONS)

    members = LocalMembers(launch, 1, delays=DelayLimits(first=0.0))
    try:
        members.processes["replica-1"].close(0.0)
        deadline = time.monotonic() + 60.0
        while not members.current() or len(calls) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert "no JSON" in caplog.text
    finally:
        members.close(0.0)


def test_where_one_of_several_models_cannot_be_started_none_is_left() -> None:
    started: list[RuntimeProcess] = []
    models = {"small": "dummy:tiny", "wrong": "dummy:nothing"}
    launch = {
        name: lambda generation, one=one: started.append(one(generation)) or started[-1]
        for name, one in launches(models, 1, OPTIONS).items()
    }
    with pytest.raises(LmprogError, match="dummy:nothing"):
        LocalMembers(launch, 1)  # type: ignore[arg-type]
    assert [one.alive for one in started] == [False]


@pytest.mark.parametrize(
    ("models", "message"),
    [({}, "at least one model"), ({"": "nano", "b": "nano"}, "needs a name under which")],
)
def test_models_without_names_are_not_started(models: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        lmprog.Fleet.local(models)
