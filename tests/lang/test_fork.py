"""Forks: structured concurrency, joins, errors of several branches."""

from __future__ import annotations

import asyncio

import pytest

import lmprog
from lmprog import wire
from lmprog.errors import (
    Cancelled,
    ContextOverflow,
    InvalidParameter,
    LmprogError,
    ModelError,
    ProgramError,
)
from lmprog.testing import Hold, Scripted, Scripting


def _closed(scripted: Scripted) -> set[int]:
    return {op.branch for frame in scripted.frames for op in frame if isinstance(op, wire.Close)}


def test_branches_share_the_prefix_and_nothing_of_it_is_sent_again() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> list[str]:
        s.append("a long prefix")
        async with s.fork(3, temperature=0.5) as branches:
            return await branches.map(lambda b: b.gen())

    with Scripted(["1", "2", "3"]) as scripted:
        assert program.using(backend=scripted).run().value == ["1", "2", "3"]
    texts = [
        piece
        for frame in scripted.frames
        for op in frame
        if isinstance(op, wire.Append)
        for piece in op.pieces
    ]
    assert texts == [wire.TextPiece("a long prefix")]
    assert [type(op) for op in scripted.frames[0]] == [
        wire.Open,
        wire.Append,
        wire.Fork,
        wire.Generate,
        wire.Generate,
        wire.Generate,
    ]
    assert {
        asked.op.sampling.temperature
        for asked in scripted.asked
        if isinstance(asked.op, wire.Generate)
    } == {0.5}


def test_map_runs_coroutines_and_plain_functions() -> None:
    async def twice(b: lmprog.Branch) -> str:
        return await b.gen() + await b.gen()

    @lmprog.function
    async def program(s: lmprog.Branch) -> tuple[list[str], list[int]]:
        s.append("x")
        async with s.fork(2) as branches:
            return await branches.map(twice), await branches.each(lambda b: len(b.cursor.gens))

    with Scripted(lambda prompt: "y" if prompt == "x" else "z") as scripted:
        assert program.using(backend=scripted).run().value == (["yz", "yz"], [2, 2])


def test_a_plain_program_maps_in_threads() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> list[str]:
        s.append("x")
        with s.fork(3) as branches:
            return branches.each(lambda b: b.gen().value + b.gen().value).value

    with Scripted(lambda prompt: "y" if prompt == "x" else "z") as scripted:
        assert program.using(backend=scripted).run().value == ["yz"] * 3


def test_a_plain_program_cannot_map_a_coroutine_function() -> None:
    async def each(b: lmprog.Branch) -> str:
        return await b.gen()

    @lmprog.function
    def program(s: lmprog.Branch) -> list[str]:
        with s.fork(1) as branches:
            return branches.map(each).value

    with Scripted() as scripted, pytest.raises(ProgramError, match="async def"):
        program.using(backend=scripted).run()


@pytest.mark.parametrize("keeps", [False, True])
def test_one_failure_cancels_the_siblings_and_is_raised_as_it_is(keeps: bool) -> None:
    def script(prompt: str) -> Scripting:
        return ModelError("not finite") if prompt.endswith("1") else Hold() if not keeps else "fine"

    async def each(b: lmprog.Branch) -> str:
        b.append(str(b.cursor.path[-1]))
        return await b.gen()

    @lmprog.function
    async def program(s: lmprog.Branch) -> list[str]:
        s.append("x")
        async with s.fork(3, on_error="keep" if keeps else "raise") as branches:
            return await branches.map(each)

    with Scripted(script) as scripted:
        if keeps:
            kept: list[object] = list(program.using(backend=scripted).run().value)
            assert kept[0] == kept[2] == "fine"
            assert isinstance(kept[1], ModelError)
        else:
            with pytest.raises(ModelError, match="not finite"):
                program.using(backend=scripted).run()
        assert scripted.runtime.open_branches() == 0
        assert scripted.runtime.held() == []


def test_a_failure_in_a_thread_cancels_the_siblings() -> None:
    def script(prompt: str) -> Scripting:
        return ModelError("not finite") if prompt.endswith("1") else Hold()

    def each(b: lmprog.Branch) -> str:
        b.append(str(b.cursor.path[-1]))
        return b.gen().value

    @lmprog.function
    def program(s: lmprog.Branch) -> list[str]:
        s.append("x")
        with s.fork(3) as branches:
            return branches.each(each).value

    with Scripted(script) as scripted, pytest.raises(ModelError, match="not finite"):
        program.using(backend=scripted).run()


def test_several_failures_are_a_group() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> None:
        s.append("x")
        async with s.fork(2) as branches:
            for branch in branches:
                branch.gen()

    with (
        Scripted([ModelError("a"), ModelError("b")]) as scripted,
        pytest.raises(ExceptionGroup) as caught,
    ):
        program.using(backend=scripted).run()
    assert sorted(str(error) for error in caught.value.exceptions) == ["a", "b"]


def test_leaving_a_fork_waits_for_its_calls_and_closes_its_branches() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> tuple[bool, bool]:
        s.append("x")
        async with s.fork(2) as branches:
            left = branches[0].gen("left")
            asyncio.get_running_loop().call_later(0.01, lambda: scripted.release("late"))
        return left.done(), branches[0].cursor.closed

    with Scripted(lambda prompt: Hold()) as scripted:
        assert program.using(backend=scripted).run().value == (True, True)
        assert scripted.runtime.open_branches() == 0


def test_a_branch_of_a_fork_that_is_over_cannot_be_used_but_its_values_can_be_read() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        s.append("x")
        async with s.fork(1) as branches:
            branches[0].gen("a")
        with pytest.raises(ProgramError, match="closed"):
            branches[0].append("more")
        return str(branches[0]["a"])

    with Scripted(["one"]) as scripted:
        assert program.using(backend=scripted).run().value == "one"


def test_an_exception_in_the_body_closes_the_branches_and_goes_on_up() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> None:
        s.append("x")
        async with s.fork(2) as branches:
            branches[0].gen()
            await asyncio.sleep(0)
            raise ValueError("mine")

    with Scripted(lambda prompt: Hold()) as scripted, pytest.raises(ValueError, match="mine"):
        program.using(backend=scripted).run()
    assert scripted.runtime.open_branches() == 0


def test_a_fork_of_a_fork_closes_with_its_parent() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> list[list[str]]:
        async def inner(b: lmprog.Branch) -> list[str]:
            async with b.fork(2) as leaves:
                return await leaves.map(lambda leaf: leaf.gen())

        s.append("x")
        async with s.fork(2) as branches:
            return await branches.map(inner)

    with Scripted(lambda prompt: "y") as scripted:
        assert program.using(backend=scripted).run().value == [["y", "y"], ["y", "y"]]
    assert len(_closed(scripted)) == 7


def test_gathering_gives_the_values_in_the_order_of_the_branches() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> list[str]:
        s += "x"
        forks = s.fork(2)
        forks += lambda index: f"{index}:" + lmprog.gen("part")
        forks.join()
        return list(s["part"])

    with Scripted(lambda prompt: prompt[-2]) as scripted:
        assert program.using(backend=scripted).run().value == ["0", "1"]
        assert scripted.runtime.open_branches() == 0


def test_a_group_takes_one_content_each_from_a_list() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> list[str]:
        s += "x"
        forks = s.fork(2)
        forks += ["a", "b"]
        forks += lmprog.gen("part")
        with pytest.raises(ProgramError, match="3 contents"):
            forks += ["a", "b", "c"]
        forks.join()
        return list(s["part"])

    with Scripted(lambda prompt: prompt.upper()) as scripted:
        assert program.using(backend=scripted).run().value == ["XA", "XB"]


@pytest.mark.parametrize("size", [0, -1, 5000])
def test_a_fork_of_an_impossible_size_is_refused(size: int) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.fork(size)

    with Scripted() as scripted, pytest.raises(InvalidParameter, match="1 <= size <= 4096"):
        program.using(backend=scripted).run()


def test_a_child_inherits_the_failure_of_its_parent() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> None:
        s.append("x")
        s.gen()
        async with s.fork(1) as [child]:
            await child.gen()

    with (
        Scripted([ModelError("broken")]) as scripted,
        pytest.raises(LmprogError, match="broken") as caught,
    ):
        program.using(backend=scripted).run()
    assert isinstance(caught.value, ModelError)


def test_a_refused_call_leaves_its_branch_usable() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        s.append("x")
        try:
            await s.gen(max_tokens=1000)
        except ContextOverflow:
            await s.gen(max_tokens=10)
        return await s.atext()

    with Scripted([ContextOverflow("too long"), "short"]) as scripted:
        assert program.using(backend=scripted).run().value == "xshort"


def test_reading_a_cancelled_sibling_says_cancelled() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> None:
        s.append("x")
        branches = s.fork(2)
        waiting = branches[0].gen()
        await asyncio.sleep(0)
        branches.cancel()
        with pytest.raises(Cancelled):
            await waiting

    with Scripted(lambda prompt: Hold()) as scripted:
        program.using(backend=scripted).run()


def test_one_branch_of_a_group_can_be_appended_to() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        forks = s.fork(2)
        forks[1] += "x"
        forks[1] += lmprog.gen("a")
        with pytest.raises(ProgramError, match="replaced"):
            forks[0] = forks[1]
        return str(forks[1]["a"])

    with Scripted(["one"]) as scripted:
        assert program.using(backend=scripted).run().value == "one"


def test_a_map_that_nobody_awaits_ends_with_the_run_and_its_failure_is_raised() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch, body_fails: bool) -> None:
        async def each(b: lmprog.Branch) -> None:
            await asyncio.sleep(0.01)
            raise ValueError("in the branch")

        s.fork(2).map(each)
        await asyncio.sleep(0)
        if body_fails:
            raise KeyError("in the body")

    with Scripted() as scripted:
        with pytest.raises(ExceptionGroup, match="2 branches failed"):
            program.using(backend=scripted).run(False)
        with pytest.raises(KeyError, match="in the body"):
            program.using(backend=scripted).run(True)
