"""Constraint engines side by side on one vocabulary: compile, first mask, uncached and warm masks,
right or wrong.

    python -m benchmarks.constraints                     our engine and every installed peer
    python -m benchmarks.constraints --engine lmprog --repeat 5
    python -m benchmarks.constraints --engine outlines-core --limit 10   each case in a process of its own
    python -m benchmarks.constraints --bombs             patterns of bad intent, each with the time until decided
    python -m benchmarks.constraints --costly            schemas that are large, each with its time to compile
    python -m benchmarks.constraints --steps             forced tokens of our engine: how many, and are they canonical
    python -m benchmarks.constraints schemas [--folder FOLDER]   first masks on 240 schemas, or MaskBench's
    python -m benchmarks.constraints suites --suite FOLDER       files of the JSON-Schema-Test-Suite
    python -m benchmarks.constraints suites --folder FOLDER      schemas with tests, in MaskBench's layout

The vocabulary is the 131,072 tokens of tekken, from the `mistral-common` wheel. A walk asks for a
mask before every token of a valid text; the first walk meets states for the first time
("uncached"), the second is "warm" (mask and advance together). Times are per call on one thread:
processor time for compiling and uncached masks (the machine may be shared), wall clock for warm
ones, which are shorter than the processor clock can tell.
"""

from __future__ import annotations

import gc
import json
import os
import random
import re
import resource
import select
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from mistral_common.tokens.tokenizers.tekken import Tekkenizer

from benchmarks import runner
from benchmarks.constraint_cases import BOMBS, CASES, COSTLY, Case, generated
from benchmarks.constraint_engines import (
    ENGINES,
    TEKKEN,
    Engine,
    Llguidance,
    Ours,
    Refused,
    Walk,
    takes,
)
from benchmarks.runner import percentile
from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.constraint import Constraint
from lmprog.constraints.forced import forced_tokens
from lmprog.constraints.inspect import byte_vocabulary, example
from lmprog.constraints.token_bytes import vocabulary_of_tokenizer
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import RequestRejected
from lmprog.runtime.main import COLLECTED_EVERY
from lmprog.runtime.programs.compile_pool import CompilePool, never_pause

# -- one case: compiled, walked and timed, here or in a process that may be killed

Encode = Callable[[str], Sequence[int]]
MOST_BYTES = 12 << 30
"""Address space of a process that may be killed."""


@dataclass(slots=True)
class Figures:
    """Microseconds unless said otherwise."""

    compiled: int = 0
    right: int = 0
    valid_taken: int = 0
    num_valid: int = 0
    invalid_taken: int = 0
    num_invalid: int = 0
    first_mask: list[float] = field(default_factory=list)
    uncached: list[float] = field(default_factory=list)
    in_strings: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)
    stopped: int = 0
    """Cases that were killed at their time limit, or died."""
    notes: list[str] = field(default_factory=list)


def in_string(text: str) -> bool:
    """Whether a JSON text stops inside a string, past its first character."""
    inside = escaped = False
    for char in text:
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == '"':
            inside = not inside
    return inside and not text.endswith('"')


def run_case(
    engine: Engine, case: Case, encode: Encode, vocabulary: Vocabulary, out: Figures
) -> None:
    out.num_valid += len(case.valid)
    out.num_invalid += len(case.invalid)
    begin = time.process_time()
    try:
        walk = engine.compile(case.kind, case.source)
    except Refused as error:
        out.notes.append(f"{case.name}: refused, {str(error)[:90]}")
        return
    walk.mask()
    out.first_mask.append((time.process_time() - begin) * 1e6)
    out.compiled += 1
    taken = sum(timed_walk(walk, encode(text), vocabulary, case.kind, out) for text in case.valid)
    wrong = sum(takes(walk, encode(text)) for text in case.invalid)
    out.valid_taken += taken
    out.invalid_taken += wrong
    is_right = taken == len(case.valid) and not wrong
    out.right += is_right
    if not is_right:
        counts = f"{taken} of {len(case.valid)} valid taken, {wrong} invalid taken"
        out.notes.append(f"{case.name}: {counts}")


def timed_walk(
    walk: Walk, tokens: Sequence[int], vocabulary: Vocabulary, kind: str, out: Figures
) -> bool:
    walk.restart()
    text = b""
    for token in tokens:
        spent = 1e6 * runner.seconds(walk.mask)
        out.uncached.append(spent)
        if kind == "schema" and in_string(text.decode(errors="ignore")):
            out.in_strings.append(spent)
        if not walk.advance(token):
            return False
        text += vocabulary.bytes_of(token) or b""
    walk.mask()
    accepted = walk.accepts()
    walk.restart()
    for token in tokens:
        begin = time.perf_counter()
        walk.mask()
        walk.advance(token)
        out.warm.append((time.perf_counter() - begin) * 1e6)
    return accepted


def run_case_in_child(
    engine: Engine, case: Case, encode: Encode, vocabulary: Vocabulary, out: Figures, limit: float
) -> None:
    """The same in a forked process, killed after `limit` seconds: some engines hang, or take all
    memory.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        found = Figures()
        run_case(engine, case, encode, vocabulary, found)
        with os.fdopen(writing, "w") as pipe:
            json.dump(asdict(found), pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        in_time = bool(select.select([pipe], [], [], limit)[0])
        if not in_time:
            os.kill(child, signal.SIGKILL)
        text = pipe.read()
    os.waitpid(child, 0)
    if not text:
        out.stopped += 1
        out.num_valid += len(case.valid)
        out.num_invalid += len(case.invalid)
        out.notes.append(f"{case.name}: {'died' if in_time else f'killed after {limit:g} s'}")
        return
    for name, value in json.loads(text).items():
        setattr(out, name, getattr(out, name) + value)


# -- all cases

COUNTS = (
    "compiled",
    "right",
    "valid_taken",
    "num_valid",
    "invalid_taken",
    "num_invalid",
    "stopped",
)


def report(name: str, f: Figures, setup: float, megabytes: float) -> None:
    print(
        f"\n{name}: set-up {setup:.2f} s, {megabytes:.0f} MB more at the end\n"
        f"  compiled {f.compiled} of {len(CASES)}, fully right {f.right}, stopped {f.stopped}\n"
        f"  valid taken {f.valid_taken} of {f.num_valid}, invalid taken {f.invalid_taken} of "
        f"{f.num_invalid}"
    )
    rows = {"first mask, compile included": f.first_mask, "uncached mask": f.uncached}
    rows |= {"  inside JSON strings": f.in_strings, "warm mask + advance": f.warm}
    for label, values in rows.items():
        middle = median(values) if values else float("nan")
        ends = f"p99 {percentile(values, 0.99):10.1f} us   max {percentile(values, 1):10.1f} us"
        print(f"  {label:30s} median {middle:10.1f} us   {ends}")
    for note in f.notes:
        print(f"  - {note}")


def compare(
    names: Sequence[str], repeat: int, limit: float | None, vocabulary: Vocabulary, encode: Encode
) -> None:
    for name in names:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begin = time.perf_counter()
        try:
            engine: Engine = ENGINES[name](vocabulary)
        except ImportError as error:
            print(f"\n{name}: not installed ({error})")
            continue
        setup = time.perf_counter() - begin
        gc.collect()
        gc.freeze()  # as the runtime's process does
        figures = Figures()
        for _ in range(repeat):
            figures.notes = []
            for case in CASES:
                if limit is None:
                    run_case(engine, case, encode, vocabulary, figures)
                else:
                    run_case_in_child(engine, case, encode, vocabulary, figures, limit)
        for count in COUNTS:
            setattr(figures, count, getattr(figures, count) // repeat)
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        report(name, figures, setup, (most - before) / 1024)


def decide(names: Sequence[str], kind: str, sources: Mapping[str, str], which: Vocabulary) -> None:
    """Until the first mask, or the refusal."""
    for name in names:
        engine = ENGINES[name](which)
        for label, source in sources.items():
            begin = time.process_time()
            try:
                engine.compile(kind, source).mask()
                word = "first mask"
            except Refused as error:
                word = f"refused: {str(error)[:60]}"
            spent = 1e3 * (time.process_time() - begin)
            print(f"{name:14s} {label[:40]:40s} {spent:10.1f} ms  {word}")


def steps(vocabulary: Vocabulary, encode: Encode) -> None:
    """Walks every valid text, and six random instances, appending forced tokens where there are
    some.
    """
    stretches = strange = 0
    plain = byte_vocabulary()
    for case in CASES:
        spec = wire.Regex(case.source) if case.kind == "regex" else wire.JsonSchema(case.source)
        constraint, bare = compile_constraint(spec, vocabulary), compile_constraint(spec, plain)
        for i, text in enumerate([*case.valid, *(example(bare, plain, seed) for seed in range(6))]):
            tokens = list(encode(text))
            state, at, passes, written = constraint.start, 0, 0, b""
            while at < len(tokens):
                forced: tuple[int, ...] = ()
                if written.decode(errors="ignore").encode() == written:
                    forced = forced_tokens(constraint, state, vocabulary, encode, written.decode())
                stretches += bool(forced)
                strange += list(forced) != tokens[at : at + len(forced)]
                passes += not forced
                taken = tokens[at : at + max(1, len(forced))]
                written += b"".join(vocabulary.bytes_of(token) or b"" for token in taken)
                for token in taken:
                    state = constraint.advance(state, token)
                at += len(taken)
            if i == 0:
                share = f"forward passes per token {passes / len(tokens):.2f}"
                print(f"{case.name:14s} {len(tokens):4d} tokens, {share}")
    print(f"{stretches} forced stretches, {strange} of them not the tokenizer's own")


def engines(
    *,
    engine: Annotated[
        Sequence[str] | None,
        "repeatable; default: all",
        {"action": "append", "choices": list(ENGINES), "type": None},
    ] = None,
    repeat: int = 1,
    limit: Annotated[float | None, "seconds after which the process of a case is killed"] = None,
    bombs: bool = False,
    costly: bool = False,
    steps_: bool = False,
) -> None:
    vocabulary = vocabulary_of_tokenizer(TEKKEN)
    assert vocabulary.index
    names = engine or list(ENGINES)
    tokenizer = Tekkenizer.from_file(str(TEKKEN))

    def encode(text: str) -> Sequence[int]:
        found: list[int] = tokenizer.encode(text, bos=False, eos=False)
        return found

    if bombs:
        decide(names, "regex", {pattern: pattern for pattern in BOMBS}, vocabulary)
    elif costly:
        sources = {label: json.dumps(schema) for label, schema in COSTLY.items()}
        decide(names, "schema", sources, vocabulary)
    elif steps_:
        steps(vocabulary, encode)
    else:
        compare(names, repeat, limit, vocabulary, encode)


# -- schemas with instances that are known to be valid or not

Group = tuple[str, Any, list[Any]]
"""Its name, the schema, the tests."""


@dataclass(slots=True)
class Verdicts:
    groups: int = 0
    compiled: int = 0
    right: int = 0
    valid: int = 0
    valid_taken: int = 0
    invalid: int = 0
    invalid_taken: int = 0
    never: int = 0
    """Instances of schemas that are refused as unsatisfiable; they are not among the invalid."""
    seconds: list[float] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


def of_suite(folder: Path) -> Iterator[Group]:
    """Tests of an old draft do not say which it is: their folder does."""
    old = re.fullmatch(r"draft([3467])", folder.name)
    said = {"$schema": f"http://json-schema.org/draft-0{old[1]}/schema#"} if old else {}
    for path in sorted(folder.glob("*.json")):
        for group in json.loads(path.read_text("utf-8")):
            schema = group["schema"]
            schema = {**said, **schema} if isinstance(schema, dict) else schema
            yield f"{path.stem}: {group['description']}", schema, group["tests"]


def of_folder(folder: Path) -> Iterator[Group]:
    for path in sorted(folder.glob("*.json")):
        case = json.loads(path.read_text("utf-8"))
        yield path.stem, case["schema"], case.get("tests") or []


def spelled(instance: Any) -> bytes:
    return json.dumps(instance, ensure_ascii=False).encode(errors="surrogatepass")


def remotes_of(folder: Path) -> Mapping[str, Any]:
    """The suite's schemas by the URIs at which its tests expect them."""
    return {
        f"http://localhost:1234/{path.relative_to(folder).as_posix()}": json.loads(
            path.read_text("utf-8")
        )
        for path in sorted(folder.rglob("*.json"))
    }


def judge(
    engine: Engine, group: Group, vocabulary: Vocabulary, out: Verdicts, others: Mapping[str, Any]
) -> None:
    name, schema, tests = group
    out.groups += 1
    begin = time.process_time()
    try:
        source = wire.JsonSchema(json.dumps(schema)).with_others(others).schema
        walk = engine.compile("schema", source)
    except Refused as error:
        out.seconds.append(time.process_time() - begin)
        if "nothing at all" in str(error) and not any(test["valid"] for test in tests):
            out.compiled += 1
            out.right += 1
            out.never += len(tests)
            return
        out.refusals[re.sub(r" at #\S*", "", str(error))[:90]] += 1
        out.notes.append(f"refused: {name}: {str(error)[:160]}")
        return
    out.seconds.append(time.process_time() - begin)
    out.compiled += 1
    wrong = 0
    for test in tests:
        text, is_valid = spelled(test["data"]), test["valid"]
        try:
            taken = takes(walk, vocabulary.greedy(text))
        except RequestRejected:  # one instance asked for more than a generation may
            taken = False
        out.valid += is_valid
        out.invalid += not is_valid
        out.valid_taken += taken and is_valid
        out.invalid_taken += taken and not is_valid
        if taken != is_valid:
            wrong += 1
            said = "taken though invalid" if taken else "not taken"
            out.notes.append(f"{said}: {name}: {text.decode(errors='replace')[:160]}")
    out.right += not wrong


def suites(
    *,
    suite: Path | None = None,
    folder: Path | None = None,
    remotes: Annotated[Path | None, "the suite's folder of schemas to refer to"] = None,
    engine: Annotated[str, {"choices": list(ENGINES)}] = "lmprog",
    every: int = 1,
    lenient: bool = False,
    list_: bool = False,
) -> None:
    """Right or wrong: `--every 7` takes every seventh schema only, `--lenient` is strict=False, `--list`
    says what is refused, taken though invalid, and not taken though valid.

    Over single bytes, as texts and not tokens matter here; ours with the time limit of the runtime's
    worker. A group is right if all its valid instances are taken and none of the others; one that is
    refused as unsatisfiable is right if it has no valid instance.
    """
    if suite is not None and folder is None:
        groups = of_suite(suite)
    elif folder is not None and suite is None:
        groups = of_folder(folder)
    else:
        raise runner.WrongOptions("give one of --suite and --folder")
    plain, is_ours, out = byte_vocabulary(), engine == "lmprog", Verdicts()
    made = Ours(plain, never_pause, not lenient) if is_ours else ENGINES[engine](plain)
    others = remotes_of(remotes) if remotes else {}
    for number, group in enumerate(groups):
        if number % every == 0:
            wanted = others if "localhost" in json.dumps(group[1]) else {}
            judge(made, group, plain, out, wanted)
    print(
        f"{engine}: {out.groups} schemas, compiled {out.compiled}, all right {out.right}; valid "
        f"taken {out.valid_taken} of {out.valid}, invalid taken {out.invalid_taken} of "
        f"{out.invalid}"
    )
    print(f"  processor time of compiling {sum(out.seconds):.1f} s, most {max(out.seconds):.2f} s")
    for why, count in out.refusals.most_common(12):
        print(f"  refused {count}: {why}")
    for note in out.notes if list_ else ():
        print(f"  - {note}")
    if lenient and is_ours:
        print(f"  something was left out of {made.num_lenient}")


# -- first masks on many schemas


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
        rows |= {"warm mask + advance, us": warm}
        print(f"\n{self.engine.name}")
        for label, values in rows.items():
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


def schemas(
    *,
    folder: Path | None = None,
    count: Annotated[int, "schemas that are generated"] = 240,
    most: Annotated[int | None, "take so many of a folder, drawn by --seed"] = None,
    seed: int = 0,
) -> None:
    """First masks as the runtime makes them, beside llguidance. Both engines take every schema in the
    same run, one after the other: processor time until the first mask (compiling included, as the
    runtime's worker does it: with its time limit and its pauses), then of one pass over a valid
    instance, a mask before every token, and of a second, warm pass. A schema that one of them refuses
    is counted and left out of the comparison. Memory is what the process grew by while all compiled
    schemas of an engine were held.
    """
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


COMMANDS = runner.commands(engines, schemas, suites)
