"""`lmprog sim`: runs worlds and reports; a violation names the seed and step that replay it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from lmprog.simulation.world import World

STEPS_PER_WORLD = 500


class Violation(AssertionError):
    """An invariant was violated; the message says in which world and how to replay it."""


def run_world(seed: int, steps: int = STEPS_PER_WORLD) -> World:
    """Runs one world until it is idle. Raises `Violation`."""
    world = World(seed)
    try:
        for _ in range(steps):
            world.step()
        world.settle()
    except AssertionError as error:
        raise Violation(
            f"seed {seed}, step {world.steps}: {error}\n  {world.scenario}\n"
            f"  replay: lmprog sim --seed {seed} --steps {steps} --worlds 1"
        ) from error
    return world


def main(
    seed: int = 0,
    steps: int = STEPS_PER_WORLD,
    worlds: int = 100,
    say: Callable[[str], object] = sys.stdout.write,
) -> int:
    """Runs `worlds` worlds of `steps` steps from `seed` on. Exit code 1 on the first violation."""
    start = time.monotonic()
    total = tokens = calls = preemptions = most_preempted = 0
    for number in range(seed, seed + worlds):
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{number - seed} of {worlds} worlds\r")
        try:
            world = run_world(number, steps)
        except Violation as violation:
            say(f"VIOLATION  {violation}\n")
            return 1
        stats = world.scheduler.stats
        total += world.steps
        tokens += stats.computed_tokens
        calls += stats.calls
        preemptions += stats.preemptions
        most_preempted = max(most_preempted, world.most_preemptions)
    seconds = time.monotonic() - start
    say(
        f"{worlds} worlds from seed {seed}: {total:,} checked steps, {calls:,} calls, "
        f"{tokens:,} tokens computed, {preemptions:,} preemptions (a sequence lost its pages to "
        f"others at most {most_preempted} times), no violation; "
        f"{total / seconds:,.0f} steps/s; last trace {world.trace}\n"
    )
    return 0
