"""A call that failed, and whose error the program went on from, fails again when the run is resumed:
with the same error, and without being asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import lmprog
from lmprog.backends.client import RuntimeBackend
from lmprog.errors import (
    CheckpointMismatch,
    ContextOverflow,
    LmprogError,
    Overloaded,
    RequestRejected,
    RuntimeGone,
)
from lmprog.launch import greet
from lmprog.testing import Hold, Scripted, Scripting
from tests.lang.small_runtime import Real

TOO_LONG = ContextOverflow("the prompt has 9 tokens", prompt=9, max_tokens=1, limit=8)
BUSY = Overloaded("try again later", retry_after=2.5)


@lmprog.function
async def careful(s: lmprog.Branch, text: str) -> str:
    """Goes on from the failure of one fork, on another."""
    with s.copy() as attempt:
        attempt.append(text)
        try:
            found = await attempt.gen()
        except LmprogError as error:
            found = f"{error.code} {error.message} {error.details()}"
    s.append(found)
    return f"{found}: {await s.gen()} {await s.gen()}"


@lmprog.function
def plain_careful(s: lmprog.Branch, text: str) -> str:
    with s.copy() as attempt:
        attempt.append(text)
        try:
            found = attempt.gen().value
        except LmprogError as error:
            found = f"{error.code} {error.message} {error.details()}"
    s.append(found)
    return f"{found}: {s.gen().value} {s.gen().value}"


@pytest.mark.parametrize("program", [careful, plain_careful])
@pytest.mark.parametrize("error", [TOO_LONG, BUSY])
def test_what_had_failed_fails_again_unasked_from_every_line_on(
    program: lmprog.Program[[str], str], error: LmprogError, tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    with Scripted([error, "a", "b"]) as scripted:
        whole = program.using(backend=scripted, checkpoint=path).run("x")
    assert str(error.details()) in whole.value
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 1 + 3
    answers: list[Scripting] = [error, "a", "b"]
    for cut in range(1, 5):
        path.write_bytes(b"".join(lines[:cut]))
        with Scripted(answers[cut - 1 :]) as scripted:
            again = lmprog.resume(path, program, backend=scripted)
            assert again.value == whole.value
        assert path.read_bytes() == b"".join(lines), "nothing is written twice"


def test_the_checkpoint_of_a_run_without_a_file_has_its_failures_too(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    @lmprog.function
    async def pausing(s: lmprog.Branch) -> str:
        try:
            return await s.gen()
        except Overloaded as error:  # the question is asked while the error is handled
            return f"{s.pause('And now?')} after {error.message}"

    with Scripted([BUSY]) as scripted, pytest.raises(lmprog.Paused) as paused:
        pausing.using(backend=scripted).run()
    paused.value.checkpoint(path)
    with Scripted([]) as scripted:
        run = lmprog.resume(path, pausing, backend=scripted, answer="this")
    assert run.value == "this after try again later"
    assert run.num_from_cache == 0


def test_a_failure_that_ended_the_run_is_asked_again(tmp_path: Path) -> None:
    """As it is, as the cause of the program's own error, of several branches, or never read."""

    async def as_it_is(s: lmprog.Branch) -> str:
        return await s.gen()

    async def own(s: lmprog.Branch) -> str:
        try:
            return await s.gen()
        except LmprogError:
            raise ValueError("no answer")  # noqa: B904  (its context is what counts)

    async def mapped(s: lmprog.Branch) -> str:
        async with s.fork(3) as branches:
            return "".join(await branches.map(lambda b: b.gen()))

    async def gathered(s: lmprog.Branch) -> str:
        async with s.fork(3) as branches:
            return "".join(await asyncio.gather(*(b.gen() for b in branches)))

    async def unread(s: lmprog.Branch) -> str:
        s.gen()
        s.gen()
        return "never read"

    for function, error, num in (
        (as_it_is, RuntimeGone, 1),
        (own, ValueError, 1),
        (mapped, (RuntimeGone, ExceptionGroup), 3),
        (gathered, RuntimeGone, 3),
        (unread, RuntimeGone, 2),
    ):
        program = lmprog.function(function)
        path = tmp_path / f"{function.__name__}.jsonl"
        gone = RuntimeGone("the runtime is gone")
        with Scripted(lambda _: gone) as scripted, pytest.raises(error):  # noqa: B023
            program.using(backend=scripted, checkpoint=path).run()
        with Scripted(["a"] * num) as scripted:
            run = lmprog.resume(path, program, backend=scripted)
            assert run.value in ("a" * num, "never read")
        with Scripted([]) as scripted:
            assert lmprog.resume(path, program, backend=scripted).value == run.value


def test_what_was_caught_stays_although_the_next_one_ends_the_run(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    @lmprog.function
    async def fallback(s: lmprog.Branch) -> str:
        with s.copy() as attempt:
            try:
                return await attempt.gen()
            except Overloaded:
                return "other " + await s.gen()  # while the first error is handled

    for _ in range(2):
        with Scripted([BUSY]) as scripted, pytest.raises(LmprogError, match="no more answers"):
            fallback.using(backend=scripted, checkpoint=path).run()
        assert len(scripted.asked) == 2
        with Scripted(lambda _: BUSY) as scripted, pytest.raises(Overloaded):
            lmprog.resume(path, fallback, backend=scripted)
        assert len(scripted.asked) == 1, "only what had ended the run"
        with Scripted(["b"]) as scripted:
            assert lmprog.resume(path, fallback, backend=scripted).value == "other b"
        path.unlink()


def test_a_process_that_dies_while_an_error_goes_up_is_gone_on_from_all_the_same(
    tmp_path: Path,
) -> None:
    """The first time the error ends the resumed run, unasked; then it is asked again."""
    path = tmp_path / "run.jsonl"

    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        return s.gen().value

    with Scripted([BUSY]) as scripted, pytest.raises(Overloaded):
        program.using(backend=scripted, checkpoint=path).run()
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 3
    path.write_bytes(b"".join(lines[:2]))
    with Scripted([]) as scripted, pytest.raises(Overloaded) as raised:
        lmprog.resume(path, program, backend=scripted)
    assert raised.value.retry_after == 2.5
    with Scripted(["a"]) as scripted:
        assert lmprog.resume(path, program, backend=scripted).value == "a"


def test_later_calls_of_a_failed_branch_fail_for_the_same_reason_unasked(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        async with s.fork(1) as branches:
            first, second = branches[0].gen(), branches[0].gen()
            with pytest.raises(RuntimeGone, match="gone"):
                await second
            third = branches[0].gen()
            with branches[0].copy() as copy:
                copy.append(" and ")
                fourth = copy.gen()
                s.pause("Go on?")
                with pytest.raises(RuntimeGone, match="gone"):
                    await fourth
            for gen in (first, third):
                with pytest.raises(RuntimeGone, match="gone"):
                    await gen
        return await s.gen()

    gone = RuntimeGone("the runtime is gone")
    with Scripted(lambda _: gone) as scripted, pytest.raises(lmprog.Paused) as paused:
        program.using(backend=scripted).run()
    paused.value.checkpoint(path)
    with Scripted(["a"]) as scripted:
        assert lmprog.resume(path, program, backend=scripted, answer=1).value == "a"


def test_the_failure_of_a_run_inside_the_run_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    @lmprog.function
    async def outer(s: lmprog.Branch) -> str:
        try:
            found = (await careless.arun()).value
        except Overloaded:
            found = "busy"
        return f"{found} {await s.gen()}"

    with Scripted([BUSY, "a"]) as scripted:
        whole = outer.using(backend=scripted, checkpoint=path).run()
    with Scripted([]) as scripted:
        again = lmprog.resume(path, outer, backend=scripted)
        assert again.value == whole.value == "busy a"


def test_what_was_cancelled_is_no_failure_and_is_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        gen = s.gen()
        gen.cancel()
        with pytest.raises(LmprogError):
            await gen
        return str(s.pause("And now?"))

    for _ in range(2):
        with Scripted([Hold()]) as scripted, pytest.raises(lmprog.Paused):
            program.using(backend=scripted, checkpoint=path).run()


def test_another_call_in_the_place_of_one_that_failed_is_a_mismatch(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    words = ["one"]

    @lmprog.function
    def edited(s: lmprog.Branch) -> str:
        s.append(words[0])
        try:
            return s.gen().value
        except Overloaded as error:
            return error.message

    with Scripted([BUSY]) as scripted:
        assert edited.using(backend=scripted, checkpoint=path).run().value == BUSY.message
    words[0] = "two"
    with Scripted([]) as scripted, pytest.raises(CheckpointMismatch, match="call #0"):
        lmprog.resume(path, edited, backend=scripted)


@pytest.fixture
def two() -> Iterator[list[RuntimeBackend]]:
    """Two runtimes of one model."""
    made = [Real() for _ in range(2)]
    backends = [RuntimeBackend(greet(real.channel.connect())) for real in made]
    yield backends
    for backend, real in zip(backends, made, strict=True):
        backend.close()
        real.end()


def test_a_branch_goes_on_behind_a_refused_call_token_for_token(
    two: list[RuntimeBackend], tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"

    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        s.append("the an ")
        await s.gen(max_tokens=3, temperature=1.0)
        try:
            await s.gen(max_tokens=1_000_000)
        except RequestRejected as error:
            s.append(type(error).__name__)
        s.append(" and ")
        await s.gen(max_tokens=4, temperature=1.0)
        return await s.atext()

    whole = program.using(backend=two[0], seed=3, checkpoint=path).run()
    assert "ContextOverflow" in whole.value
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 4
    for cut in range(1, 4):
        path.write_bytes(b"".join(lines[:cut]))
        assert lmprog.resume(path, program, backend=two[1]).value == whole.value


@lmprog.function
async def careless(s: lmprog.Branch) -> str:
    return await s.gen()
