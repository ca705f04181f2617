"""Budgets of a copy and of a view of a branch: they nest like those of runs and forks."""

from __future__ import annotations

import pytest

import lmprog
from lmprog.errors import InvalidParameter, TokenBudgetExceeded
from lmprog.testing import Scripted

WORDS = "one two three four"


def test_a_copy_has_a_budget_of_its_own_and_its_parent_goes_on() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.append("Q")
        try:
            with s.copy(max_total_tokens=3, temperature=0.25) as other:
                assert other.gen().value == WORDS
                with pytest.raises(TokenBudgetExceeded):
                    other.append("more")
        except TokenBudgetExceeded as error:
            return f"{s.gen().value}: {error.message}"
        return "the copy did not say that it took too much"

    with Scripted([WORDS, "fine"], strict=False) as scripted:
        said = program.using(backend=scripted).run().value
    assert said == "fine: the tokens given to this copy are used up (max_total_tokens=3)"


def test_a_view_limits_what_is_asked_through_it_and_nothing_else() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> list[str]:
        s.append("Q")
        limited = s.with_(max_total_tokens=8)
        found = [await limited.gen()]  # 5 of 8, prompt and result
        found.append(await limited.gen(max_tokens=1))  # its prompt alone is more than what is left
        with pytest.raises(TokenBudgetExceeded, match="this view are used up"):
            await limited.with_(temperature=0).gen()
        return [*found, await s.gen()]

    with Scripted([WORDS, "x", "free"], strict=False) as scripted:
        assert program.using(backend=scripted).run().value == [WORDS, "x", "free"]


def test_a_fork_of_a_view_is_within_its_limits() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.append("Q")
        view = s.with_(max_total_tokens=3)
        with view.fork(2, on_error="keep") as branches:
            branches[0].gen().value
            with pytest.raises(TokenBudgetExceeded, match="this view are used up"):
                branches[1].gen()
        s.gen().value

    with Scripted([WORDS, "free"], strict=False) as scripted:
        program.using(backend=scripted).run()


def test_the_smallest_limit_decides_and_its_time_begins_with_it() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> list[float | None]:
        s.append("Q")
        views = [s, s.with_(timeout=20), s.with_(timeout=20).with_(timeout=90), s.with_(timeout=60)]
        for view in views:
            view.gen().value
        return [asked.op.timeout for asked in scripted.asked]

    with Scripted(["a"] * 4) as scripted:
        limits = program.using(backend=scripted, timeout=50).run().value
    expected = (50, 20, 20, 50)
    assert all(
        limit is not None and most - 15 < limit <= most
        for limit, most in zip(limits, expected, strict=True)
    )


def test_a_limit_of_nothing_is_refused() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        with pytest.raises(InvalidParameter, match="max_total_tokens=0"):
            s.with_(max_total_tokens=0)
        with pytest.raises(InvalidParameter, match="timeout=-1"), s.copy(timeout=-1):
            pass

    with Scripted() as scripted:
        program.using(backend=scripted).run()
