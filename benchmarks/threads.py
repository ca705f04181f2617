"""What threads gain and lose: `python -m benchmarks.threads`, with `--busy` beside a process that
takes one core.

Tokens per second of 1, 16 and 64 generations at once over the wire, with one thread, with all, and
with the runtime's own choice. Knows runtimes as processes only.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from statistics import median
from typing import Any

from benchmarks import runner
from benchmarks.models import prepared
from benchmarks.server import CLIENTS, PROMPT, bare_wire
from lmprog.launch import RuntimeProcess
from lmprog.runtime.engine.engine import default_threads

BODY: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 32, "ignore_eos": True, "temperature": 0}


def measured(model: str, threads: int | None, rounds: int) -> list[float]:
    """Tokens per second for each number of clients, the median of the rounds."""
    with RuntimeProcess(model, threads=threads) as runtime:
        bare_wire(runtime.address, 1, 1, BODY)
        return [
            median(bare_wire(runtime.address, clients, 2, BODY) for _ in range(rounds))
            for clients in CLIENTS
        ]


@runner.command
def main(
    models: Sequence[str] = ("nano", "random:512x10"), *, busy: bool = False, rounds: int = 3
) -> None:
    runner.head("model", "threads", *(f"{clients} at once" for clients in CLIENTS), texts=2)
    with runner.busy_neighbour() if busy else nullcontext():
        for name in models:
            with prepared(name) as (model, _):
                for threads in (1, default_threads(), None):
                    speeds = measured(model, threads, rounds)
                    runner.say(name, threads or "chosen", *(f"{s:,.0f}" for s in speeds))
