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

import argparse
import gc
import json
import random
import resource
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.constraint_engines import Llguidance, OurWalk, Refused, Walk
from benchmarks.constraint_walks import quantile
from benchmarks.constraints import TEKKEN
from benchmarks.schema_generator import generated
from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.token_bytes import vocabulary_of_tokenizer
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import RequestRejected
from lmprog.runtime.main import COLLECTED_EVERY
from lmprog.runtime.programs.call_constraints import MAX_COMPILE_SECONDS
from lmprog.runtime.programs.compile_pool import CompilePool, TimeLimit

LABELS = ("first mask, ms", "cold mask + advance, us", "warm mask + advance, us")


class AsServed:
    """Our engine with what the runtime does around it."""

    name = "lmprog"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._pool = CompilePool()

    def compile(self, kind: str, source: str) -> Walk:
        assert kind == "schema"
        try:
            limit = TimeLimit(MAX_COMPILE_SECONDS, self._pool.pause)
            made = compile_constraint(wire.JsonSchema(source), self._vocabulary, check=limit)
            made.forced(made.start)
            made.mask(made.start, max(1, made.distance(made.start)))
        except RequestRejected as error:
            raise Refused(str(error)) from error
        return OurWalk(made)


class Measured:
    """One engine's figures."""

    def __init__(self, engine: AsServed | Llguidance) -> None:
        self.engine = engine
        self.walks: list[Walk | None] = []
        self.first: list[float] = []  # ms
        self.times: list[tuple[float, list[float], list[float]]] = []
        self.refusals: Counter[str] = Counter()
        self.megabytes = 0.0

    def compile_all(self, sources: list[str]) -> None:
        before = resident_bytes()
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
        self.megabytes = (resident_bytes() - before) / (1 << 20)

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


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * resource.getpagesize()


def of_folder(folder: Path) -> Iterator[tuple[str, list[Any]]]:
    """The schemas with their valid instances."""
    for path in sorted(folder.glob("*.json")):
        case = json.loads(path.read_text("utf-8"))
        valid = [test["data"] for test in case.get("tests", []) if test["valid"]]
        yield json.dumps(case["schema"]), valid


def report(measured: Measured, kept: list[int], cold: list[float], warm: list[float]) -> None:
    first = [measured.first[number] for number in kept]
    total = sum(first) + sum(cold) / 1e3
    print(f"\n{measured.engine.name}")
    for label, values in zip(LABELS, (first, cold, warm), strict=True):
        ends = f"p90 {quantile(values, 0.9):9.2f}  p99 {quantile(values, 0.99):9.2f}"
        print(
            f"  {label:26s} median {statistics.median(values):8.2f}  {ends}  max {max(values):9.2f}"
        )
    num_compiled = sum(walk is not None for walk in measured.walks)
    print(f"  compiling and first passes together {total:.0f} ms")
    print(
        f"  {num_compiled} compiled, {measured.megabytes / max(1, num_compiled) * 1024:.0f} KB each"
    )
    for why, count in measured.refusals.most_common(6):
        print(f"  refused {count}: {why}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--count", type=int, default=240, help="schemas that are generated")
    parser.add_argument("--most", type=int, help="take so many of a folder, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    vocabulary = vocabulary_of_tokenizer(TEKKEN)
    cases = list(of_folder(asked.folder) if asked.folder else generated(asked.count, asked.seed))
    if asked.most:
        cases = random.Random(asked.seed).sample(cases, min(asked.most, len(cases)))
    engines = [Measured(AsServed(vocabulary)), Measured(Llguidance(vocabulary))]
    warm_up = [source for source, _ in generated(3, 99)]
    for one in engines:  # loads kernels, indexes, this Python's character classes
        one.compile_all(warm_up)
        one.walks, one.first = [], []
        one.refusals.clear()
    gc.collect()
    gc.freeze()  # as the runtime's process does
    gc.set_threshold(*COLLECTED_EVERY)
    for one in engines:
        one.compile_all([source for source, _ in cases])
    both = [
        number
        for number in range(len(cases))
        if all(one.walks[number] is not None for one in engines)
    ]
    print(f"{len(cases)} schemas, {len(both)} compiled by both")
    for one in engines:
        cold, warm, num_taken, num_valid = list[float](), list[float](), 0, 0
        for number in both:
            for data in cases[number][1][:3]:
                text = json.dumps(data, ensure_ascii=False).encode(errors="surrogatepass")
                tokens = vocabulary.greedy(text)
                times, taken = one.passes(number, tokens)
                cold += times
                warm += one.passes(number, tokens)[0]
                num_valid += 1
                num_taken += taken
        report(one, both, cold or [0.0], warm or [0.0])
        print(f"  valid instances taken {num_taken} of {num_valid}")


if __name__ == "__main__":
    main()
