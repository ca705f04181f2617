"""Requests name adapters as their model: each dialect, the list of models, and unknown names.

The fake model behind the server hashes tokens in another way for each adapter.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.server.fake_runtime import Fake, asking

GREEDY: dict[str, Any] = {"max_tokens": 8, "temperature": 0}
ADAPTERS = {"tales": "aa", "letters": "bb"}
CHAT = {"messages": [{"role": "user", "content": "Hello"}]}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "completions": ("/v1/completions", {"prompt": "Hello", **GREEDY}),
    "chat": ("/v1/chat/completions", {**CHAT, **GREEDY}),
    "responses": (
        "/v1/responses",
        {"input": "Hello", "max_output_tokens": 8, "temperature": 0, "store": False},
    ),
    "messages": ("/v1/messages", {**CHAT, **GREEDY}),
    "generate": (
        "/generate",
        {"text": "Hello", "sampling_params": {"max_new_tokens": 8, "temperature": 0}},
    ),
    "programs": (
        "/v1/programs",
        {
            "ops": [
                {"op": "open", "branch": "s"},
                {"op": "append", "branch": "s", "pieces": "Hello"},
                {"op": "gen", "branch": "s", "call": "x", **GREEDY},
            ]
        },
    ),
}


def text_of(kind: str, answer: dict[str, Any]) -> str:
    match kind:
        case "completions":
            return str(answer["choices"][0]["text"])
        case "chat":
            return str(answer["choices"][0]["message"]["content"])
        case "responses":
            return str(answer["output"][0]["content"][0]["text"])
        case "messages":
            return str(answer["content"][0]["text"])
        case "generate":
            return str(answer["text"])
    return str(answer["results"]["x"]["text"])


@pytest.mark.parametrize("kind", BODIES)
def test_a_request_is_computed_by_the_adapter_that_it_names(kind: str) -> None:
    async def run() -> None:
        path, body = BODIES[kind]
        with Fake(adapters=ADAPTERS) as runtime:
            async with asking(runtime) as (client, _):

                async def text(**named: str) -> str:
                    response = await client.post(path, json={**body, **named})
                    assert response.status_code == 200, response.text
                    answer = response.json()
                    assert answer.get("model", named.get("model", "fake")) == named.get(
                        "model", "fake"
                    )
                    return text_of(kind, answer)

                base = await text()
                tales, letters = await text(model="tales"), await text(model="letters")
                assert len({base, tales, letters}) == 3
                again = [await text(model=name) for name in ("fake", "letters", "tales")]
                assert again == [base, letters, tales]
                assert await text() == base

    asyncio.run(run())


def test_requests_at_once_keep_to_their_own_adapters() -> None:
    path, body = BODIES["completions"]

    async def run() -> None:
        with Fake(adapters=ADAPTERS) as runtime:
            async with asking(runtime) as (client, _):

                async def text(name: str) -> str:
                    answer = (await client.post(path, json={**body, "model": name})).json()
                    return text_of("completions", answer)

                names = ["fake", *ADAPTERS]
                alone = {name: await text(name) for name in names}
                many = names * 8
                assert await asyncio.gather(*map(text, many)) == [alone[name] for name in many]

    asyncio.run(run())


def test_the_list_of_models_has_the_adapters_with_their_parent() -> None:
    async def run() -> None:
        with Fake(adapters=ADAPTERS) as runtime:
            async with asking(runtime, served_model_name="base") as (client, _):
                listed = (await client.get("/v1/models")).json()["data"]
                assert [(one["id"], one["root"], one["parent"]) for one in listed] == [
                    ("base", "fake", None),
                    ("tales", "tales", "base"),
                    ("letters", "letters", "base"),
                ]
                assert (await client.get("/v1/models/tales")).json()["parent"] == "base"

    asyncio.run(run())


@pytest.mark.parametrize("kind", BODIES)
def test_an_unknown_adapter_is_not_found_and_the_nearest_is_named(kind: str) -> None:
    async def run() -> None:
        path, body = BODIES[kind]
        with Fake(adapters=ADAPTERS) as runtime:
            async with asking(runtime) as (client, _):
                response = await client.post(path, json={**body, "model": "tails"})
                assert response.status_code == 404
                assert "did you mean 'tales'?" in response.text
                assert (await client.get("/v1/models/tails")).status_code == 404

    asyncio.run(run())
