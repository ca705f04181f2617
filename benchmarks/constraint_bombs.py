"""Do hard patterns of strangers slow others down? `python -m benchmarks.constraint_bombs`.

Four unconstrained streams decode on nano; 50 calls with hard constraints arrive at once (those of
docs/constraints.md, and objects of 200 optional properties). Measured is the time between two steps
that bring the streams text: alone, with 50 calls that have no constraint (what any 50 calls cost),
and with the hard ones, in one process: the runtime's own loop and compiler, no sockets. Then come
the three that were the slowest to decide, each asked for three times, with the processor time until
its first mask on 131,072 tokens. Seconds of the clock: only a quiet machine gives figures.
`--processor` counts processor time of the whole process instead, the compiler's thread included:
what the streams would wait at most if there were one core.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Sequence
from typing import Annotated

from benchmarks import runner
from benchmarks.constraint_engines import TEKKEN
from lmprog import wire
from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.token_bytes import vocabulary_of_tokenizer
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import RequestRejected
from lmprog.runtime.assembly import assemble
from lmprog.simulation.world import SimChannel

ME = b"bench"
NUM_STREAMS, NUM_BOMBS = 4, 50
MOST = 48  # tokens of each of the others; what their shortest texts need
PATTERNS = (r"[ab]*a[ab]{24}", r"(\w+\s?){1,200}", r".{1,100000}", r"\w{1,16}")
TOO_LARGE = "a{1000000000}"
LETTERS = "|".join(chr(0x4E00 + i) for i in range(20_000))


def slowest(number: int) -> dict[str, wire.Constraint]:
    """Another `number` makes others of the same kind, so that none is compiled already."""
    choices = tuple(f"{number}-{i * 7919 % 1_000_003}" for i in range(100_000))
    return {
        "20,000 letters, repeated": wire.Regex(f"({LETTERS}){{{number},}}"),
        "(a?){5000}a{5000}": wire.Regex(f"(a?){{5000}}a{{{5000 + number}}}"),
        "65,536 choices": wire.Choices(choices[: 1 << 16]),
        "enum of 100,000 texts": wire.JsonSchema(json.dumps({"enum": choices})),
    }


def bombs() -> list[wire.Constraint]:
    """Each is new, so that none is compiled already; every tenth is refused for its size."""
    found: list[wire.Constraint] = []
    for number in range(NUM_BOMBS):
        if number % 10 == 0:
            found.append(wire.Regex(f"{TOO_LARGE}z{number}"))
        elif number % 5 == 0:
            fields = {f"p{number}_{index}": {"type": "string"} for index in range(200)}
            found.append(wire.JsonSchema(json.dumps({"type": "object", "properties": fields})))
        else:
            found.append(wire.Regex(f"{PATTERNS[number % len(PATTERNS)]}z{number}"))
    return found


class Bench:
    """One runtime without a process; calls are numbered as they are made."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.refused: list[wire.Failed] = []
        self.ended: set[int | None] = set()
        self.channel = SimChannel()
        # Drafts bring several tokens of a stream at once, and a step is what is measured here.
        config = RuntimeConfig(model="nano", scheduler=SchedulerConfig(speculation="off"))
        self.loop, _ = assemble(config, self.channel)
        self.num_calls = 0

    def ask(self, constraint: wire.Constraint | None, max_tokens: int, stream: bool) -> int:
        self.num_calls += 1
        number, text = self.num_calls, wire.TextPiece(f"Once upon a time {self.num_calls}")
        sampling = wire.SamplingParams(seed=number, max_tokens=max_tokens, ignore_eos=True)
        gen = wire.Generate(number, number, sampling, constraint, stream)
        ops = (wire.Open(number), wire.Append(number, (text,)), gen)
        self.channel.inbox += [(ME, op) for op in ops]
        return number

    def gaps(self, others: Sequence[wire.Constraint | None], steps: int) -> tuple[list[float], int]:
        """Milliseconds between the streams' texts, sorted; how many of the others were answered
        meanwhile.
        """
        streams = {self.ask(None, steps, stream=True) for _ in range(NUM_STREAMS)}
        self._turn(8)
        asked = {self.ask(constraint, MOST, stream=False) for constraint in others}
        found: list[float] = []
        last = self.clock()
        while not streams <= self.ended:
            replies = self._turn(1)
            if any(isinstance(reply, wire.Delta) and reply.call in streams for reply in replies):
                now = self.clock()
                found.append(1e3 * (now - last))
                last = now
        meanwhile = len(asked & self.ended)
        self.rest()
        return sorted(found), meanwhile

    def rest(self) -> None:
        self._turn(5)
        while self.loop.interpreter.awaits_thread or not self.loop.scheduler.idle:
            self._turn(1)

    def _turn(self, count: int) -> list[wire.Reply]:
        for _ in range(count):
            self.loop.step()
        sent, self.channel.sent = self.channel.sent, []
        replies = [reply for _, reply in sent]
        ends = [one for one in replies if isinstance(one, wire.CallDone | wire.Failed)]
        self.ended |= {one.call for one in ends}
        self.refused += [one for one in ends if isinstance(one, wire.Failed)]
        return replies


def decided_in(spec: wire.Constraint, vocabulary: Vocabulary) -> tuple[float, str]:
    """Seconds of processor time until the first mask or the refusal."""
    begin = time.process_time()
    try:
        made = compile_constraint(spec, vocabulary)
        made.mask(made.start, max(1, made.distance(made.start)))
        answer = "compiled"
    except RequestRejected:
        answer = "refused"
    return time.process_time() - begin, answer


@runner.command
def main(
    *,
    steps: Annotated[int, "tokens of each stream"] = 250,
    processor: Annotated[bool, "count processor time"] = False,
) -> None:
    bench = Bench(time.process_time if processor else time.perf_counter)
    bench.ask(wire.Regex("warm+"), 8, stream=False)
    bench.rest()
    gc.collect()
    gc.freeze()  # as the runtime's process does
    each = [slowest(number) for number in range(1, 4)]
    others: dict[str, Sequence[wire.Constraint | None]] = {
        "alone": [],
        "with 50 calls without constraints": [None] * NUM_BOMBS,
        "with 50 hard ones": bombs(),
        **{f"with three of {name}": [one[name] for one in each] for name in each[0]},
    }
    for name, those in others.items():
        gaps, answered = bench.gaps(those, steps)
        p50, p99 = (runner.percentile(gaps, part) for part in (0.5, 0.99))
        print(
            f"{name}: p50 {p50:.1f} ms, p99 {p99:.1f} ms, worst {gaps[-1]:.1f} ms; "
            f"{answered} answered meanwhile",
            flush=True,
        )
    vocabulary = vocabulary_of_tokenizer(TEKKEN)
    vocabulary.prepare()
    decided_in(wire.Regex("warm+"), vocabulary)
    for name, spec in slowest(4).items():
        seconds, answer = decided_in(spec, vocabulary)
        print(f"{name}: {answer} in {seconds:.2f} s of processor time", flush=True)
