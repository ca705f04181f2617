"""Constraint engines side by side on one vocabulary: compile, first mask, uncached and warm masks, right or wrong.

    python -m benchmarks.constraints                     our engine and every installed peer
    python -m benchmarks.constraints --engine lmprog --repeat 5
    python -m benchmarks.constraints --bombs             patterns of bad intent, each with the time until decided
    python -m benchmarks.constraints --costly            schemas that are large, each with its time to compile
    python -m benchmarks.constraints --steps             forced tokens of our engine: how many, and are they canonical
    python -m benchmarks.constraints --suite FOLDER      the JSON-Schema-Test-Suite's draft2020-12 folder

The vocabulary is the 131,072 tokens of tekken, from the `mistral-common` wheel. A walk asks for a mask before every
token of a valid text; the first walk meets states for the first time ("uncached"), the second is "warm" (mask and
advance together). Times are per call on one thread: processor time for compiling and uncached masks (the machine may
be shared), wall clock for warm ones, which are shorter than the processor clock can tell.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import mistral_common
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

from benchmarks.constraint_corpus import BOMBS, CASES, COSTLY, Case
from benchmarks.constraint_engines import ENGINES, Engine, Refused, Walk
from lmprog.runtime.fsm.compiler import compile_constraint
from lmprog.runtime.fsm.constraint import JsonSchema, Regex
from lmprog.runtime.fsm.explain import byte_vocabulary, example
from lmprog.runtime.fsm.forced import forced_tokens
from lmprog.runtime.fsm.token_bytes import vocabulary_of_tokenizer
from lmprog.runtime.fsm.vocabulary import Vocabulary

TEKKEN = Path(mistral_common.__path__[0]) / "data" / "tekken_240911.json"
Encode = Callable[[str], Sequence[int]]


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
    notes: list[str] = field(default_factory=list)


def microseconds(begin: float) -> float:
    """Of processor time since `begin`."""
    return (time.process_time() - begin) * 1e6


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


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


def run_case(engine: Engine, case: Case, encode: Encode, vocabulary: Vocabulary, out: Figures) -> None:
    out.num_valid += len(case.valid)
    out.num_invalid += len(case.invalid)
    begin = time.process_time()
    try:
        walk = engine.compile(case.kind, case.source)
    except Refused as error:
        out.notes.append(f"{case.name}: refused, {str(error)[:90]}")
        return
    walk.mask()
    out.first_mask.append(microseconds(begin))
    out.compiled += 1
    taken = sum(timed_walk(walk, encode(text), vocabulary, case.kind, out) for text in case.valid)
    wrong = sum(plain_walk(walk, encode(text)) for text in case.invalid)
    out.valid_taken += taken
    out.invalid_taken += wrong
    out.right += taken == len(case.valid) and not wrong
    if taken < len(case.valid) or wrong:
        out.notes.append(f"{case.name}: {taken} of {len(case.valid)} valid taken, {wrong} invalid taken")


def timed_walk(walk: Walk, tokens: Sequence[int], vocabulary: Vocabulary, kind: str, out: Figures) -> bool:
    walk.restart()
    text = b""
    for token in tokens:
        begin = time.process_time()
        walk.mask()
        spent = microseconds(begin)
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


def plain_walk(walk: Walk, tokens: Sequence[int]) -> bool:
    walk.restart()
    walk.mask()
    return all(walk.advance(token) for token in tokens) and walk.accepts()


def report(name: str, figures: Figures, setup: float, megabytes: float) -> None:
    f = figures
    print(f"\n{name}: set-up {setup:.2f} s, {megabytes:.0f} MB more at the end")
    print(f"  compiled {f.compiled} of {len(CASES)}, fully right {f.right}")
    print(f"  valid taken {f.valid_taken} of {f.num_valid}, invalid taken {f.invalid_taken} of {f.num_invalid}")
    rows = {"first mask, compile included": f.first_mask, "uncached mask": f.uncached}
    rows |= {"  inside JSON strings": f.in_strings, "warm mask + advance": f.warm}
    for label, values in rows.items():
        middle = statistics.median(values) if values else float("nan")
        ends = f"p99 {quantile(values, 0.99):10.1f} us   max {quantile(values, 1):10.1f} us"
        print(f"  {label:30s} median {middle:10.1f} us   {ends}")
    for note in f.notes:
        print(f"  - {note}")


def compare(names: Sequence[str], repeat: int, vocabulary: Vocabulary, encode: Encode) -> None:
    for name in names:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begin = time.perf_counter()
        try:
            engine: Engine = ENGINES[name](vocabulary)
        except ImportError as error:
            print(f"\n{name}: not installed ({error})")
            continue
        setup = time.perf_counter() - begin
        figures = Figures()
        for _ in range(repeat):
            notes, figures.notes = figures.notes, []
            for case in CASES:
                run_case(engine, case, encode, vocabulary, figures)
            del notes
        for count in ("compiled", "right", "valid_taken", "num_valid", "invalid_taken", "num_invalid"):
            setattr(figures, count, getattr(figures, count) // repeat)
        report(name, figures, setup, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)


def bombs(names: Sequence[str], vocabulary: Vocabulary) -> None:
    for name in names:
        engine = ENGINES[name](vocabulary)
        for pattern in BOMBS:
            begin = time.process_time()
            try:
                engine.compile("regex", pattern).mask()
                word = "first mask"
            except Refused as error:
                word = f"refused: {str(error)[:60]}"
            print(f"{name:14s} {pattern[:40]:40s} {microseconds(begin) / 1e3:10.1f} ms  {word}")


def costly(names: Sequence[str], vocabulary: Vocabulary) -> None:
    for name in names:
        engine = ENGINES[name](vocabulary)
        for label, schema in COSTLY.items():
            begin = time.process_time()
            try:
                engine.compile("schema", json.dumps(schema)).mask()
                word = "first mask"
            except Refused as error:
                word = f"refused: {str(error)[:60]}"
            print(f"{name:14s} {label:40s} {microseconds(begin) / 1e3:10.1f} ms  {word}")


def steps(vocabulary: Vocabulary, encode: Encode) -> None:
    """Walks every valid text, and six random instances, appending forced tokens where there are some."""
    stretches = strange = 0
    plain = byte_vocabulary()
    for case in CASES:
        spec = Regex(case.source) if case.kind == "regex" else JsonSchema(case.source)
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
                print(f"{case.name:14s} {len(tokens):4d} tokens, forward passes per token {passes / len(tokens):.2f}")
    print(f"{stretches} forced stretches, {strange} of them not the tokenizer's own")


def suite(names: Sequence[str], folder: Path, vocabulary: Vocabulary) -> None:
    """The required part of the JSON-Schema-Test-Suite, instances spelled with greedy tokens."""
    files = sorted(folder.glob("*.json"))
    for name in names:
        engine = ENGINES[name](vocabulary)
        groups = compiled = right = valid = num_valid = refused = num_invalid = 0
        for group in (group for path in files for group in json.loads(path.read_text("utf-8"))):
            groups += 1
            try:
                walk = engine.compile("schema", json.dumps(group["schema"]))
            except Refused as error:
                if "nothing at all" in str(error):  # refused as unsatisfiable: right if no instance is valid
                    compiled += 1
                    num_invalid += len(group["tests"])
                    refused += len(group["tests"])
                    right += not any(test["valid"] for test in group["tests"])
                continue
            compiled += 1
            wrong = 0
            for test in group["tests"]:
                text = json.dumps(test["data"], ensure_ascii=False).encode(errors="surrogatepass")
                taken = plain_walk(walk, vocabulary.greedy(text))
                num_valid += test["valid"]
                num_invalid += not test["valid"]
                valid += taken and test["valid"]
                refused += not taken and not test["valid"]
                wrong += taken != test["valid"]
            right += not wrong
        print(
            f"{name:14s} groups {groups}, compiled {compiled}, valid taken {valid} of {num_valid}, "
            f"invalid refused {refused} of {num_invalid}, groups all right {right}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--engine", action="append", choices=list(ENGINES), help="repeatable; default: all")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--bombs", action="store_true")
    parser.add_argument("--costly", action="store_true")
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--suite", type=Path)
    asked = parser.parse_args()
    vocabulary = vocabulary_of_tokenizer(TEKKEN)
    assert vocabulary.index
    names = asked.engine or list(ENGINES)
    if asked.bombs:
        bombs(names, vocabulary)
    elif asked.costly:
        costly(names, vocabulary)
    elif asked.suite:
        suite(names, asked.suite, vocabulary)
    else:
        tokenizer = Tekkenizer.from_file(str(TEKKEN))

        def encode(text: str) -> Sequence[int]:
            found: list[int] = tokenizer.encode(text, bos=False, eos=False)
            return found

        if asked.steps:
            steps(vocabulary, encode)
        else:
            compare(names, asked.repeat, vocabulary, encode)


if __name__ == "__main__":
    main()
