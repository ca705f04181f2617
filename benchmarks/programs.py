"""Times whole programs, with the cache on, off, and on `transformers`: `python -m
benchmarks.programs`.

    python -m benchmarks.programs [--model FOLDER|nano|random:HxL|dummy:HxL] [--scale S] [--count C] [--only NAMES]
                                  [--cache on|off|both] [--peer transformers] [--threads N] [--repeat R]
                                  [--set FIELD=VALUE] [--json FILE] [--seed N]

The shapes are those that prefix-sharing systems have been measured on; the texts are seeded random
words of the right token counts, generations are greedy and of forced length. `--scale` multiplies
all sizes in tokens, `--count` all numbers of programs, questions, events. Every run has a fresh
runtime. Ratios of one run are worth something, seconds are not: they depend on the machine and on
what else it does. `cpu` is processor time of all processes of a side, which other load disturbs
less than the wall clock.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from benchmarks import runner
from benchmarks.measure import Bench, Measured
from benchmarks.models import prepared
from benchmarks.report import Line, time_table, work_table
from benchmarks.workloads import ALL
from benchmarks.workloads.shape import Workload
from benchmarks.workloads.text import Pieces, Writer
from lmprog.runtime.text.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from benchmarks.peers.transformers import TransformersPeer


def on_peer(workload: Workload, peer: TransformersPeer) -> Measured:
    computed, forwards = peer.num_computed, peer.num_forwards
    cpu, wall = time.process_time(), time.perf_counter()
    outputs = workload.peer(peer)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    work = {"computed_tokens": peer.num_computed - computed, "steps": peer.num_forwards - forwards}
    return Measured(wall, cpu, outputs, {name: float(count) for name, count in work.items()})


def measure(
    bench: Bench, workload: Workload, peer: TransformersPeer | None, cache: str, repeat: int
) -> Line:
    """Runs the workload `repeat` times on each side, taking turns, and keeps each side's best
    times.
    """
    sides: dict[str, Callable[[], Measured]] = {}
    if cache != "off":
        sides["on"] = partial(bench.on_lmprog, workload, share=True)
    if cache != "on":
        sides["off"] = partial(bench.on_lmprog, workload, share=False)
    if peer is not None:
        sides["peer"] = partial(on_peer, workload, peer)
    found = runner.in_turn(sides, repeat)
    best = {name: reduce(Measured.or_faster, runs) for name, runs in found.items()}
    return Line(workload.name, workload.about, *map(best.get, ("on", "off", "peer")))


def chosen(names: str) -> list[type[Workload]]:
    """The workloads whose names contain one of the comma-separated `names`; all where it is
    empty.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    found = [kind for kind in ALL if not wanted or any(name in kind.name for name in wanted)]
    if not found:
        known = ", ".join(kind.name for kind in ALL)
        sys.exit(f"no workload is called {names!r}; there are {known}")
    return found


def _field(text: str) -> tuple[str, object]:
    name, _, value = text.partition("=")
    return name, int(value) if value.isdigit() else value


Fields = Annotated[
    Sequence[Any],
    {"type": _field, "action": "append", "nargs": None, "metavar": "FIELD=VALUE"},
]


def programs(model: str, folder: Path | None, options: dict[str, Any]) -> None:
    tokenizer, peer = load_tokenizer(folder), None
    bench = Bench(model, options["threads"], tokenizer, dict(options["set_"]))
    if options["peer"]:
        if folder is None:
            sys.exit("--peer needs a checkpoint with files; a dummy has none (random:256x6 is one)")
        from benchmarks.peers.transformers import TransformersPeer, warm_up

        peer = TransformersPeer(folder, options["threads"])
        warm_up(peer)
    pieces, lines = Pieces(tokenizer), []
    for kind in chosen(options["only"]):
        sizes = (options["scale"], options["count"])
        workload = kind(Writer(pieces, f"{options['seed']} {kind.name}", *sizes))
        lines.append(measure(bench, workload, peer, options["cache"], options["repeat"]))
        print(f"{kind.name}: done", file=sys.stderr, flush=True)
    about = options | {"load": os.getloadavg()[0], "cpus": os.cpu_count()}
    print(", ".join(f"{name.removesuffix('_')} {value}" for name, value in about.items()))
    for title, rows in (("The work", work_table(lines)), ("The time", time_table(lines))):
        print(f"\n{title}\n")
        runner.head(*rows[0])
        for row in rows:
            runner.say(*row.values())


@runner.command
def main(
    *,
    model: Annotated[str, "random:256x6 makes a Llama"] = "nano",
    scale: Annotated[float, "of all sizes in tokens"] = 0.25,
    count: Annotated[float, "of all numbers of things"] = 0.1,
    only: Annotated[str, "workloads whose names contain one of these, with commas between"] = "",
    cache: Literal["on", "off", "both"] = "both",
    peer: Annotated[
        str | None, "also do the work with its generate", {"choices": ["transformers"]}
    ] = None,
    threads: Annotated[int, "of each side"] = 1,
    repeat: Annotated[int, "runs of each side; the best times count"] = 1,
    set_: Annotated[Fields, "of the runtime's configuration"] = (),
    seed: int = 1,
) -> None:
    options = dict(locals())
    with prepared(model) as (name, folder):
        programs(name, folder, options)
