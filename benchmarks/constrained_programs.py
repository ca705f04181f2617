"""What constraints cost and save in whole programs: `python -m benchmarks.constrained_programs`.

The two JSON programs of `benchmarks.workloads.documents`, on one runtime, in one process, three
ways: *off* (no constraint, as many tokens as the constrained run wrote, call by call), *masks*
(every token is picked under a mask), *jump-forward* (forced tokens are appended as well). All
programs of a way run at once; ways take turns, and the median of the repetitions counts. Tokens are
those of the results, forced ones included; forward passes are rows of the batches (one sequence in
one step), and steps are batches. Processor time is disturbed less by other work than seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Annotated, Any

from benchmarks import runner
from benchmarks.models import prepared
from benchmarks.own_loop import OwnLoop
from benchmarks.workloads.documents import FIELDS, MOST, PATTERN
from benchmarks.workloads.text import Pieces, Writer
from lmprog import wire
from lmprog.runtime.text.tokenizer import load_tokenizer

WAYS = ("off", "masks", "jump-forward")
ME = b"bench"
Step = tuple[str, str, int]
"""Literal text, the pattern of the generation after it, its `max_tokens`."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one way of one workload took."""

    seconds: float
    cpu: float
    forced: int
    passes: int
    steps: int
    lengths: tuple[int, ...]
    """Tokens of each generation, in the order of the calls."""


def ops_of(
    programs: Sequence[Sequence[Step]], way: str, lengths: Sequence[int]
) -> Iterator[wire.Op]:
    """All programs; `lengths`: tokens of each generation where there is no constraint to end it."""
    call = 0
    for branch, program in enumerate(programs):
        yield wire.Open(branch)
        for literal, pattern, most in program:
            yield wire.Append(branch, (wire.TextPiece(literal),))
            drawn: dict[str, Any] = {"temperature": 1.0, "seed": call}
            if way == "off":
                sampling = wire.SamplingParams(**drawn, max_tokens=lengths[call], ignore_eos=True)
                yield wire.Generate(branch, call, sampling, heal=False)
            else:
                jump: Any = "canonical" if way == "jump-forward" else "exact"
                sampling = wire.SamplingParams(**drawn, max_tokens=most, jump=jump)
                yield wire.Generate(branch, call, sampling, wire.Regex(pattern), heal=False)
            call += 1


def worked(
    own: OwnLoop, programs: Sequence[Sequence[Step]], way: str, lengths: Sequence[int] = ()
) -> Work:
    """All programs at once, on an empty cache."""
    own.say(ME, wire.Flush(0))
    own.turn()
    own.say(ME, *ops_of(programs, way, lengths))
    expected, done, stats = sum(map(len, programs)), dict[int, int](), own.loop.scheduler.stats
    before = (stats.forced_tokens, stats.rows, stats.steps)
    began, cpu = time.perf_counter(), time.process_time()
    while len(done) < expected:
        for came in own.turn():
            if isinstance(came.reply, wire.CallDone):
                done[came.reply.call] = len(came.reply.outputs[0].tokens)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    after = (stats.forced_tokens, stats.rows, stats.steps)
    forced, passes, steps = (b - a for a, b in zip(before, after, strict=True))
    own.say(ME, *(wire.Close(branch) for branch in range(len(programs))))
    own.turn()
    sizes = tuple(done[call] for call in sorted(done))
    return Work(seconds, cpu, forced, passes, steps, sizes)


def workloads(pieces: Pieces, count: float) -> dict[str, list[list[Step]]]:
    """The programs, with seeded random words for documents and names."""
    writer = Writer(pieces, "constrained", 1.0, count)
    documents = [writer.text(1000, 3000) for _ in range(writer.number(20))]
    names = [writer.text(20) for _ in range(writer.number(50))]
    chain = [(literal, pattern, MOST) for literal, pattern in FIELDS]
    return {
        "json decode": [[(text + chain[0][0], *chain[0][1:]), *chain[1:]] for text in documents],
        "json jump-forward": [[(name, PATTERN, 512)] for name in names],
    }


@runner.command
def main(
    *,
    model: Annotated[str, "as in benchmarks.programs"] = "nano",
    count: Annotated[float, "multiplies the number of programs"] = 1.0,
    repeat: int = 3,
    threads: int | None = None,
) -> None:
    with prepared(model) as (name, folder):
        own = OwnLoop(name, speculation="off", threads=threads)
        pieces = Pieces(load_tokenizer(folder))
    columns = (
        "way, tokens, forced, forward passes, per token, steps, seconds, cpu seconds, tokens/s"
    )
    runner.head("program", *columns.split(", "), texts=2)
    for title, programs in workloads(pieces, count).items():
        lengths = worked(own, programs, "jump-forward").lengths  # warm as well
        sides = {way: partial(worked, own, programs, way, lengths) for way in WAYS}
        for way, works in runner.in_turn(sides, repeat).items():
            one, tokens = works[0], sum(works[0].lengths)
            seconds, cpu = median(w.seconds for w in works), median(w.cpu for w in works)
            runner.say(
                *(title, way, f"{tokens:,}", f"{one.forced:,}", f"{one.passes:,}"),
                *(f"{one.passes / tokens:.2f}", f"{one.steps:,}", f"{seconds:.2f}"),
                *(f"{cpu:.2f}", f"{tokens / seconds:,.0f}"),
            )
