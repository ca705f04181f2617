"""The search for costs finds what is planted, and nothing in the gateway holds up its loop."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import httpx2

from benchmarks.cost_search import TRIED_AGAIN, Attack, Fields, Harm, Search, searched
from tests.server.fake_runtime import Fake, asking

DOCUMENT: dict[str, Any] = {
    "paths": {
        f"/{name}": {"post": {"requestBody": {"content": {"application/json": {"schema": {
            "type": "object",
            "required": ["prompt"],
            "properties": {
                "prompt": {"type": "string"},
                "n": {"type": "integer", "minimum": 1, "maximum": 128},
                "stop": {"type": "array", "items": {"type": "string"}, "maxItems": 16},
                "other": {"type": "boolean"},
            },
        }}}}}}
        for name in ("one", "two")
    }
}  # fmt: skip


class Planted:
    """Two routes, of which one is slow for many results with many stops: their product."""

    async def document(self) -> dict[str, Any]:
        return DOCUMENT

    async def harm(self, attack: Attack) -> Harm:
        product = attack.body.get("n", 1) * len(attack.body.get("stop", ()))
        return Harm(1e-3 * product if attack.path == "/two" else 1e-3, 200)


def test_the_search_finds_a_product_of_fields_that_each_are_cheap() -> None:
    search = Search(DOCUMENT, seed=1, most_bytes=10_000)
    asyncio.run(searched(Planted(), search, lambda: search.tried < 600))
    _, worst, harm = search.worst[0]
    assert worst.path == "/two"
    assert harm.seconds > 1.0
    assert any(field.startswith("/two stop") for field in search.reached)


class OnceSlow(Planted):
    """As on a machine that was busy with something else."""

    def __init__(self) -> None:
        self.calls = 0

    async def harm(self, attack: Attack) -> Harm:
        self.calls += 1
        return Harm(3.0 if self.calls == 5 else 1e-3, 200)


def test_what_is_beyond_a_bar_is_tried_again_and_the_least_counts() -> None:
    target, search = OnceSlow(), Search(DOCUMENT, seed=1, most_bytes=10_000)
    asyncio.run(searched(target, search, lambda: search.tried < 9))
    assert target.calls == 9 + TRIED_AGAIN
    assert (max(search.seconds), max(search.least)) == (3.0, 1e-3)


def test_the_same_seed_tries_the_same_bodies() -> None:
    def tried() -> list[Attack]:
        search = Search(DOCUMENT, seed=7, most_bytes=10_000)
        asyncio.run(searched(Planted(), search, lambda: search.tried < 50))
        return [attack for _, attack, _ in search.worst]

    assert tried() == tried()


def test_bodies_keep_to_their_size_and_to_the_fields_of_their_route() -> None:
    fields = Fields(DOCUMENT, random.Random(3), 4_000)
    attack = fields.new()
    for _ in range(300):
        attack = fields.changed(attack, fields.new())
        assert set(attack.body) <= {"prompt", "n", "stop", "other"}
        assert len(attack.raw) <= 4_000


MOST_TURN = 0.25
"""Processor seconds of the event loop's thread between two looks at it."""
MOST_LOOKS = 40


class LoopTarget:
    """The gateway before a fake runtime: harm is the longest turn of its event loop."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def document(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self._client.get("/openapi.json")).json()
        return found

    async def harm(self, attack: Attack) -> Harm:
        sent = asyncio.ensure_future(self._send(attack))
        longest, last = 0.0, time.thread_time()
        for _ in range(MOST_LOOKS):
            if sent.done():
                break
            await asyncio.sleep(0.002)
            now = time.thread_time()
            longest, last = max(longest, now - last), now
        sent.cancel()
        status = (await asyncio.gather(sent, return_exceptions=True))[0]
        return Harm(longest, status if isinstance(status, int) else 0)

    async def _send(self, attack: Attack) -> int:
        answer = await self._client.post(
            attack.path, content=attack.raw, headers={"content-type": "application/json"}
        )
        return answer.status_code


def test_no_request_holds_up_the_gateways_loop(fake: Fake) -> None:
    async def run() -> Search:
        async with asking(fake) as (client, _):
            target = LoopTarget(client)
            search = Search(await target.document(), seed=1, most_bytes=20_000)
            await searched(target, search, lambda: search.tried < 50)
            return search

    search = asyncio.run(run())
    assert len(search.fields.bodies) > 10
    longest = max(harm.seconds for _, _, harm in search.worst)
    assert longest < MOST_TURN, search.worst[0]
