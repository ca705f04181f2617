"""What threads gain and lose: `python -m benchmarks.threads`, with `--busy` beside a process that
takes one core.

Tokens per second of 1, 16 and 64 generations at once over the wire, with one thread, with all, and
with the runtime's own choice. Knows runtimes as processes only.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.checkpoints import checkpoint
from benchmarks.server import PROMPT, bare_wire
from lmprog.launch import RuntimeProcess
from lmprog.runtime.engine.engine import default_threads

CLIENTS = (1, 16, 64)
BODY: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 32, "ignore_eos": True, "temperature": 0}


@contextmanager
def neighbour(busy: bool) -> Iterator[None]:
    """Another process that computes for ever on one core, if there is to be one."""
    if not busy:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measured(model: str, threads: int | None, rounds: int) -> list[float]:
    """Tokens per second for each number of clients, the median of the rounds."""
    with RuntimeProcess(model, threads=threads) as runtime:
        bare_wire(runtime.address, 1, 1, BODY)
        return [
            statistics.median(bare_wire(runtime.address, clients, 2, BODY) for _ in range(rounds))
            for clients in CLIENTS
        ]


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("models", nargs="*", default=["nano", "random:512x10"])
    asked.add_argument("--busy", action="store_true")
    asked.add_argument("--rounds", type=int, default=3)
    given: Any = asked.parse_args()
    print("| model | threads | " + " | ".join(f"{clients} at once" for clients in CLIENTS) + " |")
    print("|-|-|" + "-:|" * len(CLIENTS))
    with tempfile.TemporaryDirectory(prefix="lmprog-bench-") as scratch, neighbour(given.busy):
        for name in given.models:
            model, _ = checkpoint(name, Path(scratch))
            for threads in (1, default_threads(), None):
                speeds = measured(model, threads, given.rounds)
                print(
                    f"| {name} | {threads or 'chosen'} | "
                    + " | ".join(f"{s:,.0f}" for s in speeds)
                    + " |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
