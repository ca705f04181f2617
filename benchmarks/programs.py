"""Times whole programs, with the cache on, off, and on `transformers`: `python -m
benchmarks.programs`.

    python -m benchmarks.programs [--model FOLDER|nano|random:HxL|dummy:HxL] [--scale S] [--count C] [--only NAMES]
                                  [--cache on|off|both] [--peer transformers] [--threads N] [--repeat R]
                                  [--set FIELD=VALUE] [--seed N]

The shapes are those that prefix-sharing systems have been measured on; the texts are seeded random
words of the right token counts, generations are greedy and of forced length. `--scale` multiplies
all sizes in tokens, `--count` all numbers of programs, questions, events. Every run has a fresh
runtime. Ratios of one run are worth something, seconds are not: they depend on the machine and on
what else it does. `cpu` is processor time of all processes of a side, which other load disturbs
less than the wall clock.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from benchmarks import runner
from benchmarks.ledger import Account, Tap, account
from benchmarks.models import prepared
from benchmarks.runner import processor_time
from benchmarks.workloads import ALL
from benchmarks.workloads.shape import Workload
from benchmarks.workloads.text import Pieces, Writer
from lmprog import launch
from lmprog.backends.client import RuntimeBackend, describe, flush
from lmprog.lang.branches.branch import Branch
from lmprog.lang.decorator import function
from lmprog.runtime.text.tokenizer import ByteTokenizer, HfTokenizer, load_tokenizer

# -- one workload on a fresh runtime

_PROBE_MB = 16
COMPUTED, WRONG = "needed_tokens", "wrong_draft_tokens"
"""Of the tokens that went through the model, those that texts needed, and those of wrong drafts."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of one workload. `cpu` is processor time of all processes taking part, in seconds."""

    wall: float
    cpu: float
    outputs: list[str]
    work: dict[str, float] = field(default_factory=dict)
    """The runtime's counters, as differences; peaks as they are."""
    account: Account | None = None

    def or_faster(self, other: Measured) -> Measured:
        """Of two runs of the same work, the figures of the first with the better times of both."""
        return replace(self, wall=min(self.wall, other.wall), cpu=min(self.cpu, other.cpu))


@dataclass(frozen=True, slots=True)
class Bench:
    """On what workloads run."""

    model: str
    threads: int
    tokenizer: HfTokenizer | ByteTokenizer
    options: dict[str, Any] = field(default_factory=dict)
    """More fields of the runtime's configuration."""

    def on_lmprog(self, workload: Workload, *, share: bool) -> Measured:
        """Runs `workload` on a runtime of its own, with the tree (`share`) or without."""
        memory = None if workload.memory is None else self._megabytes(workload.memory)
        fields = {
            "dtype": "float32",
            "threads": self.threads,
            "share": share,
            "kv_memory_mb": memory,
            **self.options,
        }
        with launch.RuntimeProcess(self.model, **fields) as runtime:
            connection = runtime.connect("benchmark")
            tap = Tap(connection)
            with RuntimeBackend(tap) as backend:
                _warm_up.using(backend=backend, temperature=0.0, ignore_eos=True).run()
                flush(backend)
                before = describe(backend)
                num_ops = len(tap.ops)
                cpu, wall = _cpu_seconds(runtime.pid), time.perf_counter()
                outputs = workload.run(backend)
                wall = time.perf_counter() - wall
                cpu = _cpu_seconds(runtime.pid) - cpu
                after = describe(backend)
                booked = account(tap.ops[num_ops:], tap.replies, self.tokenizer)
        kept = {name for name in after if name.startswith("peak_") or name == "pages"}
        work = {
            name: value - (0.0 if name in kept else before.get(name, 0.0))
            for name, value in after.items()
        }
        work[COMPUTED] = work["computed_tokens"] - work[WRONG]
        return Measured(wall, cpu, outputs, work, booked)

    def _megabytes(self, tokens: int) -> int:
        """Key/value memory for so many tokens, rounded up."""
        with launch.RuntimeProcess(
            self.model, threads=self.threads, dtype="float32", kv_memory_mb=_PROBE_MB
        ) as runtime:
            info = runtime.connect("probe")
            per_mb = info.info.num_pages * info.info.page_size / _PROBE_MB
            info.close()
        return math.ceil(tokens / per_mb)


@function
def _warm_up(s: Branch) -> str:
    """So that nothing is done for the first time when the clock runs."""
    s.append(" warm up" * 8)
    return s.gen(max_tokens=4).value


def _cpu_seconds(pid: int) -> float:
    """Processor time of this process and of `pid`."""
    return processor_time(os.getpid(), pid)


# -- the rows of the tables


@dataclass(frozen=True, slots=True)
class Line:
    """All measurements of one workload; None what was not asked for."""

    name: str
    about: str
    on: Measured | None
    off: Measured | None
    peer: Measured | None

    @property
    def account(self) -> Account:
        measured = self.on or self.off
        if measured is None or measured.account is None:
            raise ValueError(f"{self.name} was run on nothing that keeps an account")
        return measured.account

    def hit_rate(self, computed: float) -> str:
        """The share of prompt tokens that need not be computed, where `computed` tokens are in all.

        As the published figures have it, every call counts with its whole prompt. Generated tokens
        must be computed and are taken out.
        """
        rest = max(0.0, computed - self.account.decoded)
        return f"{1.0 - rest / self.account.prompt:.1%}"


WORK = {
    "prefill": "prefill_tokens",
    "found": "cached_tokens",
    "forced": "forced_tokens",
    "generated": "generated_tokens",
}
PRESSURE = {"evicted": "evicted_pages", "preempted": "preemptions", "peak pages": "peak_pages"}
"""Columns of the runtime's own counters."""


def work_table(lines: Sequence[Line]) -> list[dict[str, str]]:
    """What was computed, and the least that could be. Counts are those of the run with the cache
    on.
    """
    rows = []
    for line in lines:
        booked, on, off = line.account, line.on, line.off
        work = (on or off or Measured(0, 0, [])).work

        def counts(columns: dict[str, str], work: dict[str, float] = work) -> dict[str, str]:
            return {title: f"{work[name]:,.0f}" for title, name in columns.items()}

        cells = {
            "workload": line.name,
            "calls": f"{booked.calls:,}",
            "tokens unshared": f"{booked.prompt + booked.decoded:,}",
            "lower bound": f"{booked.unique:,}",
            "computed": _count(on, COMPUTED),
            "computed (off)": _count(off, COMPUTED),
            "wrong drafts": _count(on, WRONG),
            **counts(WORK),
            "steps": _count(on, "steps"),
            "steps (off)": _count(off, "steps"),
            **counts(PRESSURE),
            "hit rate": line.hit_rate(work[COMPUTED]),
            "optimal": line.hit_rate(booked.unique),
        }
        rows.append(cells)
    return rows


def time_table(lines: Sequence[Line]) -> list[dict[str, str]]:
    """Times of the run with the cache on, and the others as multiples of it."""
    rows = []
    for line in lines:
        on, off, peer = line.on, line.off, line.peer
        cells = {
            "workload": line.name,
            "wall on (s)": f"{on.wall:.2f}" if on else "",
            "cpu on (s)": f"{on.cpu:.2f}" if on else "",
        }
        for name, other in (("off", off), ("transformers", peer)):
            ratios = ["", ""]
            if other is not None and on is not None:
                ratios = [f"{other.wall / on.wall:.2f}", f"{other.cpu / max(on.cpu, 0.01):.2f}"]
            cells[f"{name} / on wall"], cells[f"{name} / on cpu"] = ratios
        for name, other in (("off", off), ("transformers", peer)):
            share = equal_share(on, other)
            cells[f"equal on = {name}"] = "" if share is None else f"{share:.1%}"
        rows.append(cells)
    return rows


def equal_share(a: Measured | None, b: Measured | None) -> float | None:
    """The share of outputs that are the same; None where one of the two is missing."""
    if a is None or b is None:
        return None
    return sum(x == y for x, y in zip(a.outputs, b.outputs, strict=True)) / len(a.outputs)


def _count(measured: Measured | None, name: str) -> str:
    return "" if measured is None else f"{measured.work[name]:,.0f}"


# -- the command

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
