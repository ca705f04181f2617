"""Search over forks: who is expanded, who is kept, when it ends, and that losers leave nothing."""

from __future__ import annotations

import random

import pytest

import lmprog
from lmprog.backends.client import describe
from lmprog.errors import InvalidParameter
from lmprog.testing import Scripted

Path = lmprog.SearchPath[int]
DIGITS = 4


def numbers(seed: int) -> list[float]:
    """What each of the sixteen codes of four bits is worth, by its number, and of its beginnings."""
    dice = random.Random(seed)
    return [dice.random() for _ in range(2 << DIGITS)]


def worth_of(values: tuple[int, ...], worths: list[float]) -> float:
    code = 1
    for value in values:
        code = 2 * code + value
    return worths[code]


def beams(worths: list[float], width: int) -> list[tuple[int, ...]]:
    """Beam search written out."""
    kept: list[tuple[int, ...]] = [()]
    for _ in range(DIGITS):
        longer = [(*one, bit) for one in kept for bit in (0, 1)]
        kept = sorted(longer, key=lambda one: -worth_of(one, worths))[:width]
    return kept


def is_whole(path: Path) -> bool:
    return len(path.values) == DIGITS


class Bits:
    """Expands a path by its branch's place in the fork, so that every step is made once."""

    def __init__(self, worths: list[float]) -> None:
        self.worths = worths
        self.expanded: list[tuple[int, ...]] = []

    def expand(self, path: Path) -> int:
        assert path.fork is not None
        bit = list(path.fork).index(path.branch)
        path.branch.append(str(bit))
        if not bit:
            self.expanded.append(path.values)
        return bit

    def score(self, path: Path) -> float:
        return worth_of(path.values, self.worths)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("width", [1, 2, 5, 16])
def test_beams_keep_the_best_of_each_level(seed: int, width: int) -> None:
    bits = Bits(numbers(seed))

    @lmprog.function
    def plain(s: lmprog.Branch) -> list[tuple[int, ...]]:
        found = lmprog.search(
            s, bits.expand, bits.score, width=width, budget=100, until=is_whole
        ).value
        assert all(path.branch.text() == "".join(map(str, path.values)) for path in found)
        return [path.values for path in found]

    @lmprog.function
    async def within_a_loop(s: lmprog.Branch) -> list[tuple[int, ...]]:
        async def expand(path: Path) -> int:
            return bits.expand(path)

        async def score(path: Path) -> float:
            return bits.score(path)

        found = await lmprog.search(s, expand, score, width=width, budget=100, until=is_whole)
        return [path.values for path in found]

    wanted = beams(bits.worths, width)
    assert plain.run(backend=Scripted([])).value == wanted
    assert within_a_loop.run(backend=Scripted([])).value == wanted


def test_best_first_expands_the_best_of_all_levels() -> None:
    """Falling back to an earlier path where a later one disappoints."""
    worths = [0.0] * (2 << DIGITS)
    worths[0b10], worths[0b11] = 0.9, 0.8  # 0 looks better than 1, but nothing good follows it
    worths[0b110], worths[0b1101], worths[0b11011] = 0.7, 0.7, 1.0
    bits = Bits(worths)

    @lmprog.function
    def found(s: lmprog.Branch) -> tuple[int, ...]:
        paths = lmprog.search(
            s, bits.expand, bits.score, width=8, budget=100, at_once=1, until=is_whole
        ).value
        return paths[0].values

    assert found.run(backend=Scripted([])).value == (1, 0, 1, 1)
    assert bits.expanded == [(), (0,), (1,), (1, 0), (1, 0, 1)]


def test_no_more_is_expanded_than_the_budget_allows() -> None:
    bits = Bits(numbers(1))

    @lmprog.function
    def found(s: lmprog.Branch) -> int:
        return len(lmprog.search(s, bits.expand, bits.score, width=4, budget=5).value)

    assert found.run(backend=Scripted([])).value == 4
    assert len(bits.expanded) == 5


def test_equal_steps_are_one_path() -> None:
    @lmprog.function
    def found(s: lmprog.Branch) -> list[tuple[str, ...]]:
        def expand(path: lmprog.SearchPath[str]) -> str:
            return "the same"

        paths = lmprog.search(s, expand, lambda path: 1.0, width=4, budget=2, proposals=3).value
        return [path.values for path in paths]

    assert found.run(backend=Scripted([])).value == [("the same", "the same")]


def test_what_cannot_be_is_refused() -> None:
    @lmprog.function
    def wrong(s: lmprog.Branch) -> None:
        lmprog.search(s, lambda path: 1, lambda path: 1.0, width=0, budget=1)

    with pytest.raises(InvalidParameter, match="width=0 is not allowed; give 1 or more"):
        wrong.run(backend=Scripted([]))


def test_losers_leave_nothing_in_the_cache() -> None:
    """Of 14 forks that generated 40 tokens each, as many stay as one path is long."""
    pages: list[float] = []

    @lmprog.function
    async def grown(s: lmprog.Branch, width: int) -> int:
        def cached() -> float:
            return describe(backend)["pages_cached"]

        s.append("Once upon a time there was a baker who")
        await s.gen(max_tokens=1)
        begun = cached()

        async def expand(path: lmprog.SearchPath[str]) -> str:
            return await path.branch.gen(max_tokens=32, ignore_eos=True)

        async def score(path: lmprog.SearchPath[str]) -> float:
            return float(sum(map(ord, path.values[-1])) % 97)

        paths = await lmprog.search(
            s, expand, score, width=width, budget=7, proposals=3, temperature=1.0
        )
        pages.append(cached() - begun)
        return len(paths[0].values)

    with lmprog.Runtime("nano", page_size=16) as backend:
        depth = grown.using(seed=3).run(1, backend=backend).value
    assert depth == 7
    per_step = 32 // 16
    assert per_step * depth <= pages[0] <= (per_step + 1) * depth + 2
