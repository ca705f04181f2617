"""`/v1/messages`, asked by Anthropic's own client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.live import Live

anthropic = pytest.importorskip("anthropic")

GREEDY: dict[str, Any] = {
    "model": "nano",
    "max_tokens": 8,
    "extra_body": {"temperature": 0, "ignore_eos": True},
}
HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]
WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture
def client(live: Live) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=live.url, api_key="none", max_retries=0) as made:
        yield made


def test_a_message_is_answered_with_blocks_and_usage(client: Any, live: Live) -> None:
    made = client.messages.create(messages=HELLO, system="Be brief.", **GREEDY)
    assert (made.type, made.role, made.model, made.stop_reason) == (
        "message",
        "assistant",
        "nano",
        "max_tokens",
    )
    (block,) = made.content
    assert block.type == "text"
    assert made.usage.output_tokens == 8
    again = client.messages.create(
        messages=HELLO, system=[{"type": "text", "text": "Be brief."}], **GREEDY
    )
    assert again.content[0].text == block.text
    assert again.usage.cache_read_input_tokens > 0
    counted = client.messages.count_tokens(
        model="nano", messages=HELLO, system="Be brief."
    ).input_tokens
    assert counted == made.usage.input_tokens + made.usage.cache_read_input_tokens
    chat = live.ok(
        "/v1/chat/completions",
        messages=[{"role": "system", "content": "Be brief."}, *HELLO],
        max_tokens=8,
        temperature=0,
        ignore_eos=True,
    )
    assert chat["choices"][0]["message"]["content"] == block.text


def test_a_stream_has_its_events_in_order(client: Any) -> None:
    whole = client.messages.create(messages=HELLO, **GREEDY)
    kinds = [one.type for one in client.messages.create(messages=HELLO, stream=True, **GREEDY)]
    deltas = kinds.count("content_block_delta")
    assert kinds == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * deltas,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    with client.messages.stream(messages=HELLO, **GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert final.stop_reason == "max_tokens"
    assert final.usage.output_tokens == 8


def test_a_stop_sequence_is_named(client: Any) -> None:
    text = client.messages.create(messages=HELLO, **GREEDY).content[0].text
    stop = text[2:4]
    made = client.messages.create(messages=HELLO, stop_sequences=[stop], **GREEDY)
    assert (made.stop_reason, made.stop_sequence) == ("stop_sequence", stop)
    assert made.content[0].text == text[: text.index(stop)]


def test_a_tool_is_used_and_its_result_taken(client: Any) -> None:
    asked: dict[str, Any] = {"model": "nano", "max_tokens": 100, "tools": [WEATHER]}
    once = {"type": "any", "disable_parallel_tool_use": True}
    made = client.messages.create(messages=HELLO, tool_choice=once, **asked)
    assert made.stop_reason == "tool_use"
    use = made.content[0]
    assert use.type == "tool_use"
    assert use.input["city"] in ("Oslo", "Rome")
    result = {
        "type": "tool_result",
        "tool_use_id": use.id,
        "content": [{"type": "text", "text": "rain"}],
    }
    messages = [
        *HELLO,
        {"role": "assistant", "content": [block.model_dump() for block in made.content]},
        {"role": "user", "content": [result]},
    ]
    after = client.messages.create(messages=messages, tools=[WEATHER], **GREEDY)
    assert after.content
    named = {"type": "tool", "name": "weather"}
    with client.messages.stream(messages=HELLO, tool_choice=named, **asked) as stream:
        final = stream.get_final_message()
    assert final.content[0].input["city"] in ("Oslo", "Rome")
    with pytest.raises(anthropic.BadRequestError, match="Raise max_tokens"):
        client.messages.create(messages=HELLO, tool_choice=named, **{**asked, "max_tokens": 1})


def test_the_assistants_last_words_are_gone_on_from(client: Any) -> None:
    begun = [*HELLO, {"role": "assistant", "content": "Once upon"}]
    assert client.messages.create(messages=begun, **GREEDY).content[0].text


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": HELLO}, "max_tokens"),
        ({"messages": [], "max_tokens": 1}, "messages"),
        ({"messages": HELLO, "max_tokens": 0}, "max_tokens"),
        ({"messages": [{"role": "wizard", "content": "x"}], "max_tokens": 1}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}], "max_tokens": 1},
            "messages[0].content",
        ),
        (
            {
                "messages": HELLO,
                "max_tokens": 1,
                "tools": [WEATHER],
                "tool_choice": {"type": "all"},
            },
            "tool_choice.type",
        ),
    ],
    ids=str,
)
def test_what_is_wrong_is_refused_by_name(live: Live, body: dict[str, Any], param: str) -> None:
    assert live.refused("/v1/messages", **body)["param"] == param
