"""Constraint engines side by side on one vocabulary: compile, first mask, uncached and warm masks,
right or wrong.

    python -m benchmarks.constraints                     our engine and every installed peer
    python -m benchmarks.constraints --engine lmprog --repeat 5
    python -m benchmarks.constraints --engine outlines-core --limit 10   each case in a process of its own
    python -m benchmarks.constraints --bombs             patterns of bad intent, each with the time until decided
    python -m benchmarks.constraints --costly            schemas that are large, each with its time to compile
    python -m benchmarks.constraints --steps             forced tokens of our engine: how many, and are they canonical
    python -m benchmarks.constraints --suite FOLDER      the JSON-Schema-Test-Suite's draft2020-12 folder

The vocabulary is the 131,072 tokens of tekken, from the `mistral-common` wheel. A walk asks for a
mask before every token of a valid text; the first walk meets states for the first time
("uncached"), the second is "warm" (mask and advance together). Times are per call on one thread:
processor time for compiling and uncached masks (the machine may be shared), wall clock for warm
ones, which are shorter than the processor clock can tell.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import mistral_common
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

from benchmarks.constraint_corpus import BOMBS, CASES, COSTLY
from benchmarks.constraint_engines import ENGINES, Engine, Refused
from benchmarks.constraint_walks import (
    Encode,
    Figures,
    microseconds,
    plain_walk,
    quantile,
    run_case,
    run_case_in_child,
)
from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.forced import forced_tokens
from lmprog.constraints.inspect import byte_vocabulary, example
from lmprog.constraints.token_bytes import vocabulary_of_tokenizer
from lmprog.constraints.vocabulary import Vocabulary

TEKKEN = Path(mistral_common.__path__[0]) / "data" / "tekken_240911.json"


def report(name: str, figures: Figures, setup: float, megabytes: float) -> None:
    f = figures
    print(f"\n{name}: set-up {setup:.2f} s, {megabytes:.0f} MB more at the end")
    print(f"  compiled {f.compiled} of {len(CASES)}, fully right {f.right}, stopped {f.stopped}")
    print(
        f"  valid taken {f.valid_taken} of {f.num_valid}, invalid taken {f.invalid_taken} of "
        f"{f.num_invalid}"
    )
    rows = {"first mask, compile included": f.first_mask, "uncached mask": f.uncached}
    rows |= {"  inside JSON strings": f.in_strings, "warm mask + advance": f.warm}
    for label, values in rows.items():
        middle = statistics.median(values) if values else float("nan")
        ends = f"p99 {quantile(values, 0.99):10.1f} us   max {quantile(values, 1):10.1f} us"
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
            notes, figures.notes = figures.notes, []
            for case in CASES:
                if limit is None:
                    run_case(engine, case, encode, vocabulary, figures)
                else:
                    run_case_in_child(engine, case, encode, vocabulary, figures, limit)
            del notes
        for count in (
            "compiled",
            "right",
            "valid_taken",
            "num_valid",
            "invalid_taken",
            "num_invalid",
            "stopped",
        ):
            setattr(figures, count, getattr(figures, count) // repeat)
        report(
            name,
            figures,
            setup,
            (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
        )


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
                print(
                    f"{case.name:14s} {len(tokens):4d} tokens, forward passes per token "
                    f"{passes / len(tokens):.2f}"
                )
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
                if "nothing at all" in str(
                    error
                ):  # refused as unsatisfiable: right if no instance is valid
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
    parser.add_argument(
        "--engine", action="append", choices=list(ENGINES), help="repeatable; default: all"
    )
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument(
        "--limit", type=float, help="seconds after which the process of a case is killed"
    )
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
            compare(names, asked.repeat, asked.limit, vocabulary, encode)


if __name__ == "__main__":
    main()
