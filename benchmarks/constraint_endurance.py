"""Is a constraint ever used up? `python -m benchmarks.constraint_endurance`.

Thousands of generations through one compiled constraint, a mask before every token, on two
vocabularies: texts with counters that no other generation had, so that states are always new.
Reported are failures, how often states were forgotten, what the process grew by, and the processor
time of a token among the first and among the last generations.
"""

from __future__ import annotations

import gc
import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import runner
from benchmarks.constraint_engines import TEKKEN
from lmprog import wire
from lmprog.constraints.compiling.compiler import DEFAULT_LIMITS, compile_constraint
from lmprog.constraints.constraint import CompileLimits
from lmprog.constraints.regular import RegularConstraint
from lmprog.constraints.token_bytes import vocabulary_of_tokenizer
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import GrammarError

EDGE, LATE = 100, 1000
"""Generations at the beginning and at the end whose times are compared, and those after which the
process must not grow at all: by then all states that may be held were.
"""
Write = Callable[[random.Random], str]


def words(rng: random.Random, low: int, high: int) -> str:
    return "".join(rng.choice("abcdefgh   ,;é") for _ in range(rng.randint(low, high)))


def sentences(rng: random.Random) -> str:
    return "".join(rng.choice("ABC") + words(rng, 6, 60) + ". " for _ in range(2))


def question(rng: random.Random) -> str:
    return words(rng, 20, 60) + "?" + "".join(f" {words(rng, 10, 50)}." for _ in range(2))


def few_words(rng: random.Random) -> str:
    """A JSON string of at most 30 words and 300 characters."""
    some = ["".join(rng.choices("abcdefghé,", k=rng.randint(1, 8))) for _ in range(29)]
    return json.dumps(" ".join(some[: rng.randint(2, 29)]), ensure_ascii=False)


BOUNDED_WORDS = r'{"type": "string", "maxLength": 300, "pattern": "^(?:\\S+\\s+){0,29}\\S+$"}'
CASES: dict[str, tuple[wire.Constraint, Write]] = {
    "sentences": (wire.Regex(r"([A-Z].{5,150}\. ?){2,6}"), sentences),
    "question": (wire.Regex(r".{20,200}\?( .{10,100}\.){1,3}"), question),
    "bounded words": (wire.JsonSchema(BOUNDED_WORDS), few_words),
}


@dataclass(slots=True)
class Endured:
    """What became of all generations through one constraint."""

    num_failed: int = 0
    num_tokens: int = 0
    num_collections: int = 0
    most_states: int = 0
    grown: int = 0
    """Kilobytes of the process, from the `EDGE`th generation to the `LATE`th."""
    grown_late: int = 0
    """From there to the last."""
    first: float = 0.0
    last: float = 0.0
    """Microseconds of processor time a token, of the first and the last `EDGE` generations."""


def endure(
    case: str, vocabulary: Vocabulary, count: int, limits: CompileLimits = DEFAULT_LIMITS
) -> Endured:
    """`count` generations, every one with a text that the constraint takes."""
    spec, write = CASES[case]
    made = compile_constraint(spec, vocabulary, limits)
    assert isinstance(made, RegularConstraint), "the cases are regular"
    rng, out = random.Random(0), Endured()
    times: list[float] = []
    marks: list[int] = []
    for number in range(count):
        tokens = vocabulary.greedy(write(rng).encode())
        begin = time.thread_time()
        out.num_failed += not finishes(made, tokens)
        times.append((time.thread_time() - begin) * 1e6 / len(tokens))
        out.num_tokens += len(tokens)
        out.most_states = max(out.most_states, made.num_states)
        if number + 1 in (EDGE, LATE, count):
            gc.collect()
            marks.append(runner.Footprint.of(os.getpid()).kilobytes)
    if count > EDGE:
        out.grown = marks[1] - marks[0]
    if count > LATE:
        out.grown_late = marks[2] - marks[1]
    out.num_collections = made.num_collections
    edge = min(EDGE, count)
    out.first, out.last = sum(times[:edge]) / edge, sum(times[-edge:]) / edge
    return out


def finishes(made: RegularConstraint, tokens: list[int]) -> bool:
    """Whether the tokens are allowed one after the other, and may end."""
    state = made.start
    try:
        for token in tokens:
            if not made.mask(state).allows(token):
                return False
            state = made.advance(state, token)
    except GrammarError:
        return False
    return made.is_final(state)


def small_vocabulary() -> Vocabulary:
    """Bytes, and all pairs of small letters with a blank."""
    letters = "abcdefghijklmnopqrstuvwxyz "
    pairs = [(one + other).encode() for one in letters for other in letters]
    return Vocabulary([None, *(bytes([byte]) for byte in range(256)), *pairs], [0])


@runner.command
def main(*, generations: int = 10_000) -> None:
    large = ("131,072 tokens", vocabulary_of_tokenizer(TEKKEN))
    for name, vocabulary in (large, ("986 tokens", small_vocabulary())):
        vocabulary.prepare()
        for case in CASES:
            found = endure(case, vocabulary, generations)
            print(
                f"{name}, {case}: {found.num_failed} of {generations} failed, "
                f"{found.num_tokens} tokens, states forgotten {found.num_collections} times, "
                f"at most {found.most_states} held; grew by {found.grown / 1024:.1f} MB "
                f"behind the first {EDGE}, then by {found.grown_late / 1024:.1f} MB behind "
                f"the first {LATE:,}; a token took {found.first:.0f} us first, "
                f"{found.last:.0f} us last",
                flush=True,
            )
