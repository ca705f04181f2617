"""Deadlines and token budgets of runs and forks: what is over raises, and what was running is
cancelled.
"""

from __future__ import annotations

import asyncio
import time

import pytest

import lmprog
from lmprog import wire
from lmprog.backends.client import RuntimeBackend, describe
from lmprog.errors import DeadlineExceeded, InvalidParameter, TokenBudgetExceeded
from lmprog.testing import Hold, Scripted


@lmprog.function
def endless(s: lmprog.Branch) -> str:
    s.append("abc")
    while True:
        s.gen(max_tokens=4, ignore_eos=True).value


@lmprog.function
async def awaiting(s: lmprog.Branch) -> str:
    s.append("abc")
    while True:
        await s.gen(max_tokens=4, ignore_eos=True)


@pytest.mark.parametrize("program", [endless, awaiting])
def test_a_run_stops_where_its_tokens_are_used_up(
    backend: RuntimeBackend, program: lmprog.Program[[], str]
) -> None:
    with pytest.raises(
        TokenBudgetExceeded, match=r"this run are used up \(max_total_tokens=40"
    ) as caught:
        program.using(backend=backend, max_total_tokens=40).run()
    assert caught.value.code == "token_budget"
    # prompts and results: 3+4, 7+4, 11+4 are 33; the fourth call's prompt alone is beyond the
    # budget
    assert describe(backend)["generated_tokens"] in range(12, 20)


def test_a_run_within_its_tokens_is_not_touched(backend: RuntimeBackend) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.append("abc")
        return (
            s.gen(max_tokens=4, ignore_eos=True).value + s.gen(max_tokens=4, ignore_eos=True).value
        )

    assert len(program.using(backend=backend, max_total_tokens=3 + 4 + 7 + 4).run().value) == 8
    with pytest.raises(TokenBudgetExceeded):
        program.using(backend=backend, max_total_tokens=3 + 4 + 7 + 3).run()


def test_a_generation_that_the_budget_cuts_short_is_never_given_as_a_whole_one(
    backend: RuntimeBackend,
) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.append("abc")
        return s.gen(max_tokens=100, ignore_eos=True).value

    with pytest.raises(TokenBudgetExceeded, match="max_total_tokens=20"):
        program.using(backend=backend, max_total_tokens=20).run()
    assert describe(backend)["generated_tokens"] <= 20


def test_without_max_tokens_the_budget_decides(backend: RuntimeBackend) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.append("abc")
        return s.gen(max_tokens=None, ignore_eos=True).value

    with pytest.raises(TokenBudgetExceeded):
        program.using(backend=backend, max_total_tokens=30).run()
    assert describe(backend)["generated_tokens"] <= 30


def test_what_runs_when_the_tokens_are_used_up_is_cancelled() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> None:
        s.append("two words ")
        async with s.fork(3) as branches:
            await branches.map(lambda b: b.gen())

    answers: list[str | Hold] = [
        Hold(),
        Hold(),
        "many words are more than the budget allows, by far",
    ]
    with (
        Scripted(answers, strict=False) as scripted,
        pytest.raises(TokenBudgetExceeded, match="used up"),
    ):
        program.using(backend=scripted, max_total_tokens=8).run()
    cancels = [op for frame in scripted.frames for op in frame if isinstance(op, wire.Cancel)]
    assert len(cancels) >= 2
    assert scripted.runtime.open_branches() == 0


def test_a_fork_has_a_budget_of_its_own_and_its_parent_goes_on(backend: RuntimeBackend) -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        s.append("abc")
        with pytest.raises(TokenBudgetExceeded, match="this fork are used up"):
            async with s.fork(2, max_total_tokens=12) as branches:
                await branches.map(lambda b: b.gen(max_tokens=20, ignore_eos=True))
        return await s.gen(max_tokens=4, ignore_eos=True)

    assert len(program.using(backend=backend).run().value) == 4


def test_a_fork_that_took_too_much_raises_at_its_end_although_it_has_its_results() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.append("a long prompt ")
        with s.fork(1, max_total_tokens=3) as [branch]:
            branch.gen().value
        return "not reached"

    with Scripted(["one"]) as scripted, pytest.raises(TokenBudgetExceeded, match="this fork"):
        program.using(backend=scripted).run()


def test_what_a_fork_spends_counts_for_its_run(backend: RuntimeBackend) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.append("abc")
        with s.fork(1, max_total_tokens=1000) as [branch]:
            branch.gen(max_tokens=20, ignore_eos=True).value
        return s.gen(max_tokens=4, ignore_eos=True).value

    program.using(backend=backend, max_total_tokens=3 + 20 + 3 + 4).run()
    with pytest.raises(TokenBudgetExceeded, match="this run"):
        program.using(backend=backend, max_total_tokens=3 + 20 + 3 + 3).run()


def test_what_a_nested_run_spends_counts_for_the_run_around_it(backend: RuntimeBackend) -> None:
    @lmprog.function
    def inner(s: lmprog.Branch) -> None:
        s.append("abc")
        s.gen(max_tokens=20, ignore_eos=True)

    @lmprog.function
    def outer(s: lmprog.Branch) -> None:
        inner.run()
        inner.run()

    outer.using(backend=backend, max_total_tokens=46).run()
    with pytest.raises(TokenBudgetExceeded):
        outer.using(backend=backend, max_total_tokens=45).run()


def test_the_time_of_a_fork_limits_its_calls() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.append("x")
        with s.fork(1, timeout=0.05) as [branch]:
            branch.gen().value
        return s.gen().value

    with Scripted(["a", "b"]) as scripted:
        assert program.using(backend=scripted, timeout=60).run().value == "b"
    first, second = (asked.op.timeout for asked in scripted.asked)
    assert first is not None
    assert second is not None
    assert first <= 0.05 < second <= 60


def test_a_coroutine_that_waits_for_something_else_ends_with_its_time() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> None:
        s.append("x")
        await s.gen()
        await asyncio.sleep(60)

    begin = time.monotonic()
    with Scripted(["a"]) as scripted, pytest.raises(DeadlineExceeded, match=r"timeout=0.05 s"):
        program.using(backend=scripted, timeout=0.05).run()
    assert time.monotonic() - begin < 10


def test_a_timeout_error_of_the_program_itself_stays_what_it_is() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> None:
        s.append("x")
        await asyncio.wait_for(asyncio.sleep(60), 0.01)

    with Scripted() as scripted, pytest.raises(TimeoutError):
        program.using(backend=scripted, timeout=60).run()


@pytest.mark.parametrize("name", ["timeout", "max_total_tokens"])
def test_budgets_of_nothing_are_refused(name: str) -> None:
    with Scripted() as scripted, pytest.raises(InvalidParameter, match=f"{name}=0"):
        endless.using(backend=scripted, **{name: 0}).run()  # type: ignore[arg-type]
