"""Programs on Anthropic's API, through its own package against a scripted server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest

import lmprog
from lmprog.errors import NotSupported, RequestRejected, ValidationFailed
from tests.backends.scripted_api import Fault, ScriptedApi

pytest.importorskip("anthropic")
ANSWERS = {"hello": "hi there. And more.", "Sure?": "yes\nno", "word": '{"value": "no"}'}


class AnthropicServer(ScriptedApi):
    def __init__(self) -> None:
        super().__init__(lambda prompt: "")
        self.extra["/v1/messages"] = self.messages

    def messages(self, body: dict[str, Any]) -> object:
        last = next(
            turn["content"] for turn in reversed(body["messages"]) if turn["role"] == "user"
        )
        begun = (
            body["messages"][-1]["content"] if body["messages"][-1]["role"] == "assistant" else ""
        )
        text = ANSWERS[last].removeprefix(begun)
        stop = next((stop for stop in body.get("stop_sequences", []) if stop in text), None)
        text = text if stop is None else text.partition(stop)[0]
        end: dict[str, Any] = {
            "stop_reason": "end_turn" if stop is None else "stop_sequence",
            "stop_sequence": stop,
        }
        usage = {"input_tokens": 7, "cache_read_input_tokens": 2, "output_tokens": 3}
        if not body.get("stream"):
            return {
                "type": "message",
                "content": [{"type": "text", "text": text}],
                "usage": usage,
                **end,
            }
        begin: dict[str, Any] = {
            "type": "message",
            "content": [],
            "stop_reason": None,
            "usage": {**usage, "output_tokens": 1},
        }
        return (
            {"type": "message_start", "message": begin},
            *(
                {"type": "content_block_delta", "delta": {"type": "text_delta", "text": letter}}
                for letter in text
            ),
            {"type": "message_delta", "delta": end, "usage": {"output_tokens": 3}},
            {"type": "message_stop"},
        )


@pytest.fixture
def api() -> Iterator[AnthropicServer]:
    with AnthropicServer() as server:
        yield server


def on(api: ScriptedApi, **options: Any) -> lmprog.Anthropic:
    return lmprog.Anthropic("claude-x", base_url=api.url, api_key="k", **options)


@lmprog.function
def clerk(s: lmprog.Branch) -> list[str]:
    s.system("You are a clerk.")
    s.user("hello")
    first = s.gen(stop=".", max_tokens=50)
    s.user("Sure?")
    with s.assistant():
        second = s.gen(stop="\n")
    return [first.value, second.value]


def test_22_the_system_turn_stays_in_the_programs_messages_and_in_every_request(
    api: AnthropicServer,
) -> None:
    """SGLang's backend pops it from the state: there it is gone after the first call."""
    with on(api) as backend:
        run = clerk.using(backend=backend, temperature=0.5).run()
        assert run.value == ["hi there", "yes"]
        assert run.messages()[0] == {"role": "system", "content": "You are a clerk."}
        for request in api.requests:
            assert request["system"] == [{"type": "text", "text": "You are a clerk."}]
        assert (run.usage.prompt, run.usage.cached, run.usage.generated) == (18, 4, 6)
        first, second = api.requests
        assert (first["max_tokens"], first["temperature"], first["stop_sequences"]) == (
            50,
            0.5,
            ["."],
        )
        assert (
            "stop_sequences" not in second
        )  # the service takes no blank ones: this one is found here
        assert second["messages"][1] == {"role": "assistant", "content": "hi there"}


def test_a_stream_tells_its_pieces(api: AnthropicServer) -> None:
    with on(api) as backend:
        events = list(clerk.using(backend=backend).stream())
        assert (
            "".join(event.delta for event in events if isinstance(event, lmprog.Text))
            == "hi thereyes"
        )
        assert isinstance(events[-1], lmprog.Done)
        assert events[-1].usage.generated == 6


def test_types_travel_as_schemas_and_selects_as_choices(api: AnthropicServer) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> list[str]:
        s.user("word")
        word = s.gen(Literal["yes", "no"])
        s.user("word")
        return [word.value, s.select("yes", "no").value]

    with on(api) as backend:
        assert program.using(backend=backend).run().value == ["no", "no"]
        assert api.requests[0]["output_config"]["format"]["type"] == "json_schema"


def test_speculation_and_prefilled_turns_work_here_too(api: AnthropicServer) -> None:
    @lmprog.function(num_api_spec_tokens=32)
    def program(s: lmprog.Branch) -> list[str]:
        s.user("hello")
        with s.assistant():
            first = s.gen(stop=".")
            s.append(". And")
            return [first.value, s.gen(stop=".").value]

    with on(api) as backend:
        assert program.using(backend=backend).run().value == ["hi there", " more"]
        assert len(api.requests) == 1
    with on(api, prefill="message") as backend:
        assert program.using(backend=backend, num_api_spec_tokens=0).run().value == [
            "hi there",
            " more",
        ]
        assert api.requests[-1]["messages"][-1] == {"role": "assistant", "content": "hi there. And"}


def test_what_the_service_does_not_have_is_refused(api: AnthropicServer) -> None:
    with on(api) as backend:
        with pytest.raises(NotSupported, match="presence_penalty"):
            clerk.using(backend=backend, presence_penalty=0.5).run()

        @lmprog.function
        def late(s: lmprog.Branch) -> str:
            s.user("hello")
            s.system("Be brief.")
            return s.gen().value

        with pytest.raises(NotSupported, match="at the beginning"):
            late.using(backend=backend).run()
        assert api.requests == []


def test_failures_are_asked_again_or_told(api: AnthropicServer) -> None:
    with on(api) as backend:
        api.faults = [Fault(529, headers={"retry-after": "0"})]
        assert clerk.using(backend=backend).run().value[0] == "hi there"
        api.faults = [Fault(401, "wrong key")]
        with pytest.raises(RequestRejected, match="wrong key"):
            clerk.using(backend=backend).run()
        api.extra["/v1/messages"] = lambda body: {
            "content": [{"type": "text", "text": "I will not."}],
            "stop_reason": "refusal",
        }
        with pytest.raises(ValidationFailed, match="I will not"):
            clerk.using(backend=backend).run()
