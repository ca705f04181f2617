"""Every field of chats and completions with every evil value: all answered 200 or 400, all errors
in OpenAI's form.

The fields come from the structs and the borders from the table of limits, so that none can be
forgotten.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from lmprog.server.http.limits import COUNTED, LIMITS, Limit, markdown
from lmprog.server.openai.chat_completions import ChatBody
from lmprog.server.openai.completions import CompletionBody
from tests.server.fake_runtime import Fake, asking
from tests.server.live import Live

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
COMPLETION: dict[str, Any] = {"prompt": "Hi", "max_tokens": 2}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}

# Places inside of fields: the request that has them, and the way there.
CHAT_PLACES: dict[str, tuple[dict[str, Any], tuple[str | int, ...]]] = {
    "messages[].role": (CHAT, ("messages", 0, "role")),
    "messages[].content": (CHAT, ("messages", 0, "content")),
    "messages[].content[].text": (
        {**CHAT, "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
        ("messages", 0, "content", 0, "text"),
    ),
    "tools[].type": ({**CHAT, "tools": [TOOL]}, ("tools", 0, "type")),
    "tools[].function": ({**CHAT, "tools": [TOOL]}, ("tools", 0, "function")),
    "name": ({**CHAT, "tools": [TOOL]}, ("tools", 0, "function", "name")),
    "description": ({**CHAT, "tools": [TOOL]}, ("tools", 0, "function", "description")),
    "tools[].function.parameters": (
        {**CHAT, "tools": [TOOL]},
        ("tools", 0, "function", "parameters"),
    ),
    "tool_choice.function.name": (
        {**CHAT, "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "add"}}},
        ("tool_choice", "function", "name"),
    ),
    "stop[]": ({**CHAT, "stop": ["x"]}, ("stop", 0)),
    "stop_token_ids[]": ({**CHAT, "stop_token_ids": [1]}, ("stop_token_ids", 0)),
    "logit_bias[]": ({**CHAT, "logit_bias": {"1": 1}}, ("logit_bias", "1")),
    "response_format.type": (
        {**CHAT, "response_format": {"type": "text"}},
        ("response_format", "type"),
    ),
    "response_format.json_schema": (
        {
            **CHAT,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}},
        },
        ("response_format", "json_schema"),
    ),
    "response_format.json_schema.schema": (
        {
            **CHAT,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}},
        },
        ("response_format", "json_schema", "schema"),
    ),
    "stream_options.include_usage": (
        {**CHAT, "stream": True, "stream_options": {"include_usage": True}},
        ("stream_options", "include_usage"),
    ),
    "top_logprobs": ({**CHAT, "logprobs": True}, ("top_logprobs",)),
    "choice[]": (
        {**CHAT, "structured_outputs": {"choice": ["a"]}},
        ("structured_outputs", "choice", 0),
    ),
    "structured_outputs.regex": (
        {**CHAT, "structured_outputs": {"regex": "a"}},
        ("structured_outputs", "regex"),
    ),
    "structured_outputs.json": (
        {**CHAT, "structured_outputs": {"json": {}}},
        ("structured_outputs", "json"),
    ),
}


def evil(limit: Limit | None) -> list[Any]:
    """Sixteen values: both sides of each border, what is no number, what is too much, what is of
    another kind.
    """
    borders: list[Any] = [-1, 0, 1, 1_000_000]
    if limit is not None and limit.unit in COUNTED:
        low, high = int(limit.minimum), min(int(limit.maximum), 20_000)
        borders = ["x" * max(0, low - 1), "x" * low, "x" * high, "x" * (high + 1)]
    elif limit is not None:
        borders = [limit.minimum - 1, limit.minimum, limit.maximum, limit.maximum + 1]
    numbers = [float("nan"), float("inf"), float("-inf"), 2**31, 2**63, 2**64]
    return [*borders, *numbers, "", None, True, [[]], {"a": 0.5}, "\u0000\ud800" + "é" * 100_000]


def changed(base: dict[str, Any], way: tuple[str | int, ...], value: Any) -> str:
    """The request as JSON text, with `value` at the end of `way`."""
    body = copy.deepcopy(base)
    inner: Any = body
    for step in way[:-1]:
        inner = inner[step]
    inner[way[-1]] = value
    return json.dumps(body)


def requests() -> list[tuple[str, str]]:
    """All (path, body)."""
    made = []
    for path, kind, base in (
        ("chat/completions", ChatBody, CHAT),
        ("completions", CompletionBody, COMPLETION),
    ):
        for name in kind.__struct_fields__:
            made += [(path, changed(base, (name,), value)) for value in evil(LIMITS.get(name))]
    for name, (base, way) in CHAT_PLACES.items():
        made += [
            ("chat/completions", changed(base, way, value)) for value in evil(LIMITS.get(name))
        ]
    return made


def test_every_evil_value_is_answered_200_or_400_in_openais_form(fake: Fake) -> None:
    everything = requests()
    assert len(everything) >= 1500
    found: dict[int, int] = {}
    wrong: list[str] = []

    async def run() -> None:
        room = asyncio.Semaphore(16)
        async with asking(fake, served_model_name="x" * 256) as (client, gateway):

            async def one(path: str, body: str) -> None:
                async with room:
                    reply = await client.post(
                        f"/v1/{path}", content=body, headers={"content-type": "application/json"}
                    )
                found[reply.status_code] = found.get(reply.status_code, 0) + 1
                if complaint(reply.status_code, reply.text):
                    wrong.append(f"{path} {body[:150]} -> {reply.status_code} {reply.text[:200]}")

            await asyncio.gather(*(one(path, body) for path, body in everything))
            assert gateway.open_results == 0
            figures = await gateway.link.figures()
            assert figures["open_branches"] == 0
            assert figures["running"] == figures["waiting"] == 0

    asyncio.run(run())
    assert wrong[:20] == []
    assert set(found) == {200, 400}
    print(found)


def complaint(status: int, text: str) -> bool:
    """Whether an answer is not what it has to be."""
    if status == 200:
        return '"error"' in text if text.startswith("data: ") else "choices" not in json.loads(text)
    if status != 400:
        return True
    error = json.loads(text)["error"]
    return (
        set(error) != {"message", "type", "param", "code"}
        or error["type"] != "invalid_request_error"
    )


@pytest.mark.parametrize(
    "name", ["temperature", "n", "top_p", "presence_penalty", "top_logprobs", "priority", "seed"]
)
def test_both_ends_of_a_range_are_taken_and_what_lies_beyond_is_named_with_its_limits(
    fake: Fake, name: str
) -> None:
    limit = LIMITS[name]

    async def run() -> None:
        async with asking(fake) as (client, _):
            for value, status in (
                (limit.minimum - 1, 400),
                (limit.minimum, 200),
                (limit.maximum, 200),
                (limit.maximum + 1, 400),
            ):
                reply = await client.post(
                    "/v1/chat/completions", json={**CHAT, "logprobs": True, name: value}
                )
                assert reply.status_code == status, reply.text
                if status == 400:
                    error = reply.json()["error"]
                    assert error["param"] == name
                    assert limit.words() in error["message"]

    asyncio.run(run())


def test_the_documentation_has_the_table_of_limits() -> None:
    page = (Path(__file__).parents[2] / "docs" / "server-options.md").read_text()
    found = re.search(r"<!-- limits -->\n(.*?)<!-- /limits -->", page, re.DOTALL)
    assert found is not None
    assert found[1] == markdown()


def test_a_thousand_texts_of_two_hundred_characters_may_be_a_choice(live: Live) -> None:
    dice = random.Random(7)
    texts = ["".join(dice.choices("abcdefgh ij", k=200)) for _ in range(1000)]
    asked = {"prompt": "One: ", "max_tokens": 300, "guided_choice": texts}
    assert live.ok("/v1/completions", **asked)["choices"][0]["text"] in texts
