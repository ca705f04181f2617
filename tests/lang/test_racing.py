"""`branches.race(function)`: the first branch whose function ends well wins, the others are
cancelled.
"""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import lmprog
from lmprog.backends.client import RuntimeBackend
from lmprog.errors import Cancelled, ContextOverflow, ModelError, ProgramError
from lmprog.testing import Hold, Scripted, Scripting
from tests.lang.small_runtime import Small
from tests.lang.test_contests import settle

LENGTHS = (300, 4, 300)


@lmprog.function
async def by_results(s: lmprog.Branch) -> tuple[str, int, list[bool]]:
    s.append("once upon a time ")
    async with s.fork(3) as branches:
        lengths = iter(LENGTHS)
        race = branches.race(lambda b: b.gen(max_tokens=next(lengths), ignore_eos=True))
        text = await race
        cancelled = [isinstance(b.cursor.gens[0].failure(), Cancelled) for b in branches]
        race.branch.append(" and on")
        more = await race.branch.gen(max_tokens=2, ignore_eos=True)
        return text + more, branches.index(race.branch), cancelled


def test_pending_results_are_decided_in_the_runtime_and_the_winner_goes_on(
    small: Small, backend: RuntimeBackend
) -> None:
    run = by_results.using(backend=backend).run()
    text, winner, cancelled = run.value
    assert (len(text), winner) == (6, 1)
    assert not cancelled[1]
    figures = settle(small)
    assert figures["pages_free"] + figures["pages_evictable"] == figures["pages"]
    assert small.scheduler.stats.generated_tokens < sum(LENGTHS)


@lmprog.function
async def by_steps(s: lmprog.Branch) -> tuple[str, int]:
    s.append("once upon a time ")

    async def steps(b: lmprog.Branch) -> str:
        index = branches.index(b)
        first = await b.gen(max_tokens=3, ignore_eos=True)
        return first + await b.gen(max_tokens=LENGTHS[index], ignore_eos=True)

    async with s.fork(3) as branches:
        race = branches.race(steps)
        return await race, branches.index(race.branch)


def test_coroutines_race_over_several_steps(small: Small, backend: RuntimeBackend) -> None:
    text, winner = by_steps.using(backend=backend).run().value
    assert (len(text), winner) == (7, 1)
    settle(small)
    assert small.scheduler.stats.generated_tokens < sum(LENGTHS)


def test_a_plain_program_races_in_threads_and_they_all_end() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> tuple[str, int]:
        with s.fork(3) as branches:
            for branch, letter in zip(branches, "abc", strict=True):
                branch.append(letter)
            race = branches.race(lambda b: b.gen().value + "!")
            return race.value, branches.index(race.branch)

    threads = threading.active_count()
    ends: dict[str, Scripting] = {"a": Hold(), "b": "one", "c": Hold()}
    with Scripted(lambda prompt: ends[prompt]) as scripted:
        assert program.using(backend=scripted).run().value == ("one!", 1)
        assert scripted.runtime.held() == []
        assert scripted.runtime.open_branches() == 0
    deadline = time.monotonic() + 60
    while threading.active_count() > threads:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("coroutine", [False, True])
def test_who_fails_takes_no_part(coroutine: bool) -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        async def steps(b: lmprog.Branch) -> str:
            return await b.gen()

        async with s.fork(2) as branches:
            branches[1].append("b")
            return await (branches.race(steps) if coroutine else branches.race(lambda b: b.gen()))

    ends: dict[str, Scripting] = {"": ModelError("not finite"), "b": "well"}
    with Scripted(lambda prompt: ends[prompt]) as scripted:
        assert program.using(backend=scripted).run().value == "well"


@pytest.mark.parametrize("how", ["results", "coroutines", "unread", "threads"])
def test_when_all_fail_the_first_failure_is_raised(how: str) -> None:
    async def steps(b: lmprog.Branch) -> str:
        return await b.gen()

    @lmprog.function
    async def program(s: lmprog.Branch) -> None:
        async with s.fork(2) as branches:
            race = branches.race(steps if how == "coroutines" else lambda b: b.gen())
            if how != "unread":
                await race

    @lmprog.function
    def plain(s: lmprog.Branch) -> str:
        with s.fork(2) as branches:
            return branches.race(lambda b: b.gen().value).value

    with Scripted(lambda prompt: ContextOverflow("too long")) as scripted:
        with pytest.raises(ContextOverflow, match="too long") as caught:
            (plain if how == "threads" else program).using(backend=scripted).run()
        assert "test_racing.py" in caught.value.__notes__[0]
        assert scripted.runtime.open_branches() == 0


def test_a_loser_cannot_be_asked_any_more_and_the_fork_ends_well() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        async with s.fork(2) as branches:
            branches[1].append("b")
            race = branches.race(lambda b: b.gen())
            with pytest.raises(ProgramError, match="nobody has won"):
                _ = race.branch
            with pytest.raises(ProgramError, match="await"):
                _ = race.value
            value = await race
            with pytest.raises(Cancelled, match="won the race"):
                branches[1].gen()
            return value

    ends: dict[str, Scripting] = {"": "well", "b": Hold()}
    with Scripted(lambda prompt: ends[prompt]) as scripted:
        assert program.using(backend=scripted).run().value == "well"


def test_a_race_that_is_cancelled_cancels_all() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch, coroutine: bool) -> None:
        async def steps(b: lmprog.Branch) -> str:
            return await b.gen()

        async with s.fork(3) as branches:
            await (branches.race(steps) if coroutine else branches.race(lambda b: b.gen()))

    async def main(coroutine: bool) -> None:
        task = asyncio.ensure_future(program.using(backend=scripted).arun(coroutine))
        while len(scripted.runtime.held()) < 3:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    for coroutine in (False, True):
        with Scripted([Hold()] * 3) as scripted:
            asyncio.run(main(coroutine))
            assert scripted.runtime.held() == []
            assert scripted.runtime.open_branches() == 0
