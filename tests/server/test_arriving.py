"""Bodies that arrive slowly: what is known of their prompts is computed meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from lmprog.runtime.scheduling.plan import Plan
from lmprog.server.app import build_app
from lmprog.server.http import arriving
from lmprog.server.http.arriving import closed_json
from lmprog.wire import UNSAID
from tests.server.fake_runtime import Asgi, Fake, asking

RESULT = " ".join(f"line {number} of what the tool found" for number in range(40))
SAID = [{"role": "user", "content": "look it up"}]
CHAT = {"max_tokens": 4, "temperature": 0, "messages": [*SAID, {"role": "user", "content": RESULT}]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/messages": CHAT,
    "/v1/completions": {"max_tokens": 4, "temperature": 0, "prompt": RESULT},
    "/v1/responses": {"max_output_tokens": 16, "temperature": 0, "store": False, "input": RESULT},
    "/generate": {"sampling_params": {"max_new_tokens": 4, "temperature": 0}, "text": RESULT},
    "/completion": {"n_predict": 4, "temperature": 0, "prompt": RESULT},
}
JSON = {"content-type": "application/json"}


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(2000):
        if is_so():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never was")


async def slowly(
    body: bytes, cut: int, meanwhile: Callable[[], Awaitable[None]]
) -> AsyncIterator[bytes]:
    yield body[:cut]
    await meanwhile()
    yield body[cut:]


def texts_of(value: Any, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], str]:
    """All values that are texts, by where they are."""
    if isinstance(value, str):
        return {path: value}
    found: dict[tuple[Any, ...], str] = {}
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, one in inner:
            found |= texts_of(one, (*path, key))
    return found


@pytest.mark.parametrize("is_ascii", [False, True])
def test_a_body_cut_anywhere_in_a_text_is_closed_as_json_that_says_no_more(is_ascii: bool) -> None:
    body = {
        "model": "m",
        "messages": [{"role": 'a"b\\ \n é 😀 \\\\', "content": ["x", {"text": "ä😀 \\"}]}],
        "n": [1, 2.5, None, True, {}, []],
        "last": "}]",
    }
    whole, number = json.dumps(body, ensure_ascii=is_ascii).encode(), 0
    known = texts_of(body)
    for cut in range(len(whole) + 1):
        closed = closed_json(whole[:cut])
        if closed is None:
            continue
        number += 1
        found = texts_of(json.loads(closed.decode()))
        ends = [path for path, text in found.items() if text.endswith(UNSAID)]
        assert len(ends) == 1, "what it ends in, and nothing else"
        for path, text in found.items():
            assert known[path].startswith(text.removesuffix(UNSAID))
    values = sum(
        len(json.dumps(text, ensure_ascii=is_ascii).encode()) - 1 for text in known.values()
    )
    assert number == values, "each cut in a value that is a text, and no other"


@pytest.mark.parametrize("path", BODIES)
def test_a_prompt_is_computed_while_it_arrives_and_the_answer_is_the_same(
    fake: Fake, path: str
) -> None:
    body = json.dumps(BODIES[path]).encode()
    stats = fake.scheduler.stats

    async def ask() -> None:
        async with asking(fake) as (client, _):
            at_first = stats.computed_tokens

            async def computed() -> None:
                await until(lambda: stats.computed_tokens - at_first > 500)

            cut = body.rindex(b"line 20")
            late = await client.post(path, content=slowly(body, cut, computed), headers=JSON)
            assert late.status_code == 200, late.text
            await until(lambda: fake.scheduler.idle)
            assert stats.computed_tokens - at_first < len(RESULT) + 300, "nothing twice"
            fake.scheduler.tree.clear()
            at_once = await client.post(path, content=body, headers=JSON)
            assert said(at_once.json()) == said(late.json())

    asyncio.run(ask())


def said(answer: dict[str, Any]) -> Any:
    for name in ("choices", "content", "output", "text"):
        if name in answer:
            found = answer[name]
            if name == "output":
                return [part["text"] for item in found for part in item.get("content", ())]
            return found
    raise AssertionError(answer)


def test_a_body_that_comes_at_once_is_not_looked_at(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(_: bytes) -> None:
        raise AssertionError("it was looked at")

    monkeypatch.setattr("lmprog.server.http.bodies.closed_json", never)
    body = json.dumps(CHAT).encode()

    async def ask() -> None:
        async with asking(fake) as (client, _):
            parts = slowly(body, 900, lambda: asyncio.sleep(0))
            answer = await client.post("/v1/chat/completions", content=parts, headers=JSON)
            assert answer.status_code == 200

    monkeypatch.setattr(arriving, "LOOKED_AFTER", 60.0)
    asyncio.run(ask())


def test_who_leaves_meanwhile_leaves_nothing_behind(fake: Fake) -> None:
    body = json.dumps(CHAT).encode()
    scheduler = fake.scheduler

    async def ask() -> None:
        async with asking(fake) as (_, gateway):
            one = Asgi(build_app(gateway), "POST", "/v1/chat/completions")
            one._messages = [
                {"type": "http.request", "body": body[: len(body) // 2], "more_body": True}
            ]
            await until(lambda: scheduler.tree.num_pinned > 0)
            await one.leave()
            await until(lambda: scheduler.tree.num_pinned == 0 and scheduler.idle)
            assert not fake.interpreter.is_working

    asyncio.run(ask())


def test_a_text_that_turns_out_different_changes_no_answer(fake: Fake) -> None:
    """Tools are written before the messages, and come behind them in the body."""
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    body = json.dumps({**CHAT, "tools": [tool], "tool_choice": "none"}).encode()
    stats = fake.scheduler.stats

    async def ask() -> None:
        async with asking(fake) as (client, _):

            async def computed() -> None:
                await until(lambda: stats.computed_tokens > 500)

            path, cut = "/v1/chat/completions", body.rindex(b"line 30")
            late = await client.post(path, content=slowly(body, cut, computed), headers=JSON)
            fake.scheduler.tree.clear()
            at_once = await client.post(path, content=body, headers=JSON)
            assert late.status_code == at_once.status_code == 200
            assert late.json()["choices"] == at_once.json()["choices"]
            assert late.json()["usage"]["prompt_tokens"] == at_once.json()["usage"]["prompt_tokens"]

    asyncio.run(ask())


def test_no_step_of_anybody_has_a_row_for_a_prompt_that_arrives(fake: Fake) -> None:
    plans: list[Plan] = []
    fake.scheduler.hooks.planned.append(lambda plan, _: plans.append(plan))
    body = json.dumps(CHAT).encode()

    async def ask() -> None:
        async with asking(fake) as (client, _):

            async def computed() -> None:
                other = {"prompt": "abc", "max_tokens": 200, "ignore_eos": True}
                await client.post("/v1/completions", json=other)
                await until(lambda: fake.scheduler.stats.computed_tokens > 900)

            parts = slowly(body, len(body) - 100, computed)
            await client.post("/v1/chat/completions", content=parts, headers=JSON)

    asyncio.run(ask())
    rows = [[row.sequence.group.goes_on for row in plan.rows] for plan in plans if plan.rows]
    assert any(all(each) for each in rows)
    assert all(all(each) or not any(each) for each in rows)
