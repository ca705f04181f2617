"""First masks on many real-looking schemas, as the runtime makes them, beside llguidance.

    python -m benchmarks.constraint_schemas                  240 schemas of our generator
    python -m benchmarks.constraint_schemas --folder FOLDER  schemas with tests, in MaskBench's layout

Both engines take every schema in the same run, one after the other: processor time until the first
mask (compiling included, as the runtime's worker does it: with its time limit and its pauses), then
of one pass over a valid instance, a mask before every token, and of a second, warm pass. A schema
that one of them refuses is counted and left out of the comparison. Memory is what the process grew
by while all compiled schemas of an engine were held.
"""

from __future__ import annotations

import gc
import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from benchmarks import runner
from benchmarks.constraint_engines import TEKKEN, Engine, Llguidance, Ours, Refused, Walk
from benchmarks.constraint_suites import of_folder, spelled
from benchmarks.runner import percentile
from benchmarks.schema_generator import generated
from lmprog.constraints.constraint import Constraint
from lmprog.constraints.token_bytes import vocabulary_of_tokenizer
from lmprog.runtime.main import COLLECTED_EVERY
from lmprog.runtime.programs.compile_pool import CompilePool


class AsServed(Ours):
    """With what the runtime's worker does before the first mask."""

    def made(self, kind: str, source: str) -> Constraint:
        made = super().made(kind, source)
        made.forced(made.start)
        made.mask(made.start, max(1, made.distance(made.start)))
        return made


class Measured:
    """One engine's figures."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.walks: list[Walk | None] = []
        self.first: list[float] = []  # ms
        self.refusals: Counter[str] = Counter()
        self.kilobytes = 0

    def compile_all(self, sources: list[str]) -> None:
        self.walks, self.first, self.refusals = [], [], Counter()
        before = runner.Footprint.of(os.getpid()).kilobytes
        for source in sources:
            begin = time.process_time()
            try:
                walk = self.engine.compile("schema", source)
                walk.mask()
                self.walks.append(walk)
            except Refused as error:
                self.walks.append(None)
                self.refusals[str(error).partition(" at ")[0][:60]] += 1
            self.first.append((time.process_time() - begin) * 1e3)
        self.kilobytes = runner.Footprint.of(os.getpid()).kilobytes - before

    def passes(self, number: int, tokens: list[int]) -> tuple[list[float], bool]:
        """Microseconds of processor time of each token, about 0.5 of them the clock's, and whether
        the instance was taken."""
        walk = self.walks[number]
        assert walk is not None, "refused schemas are left out"
        walk.restart()
        times = []
        for token in tokens:
            begin = time.thread_time()
            walk.mask()
            taken = walk.advance(token)
            times.append((time.thread_time() - begin) * 1e6)
            if not taken:
                return times, False
        return times, walk.accepts()

    def report(self, kept: list[int], cold: list[float], warm: list[float]) -> None:
        first = [self.first[number] for number in kept]
        rows = {"first mask, ms": first, "cold mask + advance, us": cold}
        print(f"\n{self.engine.name}")
        for label, values in (rows | {"warm mask + advance, us": warm}).items():
            p90, p99 = (percentile(values, part) for part in (0.9, 0.99))
            ends = f"p90 {p90:9.2f}  p99 {p99:9.2f}  max {max(values):9.2f}"
            print(f"  {label:26s} median {median(values):8.2f}  {ends}")
        num_compiled = sum(walk is not None for walk in self.walks)
        total = sum(first) + sum(cold) / 1e3
        print(f"  compiling and first passes together {total:.0f} ms")
        print(f"  {num_compiled} compiled, {self.kilobytes / max(1, num_compiled):.0f} KB each")
        for why, count in self.refusals.most_common(6):
            print(f"  refused {count}: {why}")


def cases_of(folder: Path) -> Iterator[tuple[str, list[Any]]]:
    """The schemas with their valid instances."""
    for _, schema, tests in of_folder(folder):
        yield json.dumps(schema), [test["data"] for test in tests if test["valid"]]


@runner.command
def main(
    *,
    folder: Path | None = None,
    count: Annotated[int, "schemas that are generated"] = 240,
    most: Annotated[int | None, "take so many of a folder, drawn by --seed"] = None,
    seed: int = 0,
) -> None:
    vocabulary = vocabulary_of_tokenizer(TEKKEN)
    cases = list(cases_of(folder) if folder else generated(count, seed))
    if most:
        cases = random.Random(seed).sample(cases, min(most, len(cases)))
    engines = [
        Measured(AsServed(vocabulary, CompilePool().pause)),
        Measured(Llguidance(vocabulary)),
    ]
    for one in engines:  # loads kernels, indexes, this Python's character classes
        one.compile_all([source for source, _ in generated(3, 99)])
    gc.collect()
    gc.freeze()  # as the runtime's process does
    gc.set_threshold(*COLLECTED_EVERY)
    for one in engines:
        one.compile_all([source for source, _ in cases])
    kept = [n for n in range(len(cases)) if all(one.walks[n] is not None for one in engines)]
    print(f"{len(cases)} schemas, {len(kept)} compiled by both")
    for one in engines:
        cold, warm, num_taken, num_valid = list[float](), list[float](), 0, 0
        for number in kept:
            for data in cases[number][1][:3]:
                tokens = vocabulary.greedy(spelled(data))
                times, taken = one.passes(number, tokens)
                cold += times
                warm += one.passes(number, tokens)[0]
                num_valid += 1
                num_taken += taken
        one.report(kept, cold or [0.0], warm or [0.0])
        print(f"  valid instances taken {num_taken} of {num_valid}")
