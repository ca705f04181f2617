"""How runs nest, share threads and event loops, and end: by cancelling, by time, by errors."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator

import pytest

import lmprog
from lmprog import wire
from lmprog.errors import Cancelled, DeadlineExceeded, ProgramError
from lmprog.testing import Hold, Scripted, Scripting


def test_a_nested_call_goes_on_with_the_branch_it_is_given() -> None:
    @lmprog.function
    async def inner(s: lmprog.Branch, word: str) -> str:
        s.append(word)
        return await s.gen()

    @lmprog.function
    async def outer(s: lmprog.Branch) -> str:
        s.append("a ")
        return await inner(s, "b ") + await inner(s, "c ")

    with Scripted(["1 ", "2 "]) as scripted:
        assert outer.using(backend=scripted).run().value == "1 2 "
    assert scripted.prompts == ["a b ", "a b 1 c "]


def test_a_run_that_is_over_takes_values_and_is_its_text() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s += "One and " + lmprog.gen("x")

    with Scripted(["two"]) as backend:
        run = program.using(backend=backend).run()
        run["x"] = 3
        run.set_var("y", "new")
        assert (run["x"], run.get_var("x"), run["y"], "y" in run) == (3, 3, "new", True)
        assert str(run) == run.text() == "One and two"
        assert repr(run) == "<run, value None>"


def test_the_text_of_a_run_that_failed_says_that_it_failed() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        raise ValueError("no")

    with Scripted([]) as backend:
        [run] = program.using(backend=backend).run_batch([{}])
        assert str(run) == repr(run)
        assert "ValueError('no')" in str(run)


def test_a_nested_call_has_the_sampling_of_its_program_over_that_of_the_branch() -> None:
    @lmprog.function
    def inner(s: lmprog.Branch) -> None:
        s.gen()

    @lmprog.function
    def outer(s: lmprog.Branch) -> None:
        s.append("x")
        inner.using(temperature=0.25)(s)
        s.gen()

    with Scripted(["a", "b"]) as scripted:
        outer.using(backend=scripted, temperature=0.5).run()
    assert [
        a.op.sampling.temperature for a in scripted.asked if isinstance(a.op, wire.Generate)
    ] == [0.25, 0.5]


def test_a_nested_run_has_a_branch_of_its_own_and_its_work_is_counted() -> None:
    @lmprog.function
    async def inner(s: lmprog.Branch) -> str:
        s.append("inner ")
        return await s.gen()

    @lmprog.function
    async def outer(s: lmprog.Branch) -> str:
        s.append("outer ")
        return (await inner.arun()).value + await s.gen()

    with Scripted(["1", "2"]) as scripted:
        run = outer.using(backend=scripted).run()
    assert run.value == "12"
    assert run.usage.generated == 2


def test_a_running_program_cannot_block_its_event_loop() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        s.append("x")
        return s.gen().value

    with (
        Scripted(lambda prompt: Hold()) as scripted,
        pytest.raises(ProgramError, match="`await` before it"),
    ):
        program.using(backend=scripted).run()


def test_a_program_can_be_run_inside_a_running_event_loop_as_in_a_notebook() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        s.append("x")
        return await s.gen()

    async def cell() -> str:
        return program.using(backend=scripted).run().value

    with Scripted(["one"]) as scripted:
        assert asyncio.run(cell()) == "one"


def test_arun_of_a_plain_program_does_not_block_the_loop() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.append("x")
        return s.gen().value

    async def main() -> str:
        task = asyncio.ensure_future(program.using(backend=scripted).arun())
        while not scripted.runtime.held():
            await asyncio.sleep(0.001)
        scripted.release("late")
        return (await task).value

    with Scripted(lambda prompt: Hold()) as scripted:
        assert asyncio.run(main()) == "late"


def test_cancelling_arun_frees_the_branches_and_cancels_the_calls() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> None:
        s.append("x")
        async with s.fork(2) as branches:
            await branches.map(lambda b: b.gen())

    async def main() -> None:
        task = asyncio.ensure_future(program.using(backend=scripted).arun())
        while len(scripted.runtime.held()) < 2:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with Scripted(lambda prompt: Hold()) as scripted:
        asyncio.run(main())
        assert scripted.runtime.open_branches() == 0
        assert scripted.runtime.held() == []


def test_an_awaited_call_that_is_cancelled_is_cancelled_in_the_runtime() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        s.append("x")
        with s.copy() as other:
            try:
                await asyncio.wait_for(other.gen(), 0.01)
            except TimeoutError:
                return await s.gen()
        return "not cancelled"

    script: Iterator[Scripting] = iter([Hold(), "second"])
    with Scripted(lambda prompt: next(script)) as scripted:
        assert program.using(backend=scripted).run().value == "second"
    assert any(isinstance(op, wire.Cancel) for frame in scripted.frames for op in frame)


def test_a_run_out_of_time_raises_and_every_call_knew_the_limit() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.append("x")
        s.gen().value
        threading.Event().wait(0.6)
        s.gen()

    with Scripted(["a"]) as scripted, pytest.raises(DeadlineExceeded):
        program.using(backend=scripted, timeout=0.5).run()
    asked = scripted.asked[0].op
    assert asked.timeout is not None
    assert asked.timeout <= 0.5


def test_no_branch_stays_open_after_a_run_however_it_ends() -> None:
    @lmprog.function
    def program(s: lmprog.Branch, fail: bool) -> None:
        s.append("x")
        s.fork(3)
        s.gen()
        if fail:
            raise ValueError("mine")

    with Scripted(["a", "b"]) as scripted:
        program.using(backend=scripted).run(False)
        assert scripted.runtime.open_branches() == 0
        with pytest.raises(ValueError, match="mine"):
            program.using(backend=scripted).run(True)
        assert scripted.runtime.open_branches() == 0


@lmprog.function
async def sleeping(s: lmprog.Branch, seconds: float) -> str:
    s.append("a")
    if seconds < 0:
        raise ValueError("negative")
    said = await s.gen()
    await asyncio.sleep(seconds)
    return said


def test_leaving_a_stream_ends_also_a_program_that_waits_for_something_else() -> None:
    began = time.monotonic()
    with Scripted(["one two"]) as scripted:
        for _ in sleeping.using(backend=scripted).stream(600.0):
            break
    assert time.monotonic() - began < 300


def test_a_failure_in_a_batch_ends_also_those_that_wait_for_something_else() -> None:
    began = time.monotonic()
    with Scripted(lambda prompt: "x") as scripted, pytest.raises(ValueError, match="negative"):
        sleeping.using(backend=scripted).map([600.0, -1.0, 600.0])
    assert time.monotonic() - began < 300


def test_a_run_inside_of_one_that_is_ended_ends_too() -> None:
    told: list[BaseException] = []

    @lmprog.function
    async def outer(s: lmprog.Branch) -> None:
        s.append("b")
        await s.gen()
        try:
            await sleeping.arun(600.0)
        except BaseException as error:
            told.append(error)
            raise

    with Scripted(lambda prompt: "x") as scripted:
        for event in outer.using(backend=scripted).stream():
            assert isinstance(event, lmprog.Text | lmprog.Value)
            break
    assert not told or isinstance(told[0], Cancelled)


def test_a_plain_program_that_gives_a_coroutine_is_refused() -> None:
    """Nothing of it would have run."""

    @lmprog.function
    def outer(s: lmprog.Branch) -> object:
        return sleeping(s, 0.0)

    with Scripted() as scripted, pytest.raises(ProgramError, match="outer gives a coroutine"):
        outer.using(backend=scripted).run()


def test_a_returned_result_is_its_value_unless_a_pending_one_is_announced() -> None:
    @lmprog.function
    def unread(s):  # type: ignore[no-untyped-def]
        s.append("x")
        return {"all": [s.gen(int), (s.gen("b"),)], "n": s.gen(n=2)}

    @lmprog.function
    async def unread_async(s):  # type: ignore[no-untyped-def]
        s.append("x")
        return s.gen(int)

    @lmprog.function
    def announced(s: lmprog.Branch) -> lmprog.Gen[str]:
        return s.gen()

    with Scripted(["7", "b", ["c", "d"]]) as scripted:
        found = unread.run(backend=scripted).value
    assert json.dumps(found) == '{"all": [7, ["b"]], "n": ["c", "d"]}'
    with Scripted(["7", "x"]) as scripted:
        assert unread_async.run(backend=scripted).value == 7
        assert announced.run(backend=scripted).value.meta.finish == "stop"
