"""`lmprog sim`: runs worlds and reports; a violation names the seed and step that replay it."""

from __future__ import annotations

import sys
from collections.abc import Callable

from lmprog.simulation.world_runs import SimulationRun, WorldTally, tallies


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
