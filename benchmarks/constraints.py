"""Constraint engines side by side on one vocabulary: compile, first mask, uncached and warm masks,
right or wrong.

    python -m benchmarks.constraints                     our engine and every installed peer
    python -m benchmarks.constraints --engine lmprog --repeat 5
    python -m benchmarks.constraints --engine outlines-core --limit 10   each case in a process of its own
    python -m benchmarks.constraints --bombs             patterns of bad intent, each with the time until decided
    python -m benchmarks.constraints --costly            schemas that are large, each with its time to compile
    python -m benchmarks.constraints --steps             forced tokens of our engine: how many, and are they canonical

The vocabulary is the 131,072 tokens of tekken, from the `mistral-common` wheel. A walk asks for a
mask before every token of a valid text; the first walk meets states for the first time
("uncached"), the second is "warm" (mask and advance together). Times are per call on one thread:
processor time for compiling and uncached masks (the machine may be shared), wall clock for warm
ones, which are shorter than the processor clock can tell.
"""

from __future__ import annotations

import gc
import json
import resource
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Annotated

from mistral_common.tokens.tokenizers.tekken import Tekkenizer

from benchmarks import runner
from benchmarks.constraint_corpus import BOMBS, CASES, COSTLY
from benchmarks.constraint_engines import ENGINES, TEKKEN, Engine, Refused
from benchmarks.constraint_walks import Encode, Figures, run_case, run_case_in_child
from benchmarks.runner import percentile
from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.forced import forced_tokens
from lmprog.constraints.inspect import byte_vocabulary, example
from lmprog.constraints.token_bytes import vocabulary_of_tokenizer
from lmprog.constraints.vocabulary import Vocabulary

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


@runner.command
def main(
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
