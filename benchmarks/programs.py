"""Times whole programs, with the cache on, off, and on `transformers`: `python -m
benchmarks.programs`.

    python -m benchmarks.programs [--model FOLDER|nano|random:HxL|dummy:HxL] [--scale S] [--count C] [--only NAMES]
                                  [--cache on|off|both] [--peer transformers] [--threads N] [--repeat R]
                                  [--set FIELD=VALUE] [--json FILE] [--seed N]
    python -m benchmarks.programs --pauses 0,10,100 [--model ...] [--scale S] [--memory PARTS] [--answers TOKENS]

The shapes are those that prefix-sharing systems have been measured on; the texts are seeded random
words of the right token counts, generations are greedy and of forced length. `--scale` multiplies
all sizes in tokens, `--count` all numbers of programs, questions, events. Every run has a fresh
runtime. Ratios of one run are worth something, seconds are not: they depend on the machine and on
what else it does. `cpu` is processor time of all processes of a side, which other load disturbs
less than the wall clock.

With `--pauses` only the chats run, with pauses of so many steps in the mean between two turns, in a
memory for a part of them: on the runtime and in the offline simulator, as one table
(`pressure_table`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.checkpoints import checkpoint
from benchmarks.measure import Bench, Measured
from benchmarks.pressure_table import Pressure, table
from benchmarks.report import Line, as_json, time_table, work_table
from benchmarks.workloads import ALL
from benchmarks.workloads.shape import Workload
from benchmarks.workloads.text import Pieces, Writer
from lmprog.runtime.text.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from benchmarks.peers.transformers import TransformersPeer


OF_CHATS = ("memory", "answers")
"""Options that only chats with pauses have."""
OF_PROGRAMS = ("count", "only", "cache", "peer", "threads", "set", "json", "seed")
"""Options that they do not have."""


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="lmprog-bench-") as scratch:
        model, folder = checkpoint(options.model, Path(scratch))
        if options.pauses:
            asked = Pressure(
                model,
                options.answers,
                options.pauses,
                options.memory,
                options.scale,
                options.repeat,
            )
            print(f"{vars(options)}, load {os.getloadavg()[0]:.0f}\n", flush=True)
            for line in table(asked):
                print(line, flush=True)
            return 0
        tokenizer = load_tokenizer(folder)
        bench = Bench(model, options.threads, tokenizer, dict(options.set))
        peer = None
        if options.peer:
            if folder is None:
                sys.exit(
                    "--peer needs a checkpoint with files; a dummy has none (random:256x6 is one)"
                )
            from benchmarks.peers.transformers import TransformersPeer, warm_up

            peer = TransformersPeer(folder, options.threads)
            warm_up(peer)
        pieces = Pieces(tokenizer)
        lines = []
        for kind in chosen(options.only):
            workload = kind(
                Writer(pieces, f"{options.seed} {kind.name}", options.scale, options.count)
            )
            lines.append(measure(bench, workload, peer, options.cache, options.repeat))
            print(f"{kind.name}: done", file=sys.stderr, flush=True)
    about = {
        **{name: value for name, value in vars(options).items() if name != "json"},
        "load": os.getloadavg()[0],
        "cpus": os.cpu_count(),
    }
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    print(f"\nThe work\n\n{work_table(lines)}\n\nThe time\n\n{time_table(lines)}")
    if options.json:
        options.json.write_text(json.dumps(as_json(lines, about), indent=1) + "\n")
    return 0


def measure(
    bench: Bench, workload: Workload, peer: TransformersPeer | None, cache: str, repeat: int
) -> Line:
    """Runs the workload `repeat` times on each side, taking turns, and keeps each side's best
    times.
    """
    on = off = other = None
    for _ in range(repeat):
        if cache != "off":
            on = bench.on_lmprog(workload, share=True).or_faster(on)
        if cache != "on":
            off = bench.on_lmprog(workload, share=False).or_faster(off)
        if peer is not None:
            other = _on_peer(workload, peer).or_faster(other)
    return Line(workload.name, workload.about, on, off, other)


def _on_peer(workload: Workload, peer: TransformersPeer) -> Measured:
    computed, forwards = peer.num_computed, peer.num_forwards
    cpu, wall = time.process_time(), time.perf_counter()
    outputs = workload.peer(peer)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    work = {
        "computed_tokens": float(peer.num_computed - computed),
        "steps": float(peer.num_forwards - forwards),
    }
    return Measured(wall, cpu, outputs, work)


def chosen(names: str) -> list[type[Workload]]:
    """The workloads whose names contain one of the comma-separated `names`; all where it is
    empty.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    found = [kind for kind in ALL if not wanted or any(name in kind.name for name in wanted)]
    if not found:
        sys.exit(
            f"no workload is called {names!r}; there are {', '.join(kind.name for kind in ALL)}"
        )
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.programs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model", default="nano", help="default %(default)s; random:256x6 makes a Llama"
    )
    parser.add_argument(
        "--scale", type=float, default=0.25, help="of all sizes in tokens (default %(default)s)"
    )
    parser.add_argument(
        "--count", type=float, default=0.1, help="of all numbers of things (default %(default)s)"
    )
    parser.add_argument(
        "--only", default="", help="workloads whose names contain one of these, with commas between"
    )
    parser.add_argument("--cache", choices=("on", "off", "both"), default="both")
    parser.add_argument(
        "--peer", choices=("transformers",), help="also do the work with its generate"
    )
    parser.add_argument("--threads", type=int, default=1, help="of each side (default %(default)s)")
    parser.add_argument(
        "--repeat", type=int, default=1, help="runs of each side; the best times count"
    )
    parser.add_argument(
        "--set",
        type=_field,
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="of the runtime's configuration",
    )
    parser.add_argument(
        "--pauses", type=_numbers, default=[], help="of chats, in steps in the mean: 0,10,100"
    )
    parser.add_argument(
        "--memory", type=_numbers, default=[0.5, 0.25], help="of these chats (default 0.5,0.25)"
    )
    parser.add_argument(
        "--answers", type=_numbers, default=[8.0, 384.0], help="of these chats (default 8,384)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything here")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    others = OF_PROGRAMS if options.pauses else OF_CHATS
    if given := [name for name in others if getattr(options, name) != parser.get_default(name)]:
        what = "goes with --pauses only" if given[0] in OF_CHATS else "does not go with --pauses"
        parser.error(f"--{given[0]} {what}")
    return options


def _numbers(text: str) -> list[float]:
    return [float(one) for one in text.split(",")]


def _field(text: str) -> tuple[str, object]:
    name, _, value = text.partition("=")
    return name, int(value) if value.isdigit() else value


if __name__ == "__main__":
    sys.exit(main())
