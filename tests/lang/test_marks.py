"""Pending results in strings: what a program returns or sets never shows a mark, and one that leaks
is told.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

import lmprog
from lmprog.errors import ProgramError
from lmprog.lang.branches.marks import PendingTextWarning
from lmprog.testing import Hold, Scripted


@dataclass
class Report:
    title: str
    lines: list[str]


def test_what_a_program_returns_has_results_in_place_of_marks() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> object:
        s.append("Q")
        gen = s.gen()
        text = f"answer: {gen}"
        return [text, {text: (f"<{gen}>", {f"{gen}"})}, Report(f"T {gen}", [f"{gen}!"])]

    with Scripted(["42"]) as scripted:
        scripted.runtime.frames.clear()
        value = program.using(backend=scripted).run().value
    assert value == [
        "answer: 42",
        {"answer: 42": ("<42>", {"42"})},
        Report("T 42", ["42!"]),
    ]


def test_a_pending_result_outside_of_an_f_string_is_waited_for() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.append("Q")
        return json.dumps({"answer": str(s.gen())})

    with Scripted(["42"]) as scripted:
        assert program.using(backend=scripted).run().value == '{"answer": "42"}'


def test_a_result_that_was_not_read_is_a_mark_although_it_has_arrived() -> None:
    """Else what a text becomes would depend on when a result arrives."""

    @lmprog.function
    def program(s: lmprog.Branch) -> tuple[bool, str, str]:
        s.append("Q")
        gen = s.gen()
        s.sync()
        assert gen.done()
        before = f"<{gen}>"
        was_mark = "42" not in before
        assert gen.value == "42"
        return was_mark, before, f"<{gen}>" + "!"

    with Scripted(["42"]) as scripted:
        assert program.using(backend=scripted).run().value == (True, "<42>", "<42>!")


def test_on_an_event_loop_it_must_be_awaited_first() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        s.append("Q")
        return str(s.gen())

    with Scripted([Hold()]) as scripted, pytest.raises(ProgramError, match="write `await`"):
        program.using(backend=scripted).run()


def test_a_variable_set_to_text_with_a_pending_result_has_the_result() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.append("Q")
        s["note"] = f"[{s.gen()}]"
        s.append(s.var("note"))

    with Scripted(["42"]) as scripted:
        state = program.using(backend=scripted).run()
    assert (state["note"], state.text()) == ("[42]", "Q42[42]")


def test_text_with_a_pending_result_that_goes_elsewhere_is_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "note"

    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        s.append("Q")
        gen = s.gen()
        file.write_text(f"{gen}")
        return await gen

    with Scripted(["42"]) as scripted, pytest.warns(PendingTextWarning, match="mark") as caught:
        assert program.using(backend=scripted).run().value == "42"
    assert Path(caught[0].filename) == Path(__file__)
