"""What the gateway holds for its clients is one pool, shared between them, and refused beyond it."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lmprog.errors import Overloaded
from lmprog.server.app import build_app
from lmprog.server.fairness.accounts import HeldBytes, MemoryPool
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.http.http_server import HttpConnection, HttpServer, bind
from lmprog.server.http.plain_requests import PlainRequest
from lmprog.server.link.runtime_link import RuntimeLink
from lmprog.server.options.server_settings import ServerSettings
from lmprog.server.service import serve_gateway
from tests.server.fake_runtime import Asgi, Fake, asking

MIB = 1 << 20


def test_one_account_alone_has_a_share_and_every_other_finds_room() -> None:
    pool = MemoryPool(1000)
    first = HeldBytes(pool, "a")
    first.take(750)
    with pytest.raises(Overloaded, match="may hold 1,000, 750 of them for one client; this needs"):
        first.take(1)
    other = HeldBytes(pool, "b")
    other.take(187)
    with pytest.raises(Overloaded):
        other.take(1)
    assert (pool.held, dict(pool)) == (937, {"a": 750, "b": 187})
    first.leave()
    first.leave()
    assert (pool.held, dict(pool)) == (187, {"b": 187})


def test_what_is_handed_over_is_held_until_its_new_owner_leaves_it() -> None:
    pool = MemoryPool(1000)
    held = HeldBytes(pool, "a")
    held.take(100)
    later = held.hand_over()
    held.leave()
    assert pool.held == 100
    later.leave()
    assert (pool.held, dict(pool)) == (0, {})


def test_what_can_be_freed_for_an_account_is_freed_before_it_is_refused() -> None:
    pool = MemoryPool(1000)
    stored = [HeldBytes(pool, "a") for _ in range(5)]
    for one in stored:
        one.take(100)

    def reclaim(account: str, count: int) -> None:
        while account == "a" and stored and not pool.has_room(account, count):
            stored.pop(0).leave()

    pool.reclaims.append(reclaim)
    HeldBytes(pool, "a").take(400)
    assert len(stored) == 3


class Half(Asgi):
    """A request of which only the first part of the body comes."""

    def __init__(self, app: Any, size: int, client: str, path: str = "/v1/completions") -> None:
        super().__init__(app, "POST", path, client=client)
        part = {"type": "http.request", "body": b"x" * size, "more_body": True}
        self._messages: list[Any] = [part]


def test_bodies_that_one_address_holds_open_leave_room_for_others(fake: Fake) -> None:
    async def run() -> None:
        async with asking(fake, memory_mb=1) as (client, gateway):
            app = build_app(gateway)
            open_ = [Half(app, 100_000, "10.0.0.1") for _ in range(20)]
            statuses = [await one.started() for one in open_[7:]]
            assert set(statuses) == {429}
            assert gateway.memory.held == 700_000
            body = {"prompt": "x" * 50_000, "max_tokens": 1}
            assert (await client.post("/v1/completions", json=body)).status_code == 400  # too long
            assert (await client.post("/v1/completions", json={"prompt": 1})).status_code == 400
            for one in open_:
                await one.leave()
            assert gateway.memory.held == 0

    asyncio.run(run())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat"])
def test_a_body_that_never_fits_is_a_413_with_the_number(fake: Fake, path: str) -> None:
    async def run() -> None:
        async with asking(fake, memory_mb=1) as (_, gateway):
            one = Half(build_app(gateway), 900_000, "10.0.0.1", path)
            assert await one.started() == 413
            assert "786,432" in b"".join(one.parts).decode()
            assert one.headers["connection"] == "close"
            said = json.loads(b"".join(one.parts))
            assert (said.get("type") == "error") == (path == "/v1/messages")

    asyncio.run(run())


def test_values_of_a_large_body_are_counted_beside_its_text(fake: Fake) -> None:
    """Half a megabyte of numbers takes many times that when it is parsed."""

    async def run() -> None:
        async with asking(fake, memory_mb=4) as (client, gateway):
            answer = await client.post("/tokenize", json={"prompt": [7] * 200_000})
            assert answer.status_code == 413, answer.text[:200]
            assert gateway.memory.held == 0

    asyncio.run(run())


def test_stored_responses_are_forgotten_where_their_client_needs_the_memory(fake: Fake) -> None:
    async def run() -> None:
        async with asking(fake, memory_mb=1) as (client, gateway):
            body = {"input": "x", "max_output_tokens": 1, "metadata": {"a": "b" * 400}}
            body["tools"] = [_tool(at) for at in range(50)]
            body["tool_choice"] = "none"
            made = [(await client.post("/v1/responses", json=body)).json() for _ in range(8)]
            names = [one["id"] for one in made]
            stored = gateway.memory.held
            assert stored > 8 * 4000
            assert kinds_of(gateway) == {"stored": stored}
            half_size = 760_000
            half = Half(build_app(gateway), half_size, "127.0.0.1")
            async with asyncio.timeout(60):
                while gateway.memory.held < 760_000:
                    assert not half.status, "refused"
                    await asyncio.sleep(0)
            assert kinds_of(gateway)["requests"] == half_size
            found = [(await client.get(f"/v1/responses/{name}")).status_code for name in names]
            assert found == sorted(found, reverse=True), "those used longest ago go first"
            assert (found[0], found[-1]) == (404, 200)
            await half.leave()

    asyncio.run(run())


def kinds_of(gateway: Gateway) -> dict[str, float]:
    """Of the one account for which something is held; kinds of which there is something."""
    (kinds,) = gateway.memory.by_kind().values()
    assert sum(kinds.values()) == gateway.memory.held
    return {kind: count for kind, count in kinds.items() if count}


def _tool(at: int) -> dict[str, Any]:
    return {"type": "function", "name": f"tool{at}", "parameters": {"type": "object"}}


def on_a_socket(fake: Fake, do: Callable[[Gateway, Any], Awaitable[None]]) -> None:
    async def run() -> None:
        settings = ServerSettings(port=0)
        gateway = Gateway(settings, RuntimeLink())
        gateway.link.replace(fake.connect("test"))
        bound = bind(settings)
        ready: asyncio.Future[HttpServer] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(serve_gateway(gateway, bound, ready.set_result))
        server = await ready
        try:
            await do(gateway, bound.getsockname()[:2])
        finally:
            server.stop_now()
            await serving
            gateway.link.close()

    asyncio.run(run())


@pytest.mark.parametrize("reads", [True, False], ids=["read", "left"])
def test_a_large_answer_is_held_until_its_client_has_read_it_or_left(
    fake: Fake, reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 48 * MIB

    async def do(gateway: Gateway, where: Any) -> None:
        monkeypatch.setattr(gateway.meters, "text", lambda *_: (b"x" * size, "text/plain"))
        reader, writer = await asyncio.open_connection(*where)
        writer.write(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n")
        async with asyncio.timeout(60):
            while gateway.memory.held < size:
                await asyncio.sleep(0.01)
            while gateway.open_requests:
                await asyncio.sleep(0.01)
            assert gateway.memory.held >= size, "written, and not read"
            assert kinds_of(gateway) == {"answers": gateway.memory.held}
            if reads:
                await reader.readexactly(size)
            writer.close()
            while gateway.memory.held:
                await asyncio.sleep(0.01)

    on_a_socket(fake, do)


def requests_alive() -> int:
    return sum(isinstance(one, HttpConnection | PlainRequest) for one in gc.get_objects())


@pytest.mark.parametrize("kind", ["plain", "of h11", "refused", "left"])
def test_what_a_connection_held_is_free_when_it_ends(fake: Fake, kind: str) -> None:
    """Not when Python looks for circles, which it does by the number of objects: a body of
    megabytes is one.
    """
    asked: dict[str, Any] = {"prompt": "x", "max_tokens": 3, "ignore_eos": True}
    asked |= {"refused": {"stop": 1}, "left": {"max_tokens": 1500}}.get(kind, {})
    body = json.dumps(asked).encode()
    lines = [
        b"POST /v1/completions HTTP/1.1",
        b"host: localhost",
        b"content-type: application/json",
    ]
    lines += [b"connection: close"] if kind == "of h11" else []
    sent = b"\r\n".join([*lines, b"content-length: %d" % len(body), b"", body])

    async def ask(gateway: Gateway, where: Any) -> None:
        reader, writer = await asyncio.open_connection(*where)
        writer.write(sent)
        if kind == "left":
            while not gateway.open_requests:
                await asyncio.sleep(0.001)
        else:
            status = b"400" if kind == "refused" else b"200"
            assert status in await reader.readuntil(b"\r\n")
            while gateway.open_requests:
                await asyncio.sleep(0.001)
        writer.close()
        await writer.wait_closed()

    async def do(gateway: Gateway, where: Any) -> None:
        await ask(gateway, where)
        gc.collect()
        gc.disable()
        try:
            before = requests_alive()
            async with asyncio.timeout(60):
                for _ in range(5):
                    await ask(gateway, where)
                while requests_alive() > before:
                    await asyncio.sleep(0.01)
        finally:
            gc.enable()

    on_a_socket(fake, do)
