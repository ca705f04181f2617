"""`gen(T, tries=n, check=f)`: what does not validate is shown with its error and asked for again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, field_validator

import lmprog
from lmprog import wire
from lmprog.errors import InvalidParameter, NotSupported, ProgramError, ValidationFailed
from lmprog.lang.ops.keywords import ValueCheck
from lmprog.testing import Scripted
from tests.backends.programs import chat, on
from tests.backends.scripted_api import ScriptedApi


def even(value: int) -> str | None:
    return None if value % 2 == 0 else f"{value} is odd"


def positive(value: int) -> None:
    if value <= 0:
        raise ValueError(f"{value} is not positive")


def scripted(*answers: str, strict: bool = True) -> Scripted:
    return Scripted(list(answers), strict=strict)


@lmprog.function
def plain(s: lmprog.Branch, tries: int = 3) -> int:
    s.append("Think of an even number.\nNumber: ")
    return s.gen(int, name="number", check=even, tries=tries).value


@lmprog.function
async def chatting(s: lmprog.Branch, tries: int = 3) -> int:
    s.user("Think of an even number.")
    return await s.gen(int, name="number", check=even, tries=tries)


def test_a_wrong_value_is_shown_with_its_error_and_asked_for_again() -> None:
    run = plain.using(backend=scripted("3", "5", "8")).run()
    assert run.value == 8
    assert run.text() == (
        "Think of an even number.\nNumber: 3\n"
        "That is not right: 3 is odd. Answer again.\nNumber: 5\n"
        "That is not right: 5 is odd. Answer again.\nNumber: 8"
    )
    assert run["number"] == 8


def test_in_a_chat_the_error_is_a_turn_of_the_user() -> None:
    run = chatting.using(backend=scripted("3", "8")).run()
    assert run.value == 8
    assert run.messages() == [
        {"role": "user", "content": "Think of an even number."},
        {"role": "assistant", "content": "3"},
        {"role": "user", "content": "That is not right: 3 is odd. Answer again."},
        {"role": "assistant", "content": "8"},
    ]


def test_each_attempt_goes_on_from_the_text_before_it() -> None:
    backend = scripted("3", "5", "8")
    plain.using(backend=backend).run()
    first, second, third = backend.prompts
    assert second.startswith(first + "3")
    assert third.startswith(second + "5")


def test_a_right_value_is_asked_for_once() -> None:
    run = plain.using(backend=scripted("4")).run()
    assert run.value == 4
    assert run.text().endswith("Number: 4")


def test_all_attempts_count_in_the_usage() -> None:
    once = plain.using(backend=scripted("4")).run().usage
    thrice = plain.using(backend=scripted("3", "5", "4")).run().usage
    assert thrice.generated == 3 * once.generated


def test_the_last_error_is_raised_where_no_try_is_left() -> None:
    with pytest.raises(ValidationFailed, match="5 is odd") as raised:
        plain.using(backend=scripted("3", "5", "8")).run(tries=2)
    assert raised.value.text == "5"


def test_without_tries_a_check_just_refuses() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> int:
        return s.gen(int, check=positive).value

    with pytest.raises(ValidationFailed, match="-1 is not positive"):
        program.using(backend=scripted("-1")).run()
    assert program.using(backend=scripted("1")).run().value == 1


@pytest.mark.parametrize("check", [lambda value: value > 5, lambda value: value > 5 or "no"])
def test_a_check_may_say_false_or_what_is_wrong(check: ValueCheck) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> int:
        return s.gen(int, check=check, tries=2).value

    assert program.using(backend=scripted("5", "6")).run().value == 6


def test_an_error_in_the_check_itself_is_raised_as_it_is() -> None:
    def broken(value: int) -> bool:
        return bool(value / 0)

    @lmprog.function
    def program(s: lmprog.Branch) -> int:
        return s.gen(int, check=broken, tries=2).value

    with pytest.raises(ZeroDivisionError):
        program.using(backend=scripted("1", "2")).run()


class Person(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def is_capital(cls, value: str) -> str:
        if not value[:1].isupper():
            raise ValueError("a name begins with a capital letter")
        return value


def test_validators_of_a_model_are_shown_to_the_model() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> Person:
        s.user("Who?")
        return await s.gen(Person, tries=2)

    run = program.using(backend=scripted('{"name": "ada"}', '{"name": "Ada"}')).run()
    assert run.value == Person(name="Ada")
    assert "a name begins with a capital letter" in run.messages()[2]["content"]


def test_what_was_wrong_is_no_choice_any_more() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        return s.gen(Literal["red", "green", "blue"], check=lambda it: it == "blue", tries=3).value

    backend = scripted("red", "green", "blue")
    assert program.using(backend=backend).run().value == "blue"
    assert [request.op.constraint for request in backend.asked] == [  # type: ignore[union-attr]
        wire.Choices(texts) for texts in (("red", "green", "blue"), ("green", "blue"), ("blue",))
    ]


def test_a_branch_that_goes_on_reads_the_result_first() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.user("A number?")
        number = s.gen(int, check=even, tries=2)
        s.user(f"Why {number}?")
        return s.gen().value

    run = program.using(backend=scripted("3", "4", "because")).run()
    assert [turn["content"] for turn in run.messages()][3:] == ["4", "Why 4?", "because"]


def test_on_an_event_loop_the_result_must_be_awaited_first() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> None:
        s.user("A number?")
        s.gen(int, check=even, tries=2)
        s.user("Why?")

    with pytest.raises(ProgramError, match="write `await` before it"):
        program.using(backend=scripted("3", "4")).run()


def test_a_result_that_nobody_reads_is_asked_for_until_it_validates() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.append(lmprog.gen("number", dtype=int, check=even, tries=3))

    run = program.using(backend=scripted("3", "4")).run()
    assert run["number"] == 4


def test_the_operator_spelling_has_it_too() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> int:
        s += "Number: " + lmprog.gen("number", dtype=int, check=even, tries=2) + "."
        return int(s["number"])

    run = program.using(backend=scripted("3", "4")).run()
    assert run.value == 4
    assert run.text().endswith("Answer again.\nNumber: 4.")


def test_branches_of_a_fork_ask_again_each_for_itself() -> None:
    def answers(prompt: str) -> str:
        return "4" if "not right" in prompt else prompt[-1]

    @lmprog.function
    async def program(s: lmprog.Branch) -> list[int]:
        async with s.fork(3) as branches:
            for index, branch in enumerate(branches):
                branch.append(f"{index}")
            return await branches.map(lambda b: b.gen(int, check=even, tries=2))

    assert program.using(backend=Scripted(answers)).run().value == [0, 4, 2]


def test_two_readers_ask_again_once() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> list[int]:
        gen = s.gen(int, check=even, tries=3)

        async def read() -> int:
            return await gen

        return await asyncio.gather(read(), read())

    run = program.using(backend=scripted("3", "4")).run()
    assert run.value == [4, 4]


def test_a_stream_says_that_it_is_asked_again() -> None:
    events = list(chatting.using(backend=scripted("3", "8")).stream())
    kinds = [type(event).__name__ for event in events]
    assert kinds.count("AskedAgain") == 1
    again = next(event for event in events if isinstance(event, lmprog.AskedAgain))
    assert (again.var, again.error, again.branch) == ("number", "3 is odd", "root")
    assert [event.value for event in events if isinstance(event, lmprog.Value)] == [8]
    assert kinds.index("AskedAgain") < kinds.index("Value")
    assert kinds[-1] == "Done"


def test_following_a_branch_shows_every_attempt() -> None:
    def pieces() -> Iterator[str]:
        state = plain.using(backend=scripted("3", "8")).run(stream=True)
        yield from state.text_iter()

    assert "".join(pieces()).endswith(
        "Number: 3\nThat is not right: 3 is odd. Answer again.\nNumber: 8"
    )


def test_a_saved_run_replays_its_attempts(tmp_path: Path) -> None:
    run = plain.using(backend=scripted("3", "8")).run()
    run.save(tmp_path / "run.json")
    again = lmprog.replay(tmp_path / "run.json", backend=scripted("3", "8"))
    assert again.is_same
    assert again.num_calls == 2


def test_a_rehearsal_takes_the_placeholder_as_it_is() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> object:
        s.append("Number: ")
        return s.gen(int, check=lambda value: False, tries=3).value

    assert "That is not right" not in str(program.preview())
    assert len(program.explain().calls) == 1


def test_on_an_api_the_error_is_a_turn_too() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        s.user("A colour.")
        return await s.gen(tries=2, check=lambda text: text == "blue" or f"It is not {text}.")

    answers = {"A colour.": "red", "That is not right: It is not red. Answer again.": "blue"}
    with ScriptedApi(chat(answers)) as api, on(api) as backend:
        assert program.using(backend=backend).run().value == "blue"
        assert [len(request["messages"]) for request in api.requests] == [1, 3]


@pytest.mark.parametrize(
    ("options", "name"),
    [({"tries": 0}, "tries"), ({"tries": 99}, "tries"), ({"check": 7}, "check")],
)
def test_options_out_of_range_are_refused(options: dict[str, int], name: str) -> None:
    with pytest.raises(InvalidParameter) as raised:
        lmprog.gen("x", **options)
    assert raised.value.name == name


def test_several_results_cannot_be_asked_for_again() -> None:
    with pytest.raises(InvalidParameter, match="tries and n"):
        lmprog.gen("x", n=2, tries=2)


def test_a_call_that_fails_is_not_asked_again() -> None:
    backend = Scripted([NotSupported("no such thing"), "4"])
    with pytest.raises(NotSupported, match="no such thing"):
        plain.using(backend=backend).run()
    assert len(backend.asked) == 1


def test_a_typed_generation_that_nothing_reads_is_validated_all_the_same() -> None:
    @lmprog.function
    def unread(s: lmprog.Branch, tries: int = 1) -> str:
        s += lmprog.gen("number", dtype=int, regex=None, check=even, tries=tries)
        return "done"

    @lmprog.function
    def unread_in_a_fork(s: lmprog.Branch) -> None:
        with s.fork(2) as branches:
            for branch in branches:
                branch.gen(int)

    with pytest.raises(ValidationFailed, match="3 is odd"):
        unread.using(backend=scripted("3")).run()
    with pytest.raises(ValidationFailed, match="5 is odd"):
        unread.using(backend=scripted("3", "5")).run(tries=2)
    assert unread.using(backend=scripted("3", "4")).run(tries=2)["number"] == 4
    with pytest.raises(ValidationFailed) as caught:
        unread_in_a_fork.using(backend=scripted("3", "x", strict=False)).run()
    assert caught.traceback[-1].name == "unread_in_a_fork"
    assert "nothing has read it" in caught.value.__notes__[0]
