"""Runs worlds, one after the other or in several processes, counts what they did, and says so for
`lmprog sim`.

Worlds share nothing, so their order does not matter; a seed replays its world.
"""

from __future__ import annotations

import gc
import json
import logging
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import count, islice
from pathlib import Path

from lmprog.runtime.steps import EngineLost
from lmprog.simulation.world import World, scenario_of

STEPS_PER_WORLD = 500
FULL_CHECK_EVERY = 16
"""After this many steps everything is checked, after the others what the step touched."""
WORLDS_PER_TALLY = 50


class Violation(AssertionError):
    """An invariant was violated; the message says in which world and how to replay it."""


@dataclass(frozen=True, slots=True)
class SimulationRun:
    """Which worlds are run, and how."""

    seed: int = 0
    steps: int = STEPS_PER_WORLD
    worlds: int | None = 100
    """None: until the hours are over."""
    hours: float | None = None
    processes: int = 1
    full_check_every: int = FULL_CHECK_EVERY
    only_states: bool = False
    """Worlds of other models than those with recurrent states are left out."""
    record: Path | None = None
    """A line of JSON for each tally of worlds is appended to this file."""


@dataclass(slots=True)
class WorldTally:
    """What the worlds from `seed` on did."""

    seed: int
    worlds: int = 0
    steps: int = 0
    passes: int = 0
    """Steps with a forward pass; in the others messages were handled, loads awaited, or nothing."""
    calls: int = 0
    computed_tokens: int = 0
    accepted_tokens: int = 0
    """Of drafted ones."""
    preemptions: int = 0
    most_preempted: int = 0
    processor_seconds: float = 0.0
    last_trace: str = ""
    violations: list[str] = field(default_factory=list)

    def count(self, world: World) -> None:
        stats = world.scheduler.stats
        self.steps += world.steps
        self.passes += world.num_passes
        self.calls += stats.calls
        self.computed_tokens += stats.computed_tokens
        self.accepted_tokens += stats.accepted_tokens
        self.preemptions += stats.preemptions
        self.most_preempted = max(self.most_preempted, world.most_preemptions)
        self.last_trace = world.trace

    def add(self, other: WorldTally) -> None:
        """Counts the worlds of `other` as well, whichever came first."""
        self.worlds += other.worlds
        self.steps += other.steps
        self.passes += other.passes
        self.calls += other.calls
        self.computed_tokens += other.computed_tokens
        self.accepted_tokens += other.accepted_tokens
        self.preemptions += other.preemptions
        self.most_preempted = max(self.most_preempted, other.most_preempted)
        self.processor_seconds += other.processor_seconds
        self.last_trace = other.last_trace
        self.violations += other.violations

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def run_world(
    seed: int, steps: int = STEPS_PER_WORLD, full_check_every: int = FULL_CHECK_EVERY
) -> World:
    """Runs one world until it is idle. Raises `Violation`, also where anything in it raises."""
    world = World(seed, full_check_every=full_check_every)
    try:
        for _ in range(steps):
            world.step()
        world.settle()
    except EngineLost:
        return world  # nothing is left that could settle
    except Exception as error:
        what = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        raise Violation(
            f"seed {seed}, step {world.steps}: {what}{error}\n  {world.scenario}\n"
            f"  replay: lmprog sim --seed {seed} --steps {steps} --worlds 1 --check-every 1"
        ) from error
    return world


def run_worlds(asked: SimulationRun, seed: int, worlds: int) -> WorldTally:
    """Runs the worlds from `seed` on; a violation ends its own world only."""
    tally, began = WorldTally(seed), time.process_time()
    with _rare_collections() as collect:
        for number in range(seed, seed + worlds):
            if asked.only_states and scenario_of(number).states is None:
                continue
            tally.worlds += 1
            try:
                tally.count(run_world(number, asked.steps, asked.full_check_every))
            except Violation as violation:
                tally.violations.append(str(violation))
            if number % 10 == 0:
                collect()
    tally.processor_seconds = round(time.process_time() - began, 2)
    return tally


@contextmanager
def _rare_collections() -> Iterator[Callable[[], int]]:
    """Garbage is collected by the call it gives and at the end; else a seventh of the time goes
    there. A process with a large heap freezes that first, or it takes as long as the worlds.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield gc.collect
    finally:
        gc.collect()
        if was_enabled:
            gc.enable()


def tallies(asked: SimulationRun) -> Iterator[WorldTally]:
    """All tallies of `asked`, each when it has ended."""
    if asked.processes == 1:
        for seed, worlds in _parts(asked):
            yield run_worlds(asked, seed, worlds)
        return
    # A fresh interpreter for each process: nothing of the parent's threads is copied.
    fresh, log = multiprocessing.get_context("spawn"), logging.getLogger("lmprog")
    with ProcessPoolExecutor(asked.processes, fresh, _begin_process, (log.level,)) as pool:
        parts = _parts(asked)
        first = islice(parts, 2 * asked.processes)
        under_way = [pool.submit(run_worlds, asked, *part) for part in first]
        while under_way:
            yield under_way.pop(0).result()
            under_way += [pool.submit(run_worlds, asked, *part) for part in islice(parts, 1)]


def _begin_process(log_level: int) -> None:
    logging.getLogger("lmprog").setLevel(log_level)
    gc.freeze()


def _parts(asked: SimulationRun) -> Iterator[tuple[int, int]]:
    """First seeds and numbers of worlds, until all are given out or the time is over."""
    ends = None if asked.hours is None else time.monotonic() + 3600 * asked.hours
    end = None if asked.worlds is None else asked.seed + asked.worlds
    for seed in count(asked.seed, WORLDS_PER_TALLY):
        is_over = ends is not None and time.monotonic() >= ends
        if is_over or (end is not None and seed >= end):
            return
        yield seed, WORLDS_PER_TALLY if end is None else min(WORLDS_PER_TALLY, end - seed)


def main(asked: SimulationRun, say: Callable[[str], object] = sys.stdout.write) -> int:
    """Runs the worlds, says every violation at once and the sums at the end. Exit code 1 where
    there was one.
    """
    total = WorldTally(asked.seed)
    for tally in tallies(asked):
        for violation in tally.violations:
            say(f"VIOLATION  {violation}\n")
        total.add(tally)
        if asked.record is not None:
            with asked.record.open("a") as record:
                record.write(tally.as_json() + "\n")
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{total.worlds:,} worlds, {total.steps:,} steps\r")
    found = f"{len(total.violations)} violations" if total.violations else "no violation"
    say(
        f"{total.worlds:,} worlds from seed {asked.seed}: {total.steps:,} checked steps, "
        f"{total.passes:,} of them with a forward pass, {total.calls:,} calls, "
        f"{total.computed_tokens:,} tokens computed, "
        f"{total.accepted_tokens:,} drafted ones accepted, {total.preemptions:,} preemptions "
        f"(a sequence lost its pages to others at most {total.most_preempted} times), {found}; "
        f"{total.steps / max(total.processor_seconds, 0.01):,.0f} steps per second of processor "
        f"time; last trace {total.last_trace}\n"
    )
    return 1 if total.violations else 0
