"""What blocks must also work where an event loop runs already, as in every cell of a notebook."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

import lmprog
from lmprog.errors import ProgramError
from lmprog.testing import Scripted

T = TypeVar("T")


@lmprog.function
def plain(s: lmprog.Branch, word: str) -> list[str]:
    s.append(word)
    with s.fork(2) as branches:
        branches += ["l", "r"]
        return branches.each(lambda b: b.gen().value).value


@lmprog.function
async def waiting(s: lmprog.Branch, word: str) -> str:
    s.append(word)
    return await s.gen()


def in_a_cell(body: Callable[[], T]) -> T:
    async def cell() -> T:
        return body()

    return asyncio.run(cell())


def test_a_plain_program_runs_in_a_cell() -> None:
    with Scripted(lambda prompt: prompt * 2) as scripted:
        run = in_a_cell(lambda: plain.using(backend=scripted).run("x"))
    assert run.value == ["xlxl", "xrxr"]


def test_previews_are_written_in_a_cell() -> None:
    """This hung: what was asked waited for the end of the turn of the loop that waited for the
    answer.
    """
    with Scripted() as scripted:
        program = waiting.using(backend=scripted)
        assert in_a_cell(lambda: program.preview("a b"))["gen 1"].text == "a b"
        assert in_a_cell(lambda: program.explain("a b")).calls[0].label == "gen 1"


def test_a_run_is_replayed_in_a_cell(tmp_path: Path) -> None:
    with Scripted(lambda prompt: prompt * 2) as scripted:
        waiting.using(backend=scripted).run("a").save(tmp_path / "run.json")
        assert in_a_cell(lambda: lmprog.replay(tmp_path / "run.json", scripted)).is_same


def test_blocking_inside_of_an_async_program_is_refused() -> None:
    @lmprog.function
    async def outer(s: lmprog.Branch) -> object:
        return plain.run("x").value

    with Scripted() as scripted, pytest.raises(ProgramError, match=r"await program\.arun"):
        outer.using(backend=scripted).run()


def test_a_program_can_look_at_others_before_it_runs_them() -> None:
    @lmprog.function
    async def outer(s: lmprog.Branch) -> list[str]:
        return [str(plain.trace("x")), str(waiting.trace("x")), waiting.preview("x")["gen 1"].text]

    with Scripted() as scripted:
        plain_one, async_one, prompt = outer.using(backend=scripted).run().value
    assert "fork into branch 2, branch 3" in plain_one
    assert "gen 1" in async_one
    assert prompt == "x"
