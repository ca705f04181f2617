"""The `openai` package against a real server before nano: what its users call, and what they then
read.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from typing import Any, Literal

import jsonschema
import openai
import pydantic
import pytest

from tests.server.conftest import Served

HELLO: list[Any] = [{"role": "user", "content": "Hello, how are you?"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 8},
                "unit": {"enum": ["celsius", "kelvin"]},
                "days": {"$ref": "#/$defs/days"},
            },
            "required": ["city", "unit", "days"],
            "additionalProperties": False,
            "$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 7}},
        },
    },
}
SUM: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}


def test_a_chat_answers_with_text_reason_and_usage(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="nano", messages=HELLO, max_tokens=6, temperature=0
    )
    assert answer.object == "chat.completion"
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 6
    assert answer.system_fingerprint
    assert answer._request_id


def test_the_second_time_the_prompt_is_cached_and_usage_says_so(client: openai.OpenAI) -> None:
    messages: list[Any] = [
        {"role": "user", "content": "The cache of this test knows: " + "one two three " * 20}
    ]
    first, second = (
        client.chat.completions.create(
            model="nano", messages=messages, max_tokens=3, temperature=0, n=2
        )
        for _ in range(2)
    )
    assert [choice.message.content for choice in first.choices] == [
        choice.message.content for choice in second.choices
    ]
    for answer, least, most in ((first, 0, 20), (second, 60, 10_000)):
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        cached = answer.usage.prompt_tokens_details.cached_tokens
        assert cached is not None
        assert least <= cached <= min(most, answer.usage.prompt_tokens)


def test_a_streams_parts_are_the_answer(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model="nano", messages=HELLO, max_tokens=20, temperature=0
    )
    chunks = list(
        client.chat.completions.create(
            model="nano",
            messages=HELLO,
            max_tokens=20,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert len({chunk.id for chunk in chunks}) == len({chunk.created for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
        == whole.choices[0].message.content
    )
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == whole.choices[
        0
    ].finish_reason
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens  # type: ignore[union-attr]
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_async_streams_of_many_choices_run_side_by_side(server: Served) -> None:
    async def one(client: openai.AsyncOpenAI, seed: int) -> tuple[str, str]:
        texts = ["", ""]
        stream = await client.chat.completions.create(
            model="nano", messages=HELLO, max_tokens=8, n=2, seed=seed, temperature=2, stream=True
        )
        async for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        return texts[0], texts[1]

    async def all_of_them() -> list[tuple[str, str]]:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", timeout=120.0
        ) as client:
            return await asyncio.gather(*(one(client, seed % 4) for seed in range(8)))

    texts = asyncio.run(all_of_them())
    assert texts[:4] == texts[4:], "a seed repeats itself"
    assert len({text for pair in texts for text in pair}) > 2


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=8)
    age: int = pydantic.Field(ge=0, le=120)
    mood: Literal["good", "bad"]


def test_a_pydantic_model_is_parsed_from_the_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="nano",
        messages=[{"role": "user", "content": "Write a person."}],
        response_format=Person,
        max_tokens=120,
    )
    person = answer.choices[0].message.parsed
    assert isinstance(person, Person)
    with client.chat.completions.stream(
        model="nano",
        messages=[{"role": "user", "content": "Write a person."}],
        response_format=Person,
        max_tokens=120,
    ) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Person)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
def test_required_tools_are_called_with_arguments_that_validate(
    client: openai.OpenAI, choice: Any, streams: bool
) -> None:
    asked: dict[str, Any] = {
        "model": "nano",
        "messages": [{"role": "user", "content": "What is the weather in Oslo?"}],
        "tools": [WEATHER, SUM],
        "tool_choice": choice,
        "max_tokens": 700,
        "seed": 3,
    }
    if streams:
        with client.chat.completions.stream(**asked) as stream:
            answer: Any = stream.get_final_completion()
    else:
        answer = client.chat.completions.create(**asked)
    (got,) = answer.choices
    assert got.finish_reason == "tool_calls"
    assert got.message.tool_calls
    assert len({call.id for call in got.message.tool_calls}) == len(got.message.tool_calls)
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in (WEATHER, SUM)}
    for call in got.message.tool_calls:
        jsonschema.validate(json.loads(call.function.arguments), schemas[call.function.name])
    if isinstance(choice, dict):
        assert [call.function.name for call in got.message.tool_calls] == ["get_weather"]


def test_without_parallel_calls_exactly_one_is_made(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="nano",
        messages=HELLO,
        tools=[SUM],  # type: ignore[list-item]
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=100,
    )
    assert answer.choices[0].message.tool_calls is not None
    assert len(answer.choices[0].message.tool_calls) == 1


def test_a_conversation_goes_on_after_a_tools_answer(client: openai.OpenAI) -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "add", "arguments": '{"a": 4}'},
    }
    messages: list[Any] = [
        {"role": "developer", "content": "Be short."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Add 4"}, {"type": "text", "text": " please."}],
        },
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "8"},
    ]
    answer = client.chat.completions.create(
        model="nano", messages=messages, tools=[SUM], max_tokens=5
    )  # type: ignore[list-item]
    assert answer.choices[0].finish_reason in ("stop", "length")


def test_stop_texts_end_an_answer_and_are_not_in_it(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "nano", "messages": HELLO, "max_tokens": 20, "temperature": 0}
    text = client.chat.completions.create(**asked).choices[0].message.content
    assert text
    cut = text[len(text) // 2 :][:3]
    answer = client.chat.completions.create(**asked, stop=[cut, "never seen"])
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == text[: text.index(cut)]
    assert answer.choices[0].stop_reason == cut  # type: ignore[attr-defined]


@pytest.mark.parametrize("streams", [False, True])
def test_logprobs_stand_beside_their_tokens(client: openai.OpenAI, streams: bool) -> None:
    asked: dict[str, Any] = {
        "model": "nano",
        "messages": HELLO,
        "max_tokens": 4,
        "logprobs": True,
        "top_logprobs": 3,
    }
    text, logprobs = "", []
    if streams:
        for chunk in client.chat.completions.create(**asked, stream=True):
            text += chunk.choices[0].delta.content or ""
            logprobs += (chunk.choices[0].logprobs and chunk.choices[0].logprobs.content) or []
            assert text.startswith("".join(one.token for one in logprobs))
    else:
        choice = client.chat.completions.create(**asked).choices[0]
        assert choice.logprobs is not None
        text, logprobs = choice.message.content or "", choice.logprobs.content or []
    assert "".join(one.token for one in logprobs) == text
    for one in logprobs:
        assert one.logprob <= 0
        assert len(one.top_logprobs) == 3
        assert [top.logprob for top in one.top_logprobs] == sorted(
            (t.logprob for t in one.top_logprobs), reverse=True
        )


@pytest.mark.parametrize(
    "extra",
    [
        {"regex": "(red|blue) [0-9]{2}"},
        {"guided_regex": "(red|blue) [0-9]{2}"},
        {"structured_outputs": {"regex": "(red|blue) [0-9]{2}"}},
        {"structured_outputs": {"choice": ["red 11", "blue 22"]}},
        {"ebnf": 'root ::= ("red" | "blue") " " [0-9] [0-9]'},
    ],
)
def test_a_text_is_confined_in_every_dialect(client: openai.OpenAI, extra: dict[str, Any]) -> None:
    if "ebnf" in extra:
        pytest.importorskip("llguidance")
    raw = client.chat.completions.with_raw_response.create(
        model="nano", messages=HELLO, max_tokens=20, extra_body=extra
    )
    content = raw.parse().choices[0].message.content
    assert content is not None
    color, _, number = content.partition(" ")
    assert color in ("red", "blue")
    assert len(number) == 2
    assert number.isdecimal()
    assert ("old spelling" in raw.headers.get("warning", "")) == ("guided_regex" in extra)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    ],
)
def test_a_json_schema_is_enforced(client: openai.OpenAI, schema: dict[str, Any]) -> None:
    for form in (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "it", "schema": schema},
            }
        },
        {"json_schema": schema},
        {"structured_outputs": {"json": schema}},
    ):
        answer = client.chat.completions.create(
            model="nano", messages=HELLO, max_tokens=60, extra_body=form
        )
        jsonschema.validate(json.loads(answer.choices[0].message.content or ""), schema)


def test_models_are_listed_and_unknown_ones_not_found(client: openai.OpenAI) -> None:
    (model,) = client.models.list()
    assert model.id == "nano"
    assert client.models.retrieve("nano").id == "nano"
    for call in (
        lambda: client.models.retrieve("gpt-9"),
        lambda: client.chat.completions.create(model="gpt-9", messages=HELLO),
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            call()
        assert caught.value.code == "model_not_found"
        assert "this server serves 'nano'" in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "param", "words"),
    [
        ({"max_tokens": 5000}, "messages", "set max_tokens <= "),
        ({"temperature": 3}, "temperature", "temperature is 3; it must be from 0 to 2."),
        (
            {"messages": [{"role": "wizard", "content": "x"}]},
            "messages[0].role",
            "the roles are system",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
                ]
            },
            "messages[0].content[0].type",
            "reads text only",
        ),
        ({"extra_body": {"regex": "(a"}}, "regex", "at position 0 of the pattern"),
        ({"logit_bias": {"99999": 1}}, "logit_bias", "names token 99999"),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"extra_body": {"cache_salt": "mine"}}, "cache_salt", "--allow-cache-salt"),
    ],
)
def test_a_wrong_request_names_its_field_and_what_to_do(
    client: openai.OpenAI, asked: dict[str, Any], param: str, words: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": "nano", "messages": HELLO, **asked})
    assert caught.value.param == param
    assert words in str(caught.value)
    assert caught.value.type == "invalid_request_error"


def test_unknown_fields_are_named_in_a_warning(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="nano", messages=HELLO, max_tokens=1, user="somebody", extra_body={"colour": "red"}
    )
    assert raw.headers["warning"] == "299 lmprog \"unknown field 'colour' is ignored\""


def test_a_conversation_by_curl(server: Served) -> None:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl here")
    body = json.dumps({"messages": HELLO, "max_tokens": 3, "stream": True})
    command = [
        "curl",
        "-sN",
        f"{server.url}/v1/chat/completions",
        "--json",
        body,
        "-H",
        "x-request-id: by-curl",
    ]
    said = subprocess.run(
        [*command, "-i"], capture_output=True, text=True, timeout=120, check=True
    ).stdout
    head, _, events = said.partition("\r\n\r\n" if "\r\n\r\n" in said else "\n\n")
    assert "x-request-id: by-curl" in head
    lines = [line for line in events.splitlines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
