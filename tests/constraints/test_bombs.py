"""Patterns that are large on purpose are decided within a second of processor time."""

from __future__ import annotations

import random
import re
import time

import pytest

import lmprog
from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.regular import RegularConstraint
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import RequestRejected

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = ["".join((a, b, c)) for a in LETTERS for b in LETTERS for c in LETTERS][:13_000]
BOMBS: dict[str, wire.Constraint] = {
    "one letter": wire.Regex("(" + "|".join(LETTERS[i % 26] for i in range(20_000)) + ")*"),
    "one character": wire.Regex("(" + "|".join(chr(0x4E00 + i) for i in range(20_000)) + ")*"),
    "one word": wire.Regex("(" + "|".join(WORDS) + ")*"),
    "one word, any case": wire.Regex("(?i)(" + "|".join(WORDS) + ")*"),
    "beginnings of one another": wire.Regex(
        "(" + "|".join("a" * length for length in range(1, 300)) + ")*b"
    ),
    "optional and required": wire.Regex("(a?){5000}a{5000}"),
    "optional twice": wire.Regex("(a?){4000}(b?){4000}[ab]{4000}"),
    "choices": wire.Choices(tuple(f"choice {number}" for number in range(100_000))),
}
ONE_SECOND = 1.0
"""Of processor time on an idle machine, for the compile, the first mask and those of the next
letters.
"""


def slowness() -> float:
    """How many times longer than on an idle machine work takes now: one that is shared by others
    gives less for a second of processor time.
    """
    begin = time.process_time()
    sum(number * number for number in range(400_000))
    return max(1.0, (time.process_time() - begin) / IDLE_SECONDS)


IDLE_SECONDS = 0.03
"""What that takes on the machine that the bound is for."""


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_decided_within_a_second(name: str, small: Vocabulary) -> None:
    small.prepare()
    times = []
    for _ in range(2):  # the better one: the machine may be busy with others
        begin = time.process_time()
        try:
            constraint = compile_constraint(BOMBS[name], small)
            state = constraint.start
            for letter in (b"a", b"a", b"a"):
                constraint.mask(state)
                state = constraint.advance_bytes(state, letter) or state
        except RequestRejected:
            pass
        times.append((time.process_time() - begin) / slowness())
        if times[-1] < ONE_SECOND:
            return
    pytest.fail(f"{times} seconds")


def walk(pattern: str, text: str, vocabulary: Vocabulary) -> float:
    """Processor seconds of the masks along a text, character by character."""
    constraint = compile_constraint(wire.Regex(pattern), vocabulary)
    state = constraint.start
    begin = time.process_time()
    for char in text:
        assert constraint.mask(state).count
        after = constraint.advance_bytes(state, char.encode())
        assert after is not None
        state = after
    return time.process_time() - begin


def test_positions_that_differ_in_a_count_alone_are_not_compared_each_with_each(
    small: Vocabulary, rng: random.Random
) -> None:
    small.prepare()
    text = "a" + "".join(rng.choices("ab", k=900))
    assert min(walk("[ab]*a[ab]{1500}", text, small) for _ in range(2)) < ONE_SECOND


def test_rounds_that_may_end_anywhere_are_followed_to_their_end(real: Vocabulary) -> None:
    walk("(.*,){40}x", "ab, cd," * 8, real)


COUNTED = {
    "(?s)(.{0,100}(cat|dog|bird)){5,10}.{0,100}": " cat, dogs and birds do ca",
    ".*(a|b).{300}": "ab cd",
    ".*a.{300}b": "ab cd",
    "(.*,){40}x": "ab, cd,",
    "[ab]*a[ab]{1500}": "ab",
    "(a?){5000}a{5000}": "a",
}


@pytest.mark.parametrize("pattern", COUNTED)
def test_counters_that_overlap_are_followed_and_cost_few_states(
    pattern: str, real: Vocabulary, rng: random.Random
) -> None:
    made = compile_constraint(wire.Regex(pattern), real)
    assert isinstance(made, RegularConstraint)
    state, before = made.start, made.num_states
    for token in real.greedy("".join(rng.choices(COUNTED[pattern], k=400)).encode())[:60]:
        row = made.mask(state)
        assert row.count
        if row.allows(token):
            state = made.advance(state, token)
    assert made.num_states - before < MOST_STATES


MOST_STATES = 80_000
"""Of sixty masks; those of one were more."""


def counted_pattern(rng: random.Random) -> str:
    """With repetitions that may be in many rounds at once."""

    def part(depth: int) -> str:
        if depth == 0 or rng.random() < 0.3:
            return rng.choice(["a", "b", "[ab]", ".", "é?", "(ab|b)", "[a-c]"])
        low = rng.randrange(4)
        counts = rng.choice(["*", "?", f"{{{low}}}", f"{{{low},}}", f"{{{low},{low + 3}}}"])
        inside = "".join(part(depth - 1) for _ in range(rng.randint(1, 2)))
        return f"({inside}){counts}"

    return "".join(part(2) for _ in range(rng.randint(2, 4)))


def test_counters_that_are_one_interval_mean_what_each_of_them_did(
    small: Vocabulary, rng: random.Random
) -> None:
    small.prepare()
    for _ in range(60):
        pattern = counted_pattern(rng)
        judge, made = re.compile(pattern), compile_constraint(wire.Regex(pattern), small)
        for _ in range(8):
            text, state = "", made.start
            for _ in range(rng.randrange(9)):
                row = made.mask(state)
                for token, piece in enumerate(small.tokens):
                    if piece is not None:
                        after = made.advance_bytes(state, piece)
                        assert row.allows(token) == (after is not None), (pattern, text, piece)
                after = made.advance_bytes(state, (letter := rng.choice("aabbcé,")).encode())
                if after is None:
                    break
                text, state = text + letter, after
                assert made.is_final(state) == bool(judge.fullmatch(text)), (pattern, text)


@pytest.mark.parametrize(
    "pattern",
    [
        "|".join(f"{word}$" for word in ("a", "b", "ab", "ba", *(f"a{i:02}" for i in range(40)))),
        "|".join(f"^{word}" for word in ("a", "b", "ab", "ba", *(f"ab{i:02}" for i in range(40)))),
        "(" + "|".join(["a", "ab", "b*a", "(ab|b)b", *(f"b{i:02}" for i in range(40))]) + ")+",
        "(?i)(" + "|".join([*"abcABC01", *(f"ab{i:02}c?" for i in range(40))]) + ")*",
    ],
    ids=range(4),
)
def test_alternatives_that_share_beginnings_mean_what_they_meant(
    pattern: str, rng: random.Random
) -> None:
    made, judge = lmprog.constraint(regex=pattern), re.compile(pattern)
    for _ in range(400):
        text = "".join(rng.choice("aabb01") for _ in range(rng.randrange(8)))
        assert made.accepts(text) == (judge.fullmatch(text) is not None), text


def test_many_choices_are_exactly_these_texts(rng: random.Random) -> None:
    texts = {"".join(rng.choice("aé日") for _ in range(rng.randrange(1, 7))) for _ in range(300)}
    made = lmprog.constraint(choices=sorted(texts))
    for _ in range(2000):
        text = "".join(rng.choice("aé日") for _ in range(rng.randrange(8)))
        assert made.accepts(text) == (text in texts), text


def test_a_compiler_of_many_choices_can_be_paused_between_few_of_them(small: Vocabulary) -> None:
    small.prepare()
    checks = 0

    def check() -> None:
        nonlocal checks
        checks += 1

    spec = wire.Choices(tuple(f"choice {number * 7919 % 99_991}" for number in range(20_000)))
    compile_constraint(spec, small, check=check)
    by_letter = checks
    checks = 0
    compile_constraint(wire.Choices(("a", "b")), small, check=check)
    assert by_letter - checks > 200


def test_choices_may_begin_one_another_and_end_anywhere() -> None:
    texts = ["", *("ab" * length for length in range(1, 60)), *(f"abc{i}" for i in range(50))]
    made = lmprog.constraint(choices=texts)
    assert all(map(made.accepts, texts))
    assert not any(map(made.accepts, ["a", "aba", "abc", "abc51", "ab" * 60]))
