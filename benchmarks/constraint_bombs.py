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

import argparse
import gc
import json
import time
from collections.abc import Callable, Sequence

from benchmarks.constraints import TEKKEN
from lmprog import wire
from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.token_bytes import vocabulary_of_tokenizer
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import RequestRejected
from lmprog.runtime.assembly import assemble
from lmprog.runtime.loop import Loop
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
    enum = json.dumps({"enum": choices})
    return {
        "20,000 letters, repeated": wire.Regex(f"({LETTERS}){{{number},}}"),
        "(a?){5000}a{5000}": wire.Regex(f"(a?){{5000}}a{{{5000 + number}}}"),
        "65,536 choices": wire.Choices(choices[: 1 << 16]),
        "enum of 100,000 texts": wire.JsonSchema(enum),
    }


class Bench:
    """One runtime without a process; calls are numbered as they are made."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.refused: list[wire.Failed] = []
        self.ended: set[int | None] = set()
        self.channel = SimChannel()
        self.loop: Loop
        # Drafts bring several tokens of a stream at once, and a step is what is measured here.
        config = RuntimeConfig(model="nano", scheduler=SchedulerConfig(speculation="off"))
        self.loop, _ = assemble(config, self.channel)
        self.num_calls = 0

    def ask(self, constraint: wire.Constraint | None, max_tokens: int, stream: bool) -> int:
        self.num_calls += 1
        number = self.num_calls
        sampling = wire.SamplingParams(seed=number, max_tokens=max_tokens, ignore_eos=True)
        self.channel.inbox += [
            (ME, wire.Open(number)),
            (ME, wire.Append(number, (wire.TextPiece(f"Once upon a time {number}"),))),
            (ME, wire.Generate(number, number, sampling, constraint, stream)),
        ]
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
        self.ended |= {
            reply.call for reply in replies if isinstance(reply, wire.CallDone | wire.Failed)
        }
        self.refused += [reply for reply in replies if isinstance(reply, wire.Failed)]
        return replies


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=250, help="tokens of each stream")
    parser.add_argument("--processor", action="store_true", help="count processor time")
    asked = parser.parse_args()
    steps: int = asked.steps
    bench = Bench(time.process_time if asked.processor else time.perf_counter)
    bench.ask(wire.Regex("warm+"), 8, stream=False)
    bench.rest()
    gc.collect()
    gc.freeze()  # as the runtime's process does
    free: list[wire.Constraint | None] = [None] * NUM_BOMBS
    others: list[tuple[str, Sequence[wire.Constraint | None]]] = [
        ("alone", []),
        ("with 50 calls without constraints", free),
        ("with 50 hard ones", bombs()),
    ]
    each = [slowest(number) for number in range(1, 4)]
    others += [(f"with three of {name}", [one[name] for one in each]) for name in each[0]]
    for name, those in others:
        gaps, answered = bench.gaps(those, steps)
        p50, p99 = gaps[len(gaps) // 2], gaps[int(0.99 * len(gaps))]
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


if __name__ == "__main__":
    main()
