"""What a moved program's client hears: the rest of what was streamed, each character once."""

from __future__ import annotations

import pytest

from lmprog import wire
from lmprog.fleet.program_log import Diverged, ProgramLog


def moved_after(*streamed: str) -> ProgramLog:
    """A program that was moved when so much of its one call had been streamed."""
    log = ProgramLog()
    log.take(wire.Open(1))
    log.take(wire.Generate(1, 5, stream=True))
    for text in streamed:
        assert log.hear_delta(delta(text)) == delta(text)
    log.rebuilt()
    return log


def delta(text: str) -> wire.Delta:
    return wire.Delta(5, 0, text, len(text), ())


@pytest.mark.parametrize(
    "again", [("abcdef",), ("ab", "cd", "ef"), ("abc", "def"), ("abcd", "ef"), tuple("abcdef")]
)
def test_what_was_streamed_before_the_move_is_left_out(again: tuple[str, ...]) -> None:
    log = moved_after("ab", "c")
    heard = [new for text in again if (new := log.hear_delta(delta(text))) is not None]
    assert "".join(one.text for one in heard) == "def"
    assert sum(one.num_tokens for one in heard) == 3


def test_the_tags_in_what_is_new_are_told_where_they_are_now() -> None:
    log = moved_after("a<t>", "b")
    again = wire.Delta(5, 0, "a<t>bc<t>d", 10, tags=(1, 6))
    assert log.hear_delta(again) == wire.Delta(5, 0, "c<t>d", 5, tags=(1,))


@pytest.mark.parametrize("again", ["x", "abx", "abxdef"])
def test_another_text_than_before_the_move_is_not_believed(again: str) -> None:
    with pytest.raises(Diverged):
        moved_after("abc").hear_delta(delta(again))


def test_a_branch_that_referred_to_a_failed_call_before_the_move_fails_for_its_reason() -> None:
    log = ProgramLog()
    failed = wire.Failed(5, "context_overflow", "too long", {})
    for op in (wire.Open(1), wire.Fork(1, (2,)), wire.Generate(1, 5)):
        log.take(op)
    log.take(wire.Append(2, (wire.Ref(5),)))
    assert log.hear_reply(failed) == failed
    log.rebuilt()
    cause = log.cause_of(wire.Generate(2, 6))
    assert cause is not None
    assert (cause.code, cause.message) == ("context_overflow", "too long")
