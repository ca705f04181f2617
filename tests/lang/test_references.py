"""Lazy references in strings: marks are found again, and never mistaken for text or text for
them.
"""

from __future__ import annotations

import pytest

import lmprog
from lmprog import wire
from lmprog.errors import ProgramError
from lmprog.lang.branches.marks import Mark, split
from lmprog.testing import Hold, Scripted


def test_a_string_without_marks_is_one_piece() -> None:
    assert split("plain ⟦text⟧") == ["plain ⟦text⟧"]
    assert split("") == []


def test_marks_are_found_where_they_stand() -> None:
    assert split(f"a{Mark(7)}b{Mark(8)}") == ["a", Mark(7), "b", Mark(8)]


@pytest.mark.parametrize("damage", [str.upper, lambda text: text[:-2], lambda text: text[3:]])
def test_a_damaged_mark_is_an_error_and_never_text(damage: object) -> None:
    assert callable(damage)
    with pytest.raises(ProgramError, match="cut or changed"):
        split(damage(f"{Mark(7)}"))


def test_a_pending_generation_in_an_f_string_is_sent_as_a_reference_without_waiting() -> None:
    @lmprog.function
    def grade(s: lmprog.Branch) -> str:
        s.append("Write.")
        draft = s.gen()
        s.append(f"Grade: {draft}!")
        assert not draft.done()
        scripted.release("a poem")
        return s.gen().value

    with Scripted(lambda prompt: Hold() if prompt == "Write." else "good") as scripted:
        assert grade.using(backend=scripted).run().value == "good"
    appended = [op for frame in scripted.frames for op in frame if isinstance(op, wire.Append)]
    assert [type(piece) for piece in appended[1].pieces] == [
        wire.TextPiece,
        wire.Ref,
        wire.TextPiece,
    ]
    assert scripted.prompts[-1] == "Write.a poemGrade: a poem!"


def test_a_reference_may_point_into_another_branch() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        s.append("x")
        async with s.fork(2) as (left, right):
            first = left.gen()
            right.append(f"[{first}]")
            return await right.gen()

    with Scripted(["one", "two"]) as scripted:
        assert program.using(backend=scripted).run().value == "two"
    assert scripted.prompts[1] == "x[one]"


def test_a_reference_outlives_the_fork_that_made_it() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        s.append("x")
        async with s.fork(1) as [child]:
            draft = child.gen()
            s.append(f"({draft})")
        return await s.gen()

    with Scripted(["one", "two"]) as scripted:
        program.using(backend=scripted).run()
    assert scripted.prompts[1] == "x(one)"


def test_str_of_a_result_outside_a_program_is_its_text() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> lmprog.Gen[str]:
        s.append("x")
        return s.gen()

    with Scripted(["one"]) as scripted:
        assert str(program.using(backend=scripted).run().value) == "one"


def test_a_pending_result_is_neither_true_nor_false() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.append("x")
        if s.gen():
            raise AssertionError

    with Scripted(["one"]) as scripted, pytest.raises(TypeError, match="neither true nor false"):
        program.using(backend=scripted).run()


def test_a_pending_result_is_not_compared_with_values() -> None:
    """`if s.select("a", "b") == "a"` would be false without a word, whatever was chosen."""

    @lmprog.function
    def program(s: lmprog.Branch) -> tuple[bool, bool]:
        s.append("x")
        chosen = s.gen("kind")
        with pytest.raises(TypeError, match="equal to no value"):
            assert chosen == "a"  # type: ignore[comparison-overlap]
        with pytest.raises(TypeError, match="equal to no value"):
            assert chosen in ["a", "b"]  # type: ignore[comparison-overlap]
        same = chosen
        return chosen == same, chosen.value == "a"

    with Scripted(["a"]) as scripted:
        assert program.using(backend=scripted).run().value == (True, True)


def test_a_variable_can_be_put_into_later_text_whatever_it_is() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        s["topic"] = 7
        with s.var_scope("part"):
            s.append("<")
            s.gen(name="inside")
            s.append(">")
        s.append(
            " ", s.var("topic"), " ", s.var("inside"), " ", s.var("part")
        )  # nothing of it is waited for
        return await s.atext()

    with Scripted(["one"]) as scripted:
        assert program.using(backend=scripted).run().value == "<one> 7 one <one>"
