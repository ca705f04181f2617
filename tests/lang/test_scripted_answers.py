"""Which answers of a script a call takes: those that a model could have given."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import pytest

import lmprog
from lmprog.errors import ProgramError, ValidationFailed
from lmprog.testing import Scripted


@dataclass
class Person:
    name: str
    age: int


@lmprog.function
def asked(s: lmprog.Branch, tp: Any, options: dict[str, Any]) -> Any:
    s.append("Say: ")
    return s.gen(tp, **options).value


GIVEN: list[tuple[Any, dict[str, Any], str, Any]] = [
    (int, {}, "12", 12),
    (Person, {}, '{"name": "Mia", "age": 7}', Person("Mia", 7)),
    (Person, {}, '{"age":7,\n"name":"Mia"}', Person("Mia", 7)),
    (list[int], {}, "[1,2]", [1, 2]),
    (Literal["a", "b"], {}, "b", "b"),
    (str, {"regex": "a+"}, "aaa", "aaa"),
    (str, {"max_tokens": 2}, "two words", "two words"),
]
REFUSED: list[tuple[Any, dict[str, Any], str, str]] = [
    (int, {}, "twelve", "no value of the schema"),
    (Person, {}, '{"name": "Mia"}', "no value of the schema"),
    (Person, {}, 'Here: {"name": "Mia", "age": 7}', "no value of the schema"),
    (list[int], {}, "[1, 2", "no value of the schema"),
    (str, {"regex": "a+"}, "ab", r"does not match a\+"),
    (str, {"choices": ["yes", "no"]}, "maybe", "the choices are yes, no"),
    (str, {"grammar": 'start: "a" "b"'}, "ba", "constraint does not allow"),
    (str, {"max_tokens": 2}, "not two words", "at least 3 tokens, but max_tokens is 2"),
]


@pytest.mark.parametrize(("tp", "options", "text", "value"), GIVEN)
def test_an_answer_that_could_be_given_is_taken(
    tp: Any, options: dict[str, Any], text: str, value: Any
) -> None:
    with Scripted([text]) as scripted:
        assert asked.run(tp, options, backend=scripted).value == value  # type: ignore[call-arg]


@pytest.mark.parametrize(("tp", "options", "text", "why"), REFUSED)
def test_an_answer_that_no_model_could_give_fails_its_call(
    tp: Any, options: dict[str, Any], text: str, why: str
) -> None:
    with Scripted([text, text], strict=True) as scripted:
        with pytest.raises(ProgramError, match=why) as caught:
            asked.run(tp, options, backend=scripted)  # type: ignore[call-arg]
        assert repr(text) in str(caught.value)
        assert "strict=False" in str(caught.value)
        with pytest.raises(ProgramError):
            asked.run(tp, options, backend=scripted)  # type: ignore[call-arg]
    with Scripted([text], strict=False) as lenient, suppress(ValidationFailed):
        asked.run(tp, options, backend=lenient)  # type: ignore[call-arg]
