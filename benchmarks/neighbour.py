"""What a step on several threads loses beside another process that computes for ever.

    python -m benchmarks.neighbour --model random:S

Alone and beside the other process alternate within one run, so that other load hits both alike: the
other process is stopped and continued. What counts is steps per second of wall clock, since a
thread that waits for another one uses no processor time. Knows the engine only, no server.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from typing import Annotated, Any

from benchmarks import runner
from benchmarks.engine import STEPS, load
from benchmarks.models import prepared


def steps_per_second(engine: Any, step: Any, seconds: float) -> float:
    """Of the wall clock, for about so long and at least two steps."""
    began, count = time.perf_counter(), 0
    while count < 2 or time.perf_counter() - began < seconds:
        engine.forward(step)
        count += 1
    return count / (time.perf_counter() - began)


@runner.command
def main(
    *,
    model: str = "random:S",
    side: Annotated[str, "of benchmarks.engine"] = "native f32",
    threads: Sequence[int] = (2, 1),
    rounds: int = 7,
    seconds: Annotated[float, "of one measurement"] = 0.3,
) -> None:
    runner.head("threads", *(f"{name}: alone, beside, kept" for name in STEPS))
    with prepared(model) as (folder, _), runner.busy_neighbour() as other:
        os.kill(other, signal.SIGSTOP)
        for count in threads:
            engine, cells = load(side, folder, count), []
            for step in STEPS.values():

                def speed(is_busy: bool, engine: Any = engine, step: Any = step) -> float:
                    os.kill(other, signal.SIGCONT if is_busy else signal.SIGSTOP)
                    time.sleep(0.02)  # so that the system has seen it
                    return steps_per_second(engine, step, seconds)

                found = runner.medians(
                    {"a": lambda: speed(False), "b": lambda: speed(True)}, rounds
                )
                alone, beside = found.values()
                cells.append(f"{alone:.1f}, {beside:.1f}, {beside / alone:.0%}")
            runner.say(count, *cells)
