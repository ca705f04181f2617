"""A server that keeps its runtime: a real process, scripted, behind a real socket, in one event
loop.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from lmprog.errors import RuntimeGone
from lmprog.launch import RuntimeProcess
from lmprog.server.http.http_server import bind, url_of
from lmprog.server.options.server_settings import ServerSettings
from lmprog.server.service import ServerService, one_runtime

SCRIPTED = "tests.server.scripted_runtime"
PATIENCE = 120.0


class Kept:
    """A running service, and a client of it."""

    def __init__(self, service: ServerService, client: httpx2.AsyncClient) -> None:
        self.service = service
        self.client = client

    async def complete(self, prompt: str) -> httpx2.Response:
        return await self.client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1})

    async def until(self, look: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not await look():
                await asyncio.sleep(0.05)

    async def is_ready(self) -> bool:
        return (await self.client.get("/ready")).status_code == 200

    async def metric(self, name: str) -> float:
        lines = (await self.client.get("/metrics")).text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def listening(settings: ServerSettings) -> tuple[socket.socket, str]:
    bound = bind(settings)
    return bound, url_of(bound)


@asynccontextmanager
async def kept(**settings: Any) -> AsyncIterator[Kept]:
    """A service before the scripted runtime, ready; it must end well with the block."""
    chosen = ServerSettings(port=0, **settings)
    bound, url = listening(chosen)
    service = ServerService(chosen, one_runtime(lambda: RuntimeProcess("any", module=SCRIPTED)))
    serving = asyncio.create_task(service.run(bound, lambda runtime: None))
    try:
        async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False) as client:
            made = Kept(service, client)
            await made.until(made.is_ready)
            yield made
            service.ask_to_stop()
            assert await asyncio.wait_for(serving, PATIENCE), "it did not end well"
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@pytest.mark.parametrize(
    ("prompt", "why", "where"),
    [
        ("hang", "computes nothing", "sleeps_for_ever"),
        ("spin", "longer than a step may take", "computes_for_ever"),
        ("stand", "nobody was admitted", "in step"),
        ("die", "its process ended", ""),
    ],
)
def test_however_a_runtime_fails_its_request_is_told_and_the_next_is_served(
    caplog: pytest.LogCaptureFixture, prompt: str, why: str, where: str
) -> None:
    caplog.set_level(logging.ERROR, "lmprog.server")

    async def run() -> None:
        # one that computes may be given nothing for a second on a busy machine, and look frozen
        stall = 3.0 if prompt == "spin" else 1.0
        async with kept(stall=stall, longest_step=3.0) as server:
            response = await server.complete(prompt)
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "runtime_restarted"
            assert "retry-after" in response.headers
            assert (await server.client.get("/health")).status_code == 200
            await server.until(server.is_ready)
            after = await server.complete("hello")
            assert after.json()["choices"][0]["text"] == "word"
            assert await server.metric("lmprog_engine_restarts_total") == 1
            assert await server.metric("lmprog_up") == 1

    asyncio.run(run())
    assert why in caplog.text
    assert where in caplog.text
    assert "its last figures" in caplog.text


def test_new_requests_that_may_not_wait_are_told_when_to_come_again() -> None:
    async def run() -> None:
        async with kept(start_wait=0) as server:
            for _ in range(2):  # the second life is short: the third begins after a rest
                await server.complete("die")
                await server.until(server.is_ready)
            await server.complete("die")
            response = await server.complete("hello")
            assert response.status_code == 503
            assert response.json()["error"]["code"] in ("runtime_gone", "runtime_restarted")
            assert int(response.headers["retry-after"]) >= 1
            ready = await server.client.get("/ready")
            assert ready.status_code == 503
            assert "again" in ready.json()["error"]["message"]
            await server.until(server.is_ready)
            assert await server.metric("lmprog_engine_restarts_total") == 3

    asyncio.run(run())


@asynccontextmanager
async def starting(**settings: Any) -> AsyncIterator[tuple[Kept, threading.Event]]:
    """A service whose runtime starts once the event is set."""
    go = threading.Event()

    def launch() -> RuntimeProcess:
        go.wait(PATIENCE)
        return RuntimeProcess("any", module=SCRIPTED)

    chosen = ServerSettings(port=0, **settings)
    bound, url = listening(chosen)
    service = ServerService(chosen, one_runtime(launch))
    serving = asyncio.create_task(service.run(bound, lambda runtime: None))
    try:
        async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False) as client:
            yield Kept(service, client), go
            go.set()
            service.ask_to_stop()
            await asyncio.wait_for(serving, PATIENCE)
    finally:
        go.set()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def test_requests_that_come_while_the_runtime_starts_wait_for_it() -> None:
    async def run() -> None:
        async with starting() as (server, go):
            early = [asyncio.create_task(server.complete("hello")) for _ in range(3)]
            models = asyncio.create_task(server.client.get("/v1/models"))
            for path, status in (("/health", 200), ("/ready", 503), ("/version", 200)):
                assert (await server.client.get(path)).status_code == status
            assert (await server.client.get("/metrics")).status_code == 200
            assert not any(request.done() for request in (*early, models))
            go.set()
            assert [(await request).status_code for request in early] == [200] * 3
            assert (await models).status_code == 200

    asyncio.run(run())


def test_requests_do_not_wait_longer_than_they_may() -> None:
    async def run() -> None:
        async with starting(start_wait=0.2) as (server, _):
            late = await server.complete("hello")
            assert late.status_code == 503
            assert late.json()["error"]["code"] == "runtime_gone"
            assert int(late.headers["retry-after"]) >= 1

    asyncio.run(run())


def test_a_server_that_stops_lets_nobody_wait() -> None:
    async def run() -> None:
        async with starting(start_wait=3600.0) as (server, _):
            waiting = asyncio.create_task(server.complete("hello"))
            while not server.service.gateway.open_requests:
                await asyncio.sleep(0.01)
            server.service.ask_to_stop()
            assert (await waiting).status_code == 503

    asyncio.run(run())


def test_a_first_start_that_fails_ends_the_server_with_its_reason() -> None:
    def broken() -> RuntimeProcess:
        raise RuntimeGone("no such thing")

    async def run() -> None:
        settings = ServerSettings(port=0)
        bound, _ = listening(settings)
        with pytest.raises(RuntimeGone, match="no such thing"):
            await asyncio.wait_for(
                ServerService(settings, one_runtime(broken)).run(bound, lambda runtime: None),
                PATIENCE,
            )

    asyncio.run(run())


def test_asked_to_stop_while_it_starts_it_stops() -> None:
    async def run() -> bool:
        settings = ServerSettings(port=0)
        bound, _ = listening(settings)
        service = ServerService(
            settings, one_runtime(lambda: RuntimeProcess("any", module=SCRIPTED))
        )
        service.ask_to_stop()
        return await asyncio.wait_for(service.run(bound, lambda runtime: None), PATIENCE)

    assert asyncio.run(run())
