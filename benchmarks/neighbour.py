"""What a step on several threads loses beside another process that computes for ever.

    python -m benchmarks.neighbour --model random:S

Alone and beside the other process alternate within one run, so that other load hits both alike: the
other process is stopped and continued. What counts is steps per second of wall clock, since a
thread that waits for another one uses no processor time. Knows the engine only, no server.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import engine as engines
from benchmarks.checkpoints import checkpoint

STEPS = ("prefill 512", "B=1", "B=16", "B=64")


def steps_per_second(engine: Any, step: Any, seconds: float) -> float:
    """Of the wall clock, for about so long and at least two steps."""
    began, count = time.perf_counter(), 0
    while count < 2 or time.perf_counter() - began < seconds:
        engine.forward(step)
        count += 1
    return count / (time.perf_counter() - began)


def measured(
    engine: Any, other: subprocess.Popen[bytes], asked: argparse.Namespace
) -> dict[str, tuple[float, float]]:
    """Medians of steps per second, alone and beside the other process, by step."""
    taken: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in STEPS}
    for name in STEPS:
        for _ in range(asked.rounds):
            for busy in (False, True):
                os.kill(other.pid, signal.SIGCONT if busy else signal.SIGSTOP)
                time.sleep(0.02)  # so that the system has seen it
                speed = steps_per_second(engine, engines.STEPS[name], asked.seconds)
                taken[name][busy].append(speed)
    return {
        name: (statistics.median(alone), statistics.median(beside))
        for name, (alone, beside) in taken.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="random:S")
    parser.add_argument("--side", default="native f32", help="of benchmarks.engine")
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 1])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="of one measurement")
    asked = parser.parse_args()
    print("| threads | " + " | ".join(f"{name}: alone, beside, kept" for name in STEPS) + " |")
    print("|-|" + "-:|" * len(STEPS))
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    os.kill(other.pid, signal.SIGSTOP)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            model = asked.model
            if model.removeprefix("random:") in engines.SIZES:
                engines.make(Path(scratch), model.removeprefix("random:"))
                model = scratch
            else:
                model = checkpoint(model, Path(scratch))[0]
            for threads in asked.threads:
                found = measured(engines.load(asked.side, model, threads), other, asked)
                cells = [f"{a:.1f}, {b:.1f}, {b / a:.0%}" for a, b in found.values()]
                print(f"| {threads} | " + " | ".join(cells) + " |", flush=True)
    finally:
        other.kill()
        other.wait()


if __name__ == "__main__":
    main()
