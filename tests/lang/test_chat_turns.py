"""A call right after a chat turn is a turn of the assistant, on every backend."""

from __future__ import annotations

import asyncio

import pytest

import lmprog
from lmprog import wire
from lmprog.errors import InvalidParameter
from lmprog.testing import Scripted
from tests.backends.programs import on
from tests.backends.scripted_api import ScriptedApi

SENT = [
    {"role": "user", "content": "Which kind?"},
    {"role": "assistant", "content": "invoice"},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": "yes"},
]


@lmprog.function
def triage(s: lmprog.Branch) -> list[str]:
    s.user("Which kind?")
    kind = s.select("invoice", "other")
    s.user("Sure?")
    sure = s.gen(max_tokens=4)
    return [kind.value, sure.value]


def test_messages_are_what_the_runtime_was_sent() -> None:
    with Scripted(["invoice", "yes"]) as scripted:
        run = triage.using(backend=scripted).run()
    assert run.messages() == SENT
    roles = [
        piece
        for frame in scripted.frames
        for op in frame
        if isinstance(op, wire.Append)
        for piece in op.pieces
        if isinstance(piece, wire.RoleBegin | wire.RoleEnd)
    ]
    expected: list[wire.Piece] = []
    for role in ("user", "assistant", "user", "assistant"):
        expected += [wire.RoleBegin(role), wire.RoleEnd(role)]
    assert roles == expected


def test_a_chat_api_is_sent_the_same_messages() -> None:
    answers = iter(['{"value": "invoice"}', "yes"])
    with ScriptedApi(lambda prompt: next(answers)) as api, on(api, dialect="openai") as backend:
        run = triage.using(backend=backend).run()
        assert run.messages() == SENT
        assert api.requests[-1]["messages"] == SENT[:3]


def test_a_call_inside_a_turn_or_after_text_stays_where_it_is() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.user("Q")
        with s.assistant():
            s.append("A: ")
            s.gen()
        s.append("plain ")
        s.gen()

    with Scripted(["one", "two"]) as scripted:
        run = program.using(backend=scripted).run()
    assert run.messages() == [
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "A: one"},
    ]
    assert run.text().endswith("plain two")


def test_without_turns_text_stays_plain() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.append("Q")
        return s.gen().value

    with Scripted(["a"]) as scripted:
        run = program.using(backend=scripted).run()
    assert (run.messages(), run.text()) == ([], "Qa")


def test_a_call_that_is_refused_before_it_is_sent_begins_no_turn() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        s.user("Q")
        with pytest.raises(InvalidParameter):
            s.gen(min_tokens=5, max_tokens=3)
        s.user("R")
        return await s.gen()

    with Scripted(["a"]) as scripted:
        run = asyncio.run(program.using(backend=scripted).arun())
    assert [turn["role"] for turn in run.messages()] == ["user", "user", "assistant"]
