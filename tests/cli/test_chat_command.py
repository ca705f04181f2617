"""`lmprog chat`: what is typed, what is said, and what a stop leaves behind."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lmprog import wire
from lmprog.backends.client import Client, RuntimeBackend
from lmprog.cli import chat, main
from lmprog.cli.http_endpoint import Endpoint
from lmprog.launch import greet
from tests.server.fake_runtime import Fake

SHORT: dict[str, Any] = {"temperature": 0.0, "max_tokens": 6}


@pytest.fixture
def backend() -> Iterator[RuntimeBackend]:
    with Fake() as fake, RuntimeBackend(greet(fake.channel.connect())) as made:
        yield made


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda text: monkeypatch.setattr("sys.stdin", io.StringIO(text))


def text_of(client: Client, talk: chat.OnBranch) -> str:
    """All text of the conversation's branch."""
    assert talk._branch is not None
    reply = client.call(wire.Read(talk._branch, client.number())).wait(60)
    assert isinstance(reply, wire.TextIs)
    return reply.text


def test_a_conversation_over_http_knows_what_was_said(
    served: tuple[str, str], typed: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    typed("Hello\n/reset\nHello\nAgain\n/what\n/help\n")
    arguments = [
        "chat",
        served[0],
        "--api-key",
        served[1],
        "--temperature",
        "0",
        "--max-tokens",
        "5",
    ]
    assert main(arguments) == 0
    first, forgotten, second, third, *rest = capsys.readouterr().out.splitlines()
    assert forgotten == "forgotten"
    assert first == second, "the same question after a reset has the same answer"
    assert third
    assert "/what" in rest[0]


def test_turns_are_written_by_the_template_and_only_what_is_new_travels(
    backend: RuntimeBackend,
) -> None:
    talk = chat.OnBranch(backend, SHORT)
    talk.reset("Be brief.")
    first = "".join(talk.say("Hello"))
    before = text_of(backend.client, talk)
    assert "Be brief." in before
    assert "Hello" in before
    assert first in before
    second = "".join(talk.say("Again"))
    after = text_of(backend.client, talk)
    assert after.startswith(before)
    assert second in after
    assert after.count("Hello") == 1


def test_a_stopped_answer_keeps_what_was_said_and_the_conversation_goes_on(
    backend: RuntimeBackend,
) -> None:
    talk = chat.OnBranch(backend, {"temperature": 0.0, "max_tokens": 900})
    talk.reset(None)
    pieces = talk.say("Tell me a long story")
    said = next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    text = text_of(backend.client, talk)
    assert "Tell me a long story" in text
    assert said in text
    assert "".join(chat.OnBranch.say(_shortened(talk), "Go on"))
    assert text_of(backend.client, talk).startswith(text)


def _shortened(talk: chat.OnBranch) -> chat.OnBranch:
    talk._sampling = wire.SamplingParams(**SHORT)
    return talk


def test_an_answer_that_fails_leaves_the_conversation_as_it_was(backend: RuntimeBackend) -> None:
    talk = chat.OnBranch(backend, SHORT)
    talk.reset("Be brief.")
    before = text_of(backend.client, talk)
    with pytest.raises(Exception, match="fit"):
        "".join(talk.say("x" * 100_000))
    assert text_of(backend.client, talk) == before
    assert "".join(talk.say("Hello"))


def test_ctrl_c_stops_the_answer_only(
    served: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Endpoint(*served) as endpoint:
        talk = chat.OverHttp(endpoint, SHORT)
        real = talk.say

        def interrupted(text: str) -> Iterator[str]:
            pieces = real(text)
            yield next(pieces)
            pieces.close()  # type: ignore[attr-defined]
            raise KeyboardInterrupt

        monkeypatch.setattr(talk, "say", interrupted)
        chat._answer(talk, "Hello")
        assert "(stopped)" in capsys.readouterr().out
        roles = [message["role"] for message in talk._messages]
        assert roles == ["user", "assistant"]
        monkeypatch.setattr(talk, "say", real)
        assert "".join(talk.say("And now?"))
        assert len(talk._messages) == 4


def test_the_system_prompt_can_be_changed(
    served: tuple[str, str], typed: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    typed("/system Be loud.\n/system\n/quit\nnever reached\n")
    assert main(["chat", served[0], "--api-key", served[1]]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "forgotten; the system prompt is 'Be loud.'",
        "forgotten; the system prompt is none",
    ]


def test_a_wrong_key_and_a_dead_server_are_one_sentence(
    served: tuple[str, str], typed: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    typed("")
    assert main(["chat", served[0], "--api-key", "wrong"]) == 1
    assert "401" in capsys.readouterr().err
    assert main(["chat", "http://127.0.0.1:9"]) == 1
    assert capsys.readouterr().err.startswith("lmprog: http://127.0.0.1:9 does not answer")
