"""What constraints cost and save in whole programs: `python -m benchmarks.constrained_programs`.

The two JSON programs of `benchmarks.workloads.documents`, on one engine, in one process, three
ways: *off* (no constraint, as many tokens as the constrained run wrote, call by call), *masks*
(every token is picked under a mask), *jump-forward* (forced tokens are appended as well). All
programs of a way run at once; ways take turns, and the median of the repetitions counts. Tokens are
those of the results, forced ones included; forward passes are rows of the batches (one sequence in
one step), and steps are batches. Processor time is disturbed less by other work than seconds.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.checkpoints import checkpoint
from benchmarks.workloads.documents import FIELDS, MOST, PATTERN
from benchmarks.workloads.text import Pieces, Writer
from lmprog import wire
from lmprog.config import RuntimeConfig
from lmprog.errors import NotSupported
from lmprog.runtime.engine.engine import load_engine
from lmprog.runtime.engine.torch_engine.sampler import TorchSampler
from lmprog.runtime.loop import Loop
from lmprog.runtime.programs.call_builder import CallBuilder, CallLimits
from lmprog.runtime.programs.call_constraints import CallConstraints
from lmprog.runtime.programs.interpreter import Interpreter
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.text.chat_template import ChatTemplate
from lmprog.runtime.text.tokenizer import load_tokenizer
from lmprog.simulation.world import SimChannel

WAYS = ("off", "masks", "jump-forward")
ME = b"bench"
Step = tuple[str, str, int]
"""Literal text, the pattern of the generation after it, its `max_tokens`."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one way of one workload took."""

    seconds: float
    cpu: float
    tokens: int
    forced: int
    passes: int
    steps: int
    lengths: tuple[int, ...]
    """Tokens of each generation, in the order of the calls."""


class Bench:
    """One engine; each run has a scheduler and a cache of its own, the compiled constraints are
    kept.
    """

    def __init__(self, model: str, threads: int | None) -> None:
        self.config = RuntimeConfig(model=model, threads=threads)
        self.engine = load_engine(self.config)
        self.tokenizer = load_tokenizer(self.engine.location)
        self.constraints = CallConstraints(self.tokenizer, self.engine.vocab_size)

    def run(
        self, programs: Sequence[Sequence[Step]], way: str, lengths: Sequence[int] = ()
    ) -> Work:
        """All programs at once. `lengths`: tokens of each generation where there is no constraint
        to end it.
        """
        scheduling = replace(self.config.scheduler, num_pages=self.engine.num_pages)
        scheduler = Scheduler(scheduling, self.engine.context_len)
        limits = CallLimits(
            self.engine.vocab_size, scheduler.longest_sequence, scheduler.check_fits
        )
        forcing = self.constraints.forcing if way == "jump-forward" else None
        calls = CallBuilder(self.tokenizer, limits, self.constraints, forcing, random.Random(0))
        channel = SimChannel()
        welcome = wire.Welcome(wire.PROTOCOL_VERSION, self.config.model, 0, 0, 0, 0, 0)
        interpreter = Interpreter(scheduler, calls, _no_template, welcome, time.monotonic)
        loop: Loop = Loop(
            channel, interpreter, scheduler, self.engine, TorchSampler(), time.monotonic
        )
        channel.inbox = [(ME, op) for op in _ops(programs, lengths if way == "off" else None)]
        expected = sum(len(program) for program in programs)
        outputs: dict[int, wire.CallDone] = {}
        began, cpu = time.perf_counter(), time.process_time()
        while len(outputs) < expected:
            loop.step()
            for _, reply in channel.sent:
                if isinstance(reply, wire.Failed):
                    raise RuntimeError(reply.message)
                assert isinstance(reply, wire.CallDone)
                outputs[reply.call] = reply
            channel.sent = []
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        sizes = tuple(len(outputs[call].outputs[0].tokens) for call in sorted(outputs))
        stats = scheduler.stats
        return Work(seconds, cpu, sum(sizes), stats.forced_tokens, stats.rows, stats.steps, sizes)


def _no_template() -> ChatTemplate:
    raise NotSupported("these programs have no roles")


def _ops(programs: Sequence[Sequence[Step]], lengths: Sequence[int] | None) -> list[wire.Op]:
    ops: list[wire.Op] = []
    call = 0
    for branch, program in enumerate(programs):
        ops.append(wire.Open(branch))
        for literal, pattern, most in program:
            ops.append(wire.Append(branch, (wire.TextPiece(literal),)))
            free = lengths is not None
            sampling = wire.SamplingParams(
                temperature=1.0,
                seed=call,
                max_tokens=lengths[call] if lengths is not None else most,
                ignore_eos=free,
            )
            ops.append(wire.Generate(branch, call, sampling, None if free else wire.Regex(pattern)))
            call += 1
    return ops


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


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--model", default="nano", help="as in benchmarks.programs (default: nano)")
    asked.add_argument("--count", type=float, default=1.0, help="multiplies the number of programs")
    asked.add_argument("--repeat", type=int, default=3)
    asked.add_argument("--threads", type=int)
    given: Any = asked.parse_args()
    with tempfile.TemporaryDirectory(prefix="lmprog-bench-") as scratch:
        model, _ = checkpoint(given.model, Path(scratch))
        bench = Bench(model, given.threads)
    print(
        "| program | way | tokens | forced | forward passes | per token | steps | seconds | "
        "cpu seconds | tokens/s |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, programs in workloads(Pieces(bench.tokenizer), given.count).items():
        found: dict[str, list[Work]] = {way: [] for way in WAYS}
        lengths = bench.run(programs, "jump-forward").lengths  # warm as well
        for _ in range(given.repeat):
            for way in WAYS:
                found[way].append(bench.run(programs, way, lengths))
        for way, works in found.items():
            one = works[0]
            seconds, cpu = (
                statistics.median(times)
                for times in zip(*((w.seconds, w.cpu) for w in works), strict=True)
            )
            print(
                f"| {name} | {way} | {one.tokens:,} | {one.forced:,} | {one.passes:,} | "
                f"{one.passes / one.tokens:.2f} "
                f"| {one.steps:,} | {seconds:.2f} | {cpu:.2f} | {one.tokens / seconds:,.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
