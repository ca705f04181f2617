"""Stop patterns against a plain simulation, and against patterns that want to keep others waiting."""

from __future__ import annotations

import dataclasses
import random
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmprog.constraints.search import AT_START, MAX_MOVES, TextSearch, text_search
from lmprog.errors import GrammarError, InvalidParameter, LmprogError
from lmprog.runtime.text.stream import (
    Stop,
    TextCheck,
    TextStream,
    stop_search,
    watch_search,
    watch_strings,
)
from tests.constraints.random_patterns import LETTERS, random_pattern
from tests.text.simulated_stops import Simulation
from tests.text.test_text import Cuts

BOMBS = [
    r"(.?){1000}\x00",
    r"(?:\w+\s?){1,200}x",
    r"(?:.*x.{8}){3}y",
    r"(((a|b)?){20}c?){20}d",
    r"(?:a|aa){300}b",
    r"\w{1,250}\W{1,250}\d{1,250}x",
    r"foo.{0,50}bar",
    "(a?){250}" + "a" * 100 + "b",
    r"(?s:.{1000}\x00)",
]
REFUSED = [
    r"[ab]*a[ab]{24}c",
    r"a[ab]{4000}c",
    "(?:a{100}){100}",
    r"((a{1,30}){1,30}){1,30}b",
    "".join(f"[^{chr(0x100 + i)}]" for i in range(60)),
]
ANCHORED = [
    "^a",
    "(?m:^)b",
    "a|^b",
    "(?m)(^b|c)+",
    r"\Aab?",
    "a?(?m:^)b",
    "(?:^a|b)c",
    "(a|\n)*(?m:^)b",
]


def read(search: TextSearch, pieces: list[str]) -> tuple[Stop | None, list[int]]:
    """The first stop, and the begin of what may become one after each piece."""
    watch, at, begins = watch_search(search), 0, []
    for piece in pieces:
        stop = watch.read(piece, at, lambda _: True)
        if stop is not None:
            return stop, begins
        at += len(piece)
        begins.append(watch.begin)
    return None, begins


def simulated(pattern: str, pieces: list[str]) -> tuple[Stop | None, list[int]]:
    simulation, at, begins = Simulation(pattern), 0, []
    for piece in pieces:
        for char in piece:
            begin = simulation.take(char, at)
            at += 1
            if begin is not None:
                return (at, begin, pattern), begins
        begins.append(at if simulation.begin is None else simulation.begin)
    return None, begins


def random_pieces(rng: random.Random) -> list[str]:
    size = rng.choice([3, 8, 20, 45])
    text = "".join(rng.choice(LETTERS) for _ in range(size))
    cuts = sorted(rng.randrange(size + 1) for _ in range(rng.randrange(6)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, size], strict=True) if b > a]


@pytest.mark.parametrize("seed", range(20))
def test_random_patterns_stop_where_a_simulation_stops_and_hold_back_the_same(seed: int) -> None:
    rng = random.Random(seed)
    num_found = 0
    for _ in range(100):
        pattern = rng.choice(["", "", "^", "(?m)^"]) + random_pattern(rng)
        pattern = rng.choice([pattern, pattern, rng.choice(ANCHORED)])
        try:
            search = stop_search(pattern)
        except InvalidParameter:  # it matches the empty text
            continue
        for _ in range(4):
            pieces = random_pieces(rng)
            found = read(search, pieces)
            assert found == simulated(pattern, pieces), (pattern, pieces)
            num_found += found[0] is not None
    assert num_found > 50


@pytest.mark.parametrize("pattern", BOMBS[1:])
def test_bombs_stop_where_a_simulation_stops(pattern: str) -> None:
    rng = random.Random(pattern)
    search = stop_search(pattern)
    for _ in range(3):
        pieces = ["".join(rng.choice("aabxy foor1\n") for _ in range(4)) for _ in range(12)]
        assert read(search, pieces) == simulated(pattern, pieces)


@pytest.mark.parametrize("pattern", BOMBS)
def test_the_kernel_finds_the_begin_that_the_plain_loop_finds(pattern: str) -> None:
    rng = random.Random(pattern)
    search = stop_search(pattern)
    plain = dataclasses.replace(search, native=None)
    for length in (0, 1, 33, 200, 1500):
        text = "".join(rng.choice("aabcx \n1é日\U0001f600") for _ in range(length))
        for state in (search.of_any, search.of_ends):
            for before in range(3):
                expected = plain.first_begin(text, state, before)
                assert search.first_begin(text, state, before) == expected


@pytest.mark.parametrize("pattern", BOMBS)
def test_a_pattern_within_the_limits_takes_few_bytes(pattern: str) -> None:
    search = text_search(pattern)
    assert len(search.forward) + len(search.backward) <= MAX_MOVES
    assert search.num_bytes <= 5 * MAX_MOVES


@pytest.mark.parametrize("pattern", REFUSED)
def test_a_pattern_beyond_the_limits_is_refused_with_the_number(pattern: str) -> None:
    with pytest.raises(
        InvalidParameter, match=r"more than [\d,]+ (states|transitions|steps)"
    ) as at:
        stop_search(pattern)
    assert (at.value.name, at.value.value) == ("stop_regex", pattern)


def test_tables_are_made_in_steps_between_which_the_compile_may_be_ended() -> None:
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls > 500:
            raise GrammarError("enough", position=None)

    with pytest.raises(LmprogError, match="enough"):
        stop_search(r"[ab]*a[ab]{24}c", check)


class Counted:
    """A table that counts how often it is asked."""

    def __init__(self, moves: array[int]) -> None:
        self.moves, self.asked = moves, 0

    def __getitem__(self, at: int) -> int:
        self.asked += 1
        return self.moves[at]


@pytest.mark.parametrize("pattern", BOMBS)
@pytest.mark.parametrize("letter", ["a", "x", " ", "é"])
def test_a_character_takes_a_bounded_number_of_look_ups(pattern: str, letter: str) -> None:
    """However far back a match may have begun, on average."""
    search = stop_search(pattern)
    forward: Any = Counted(search.forward)
    backward: Any = Counted(search.backward)
    watch = watch_search(
        dataclasses.replace(search, forward=forward, backward=backward, native=None)
    )
    length, at = 3000, 0
    for _ in range(length):
        if watch.read(letter, at, lambda _: True) is not None:
            break
        at += 1
    assert forward.asked <= length
    assert backward.asked <= 64 * at + 3000


def test_the_begin_is_never_said_too_late_however_far_back() -> None:
    """What is given out is never cut again."""
    rng = random.Random(1)
    pattern = r"[ab]{300}c"
    search, simulation = stop_search(pattern), Simulation(pattern)
    watch = watch_search(search)
    for at in range(1200):
        letter = rng.choice("ab") if at % 500 else "x"
        assert watch.read(letter, at, lambda _: True) is None
        simulation.take(letter, at)
        begin = at + 1 if simulation.begin is None else simulation.begin
        assert watch.begin <= begin
        assert begin - watch.begin <= max(1, (at - begin) // 8), "nor much too early"


@dataclasses.dataclass(frozen=True)
class Lengths:
    """A text may end at these lengths. Counts the characters that it is asked about."""

    allowed: frozenset[int]
    asked: list[int]
    length: int = 0

    def after(self, text: str) -> TextCheck:
        self.asked[0] += len(text)
        return dataclasses.replace(self, length=self.length + len(text))

    @property
    def may_end(self) -> bool:
        return self.length in self.allowed


@settings(max_examples=300)
@given(st.text("ab", max_size=20), st.sets(st.integers(0, 12)), st.lists(st.integers(1, 4)))
def test_a_stop_where_the_text_may_not_end_is_text(
    text: str, allowed: set[int], sizes: list[int]
) -> None:
    pieces: list[bytes | None] = []
    rest = text
    for size in [*sizes, 20]:
        pieces.append(rest[:size].encode())
        rest = rest[size:]
    stream = TextStream(
        Cuts(pieces), ("bb",), [stop_search("ab?a")], Lengths(frozenset(allowed), [0])
    )
    for token in range(len(pieces)):
        stream.push(token)
    simulation = Simulation("ab?a")
    expected = text
    for at, char in enumerate(text):
        begins = [simulation.take(char, at)]
        begins.append(at - 1 if text[: at + 1].endswith("bb") else None)
        cuts = [begin for begin in begins if begin is not None and begin in allowed]
        if cuts:
            expected = text[: min(cuts)]
            break
    assert stream.finish().text == expected


def test_text_that_was_given_out_is_not_checked_again_for_each_stop() -> None:
    asked = [0]
    stream = TextStream(Cuts([b"a"]), ("a",), [stop_search("[a]")], Lengths(frozenset(), asked))
    for _ in range(1000):
        stream.push(0)
    assert stream.stopped_by is None
    assert asked[0] <= 4 * 1000


def test_certain_tokens_are_counted_on_from_where_the_count_stood() -> None:
    """Counted: a stream that is held back for ever does not look at all tokens again and again."""

    class Borders(array):  # type: ignore[type-arg]
        asked = 0

        def __getitem__(self, at: Any) -> Any:
            Borders.asked += 1
            return super().__getitem__(at)

    stream = TextStream(Cuts([b"a"]), (), [stop_search("(?s:a.*b)")])
    stream._borders = Borders("q")
    for _ in range(2000):
        stream.push(0)
        assert stream.num_certain == 0
    assert Borders.asked <= 2 * 2000


def test_a_watch_of_strings_costs_its_text() -> None:
    watch = watch_strings(("a" * 200 + "b",))
    for at in range(3000):
        assert watch.read("a", at, lambda _: True) is None
    assert watch.begin == 3000 - 200


def test_a_text_begins_once() -> None:
    search = stop_search("^a")
    assert search.starts[AT_START] != search.starts[0]
    assert read(search, ["b", "a"])[0] is None
    assert read(search, ["a"])[0] == (1, 0, "^a")
