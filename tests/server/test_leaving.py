"""A client that leaves ends what it asked for, wherever that is: its branches are gone and its
pages are free.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest

from lmprog import wire
from lmprog.launch import Connection, connect
from lmprog.server.app import build_app
from lmprog.server.gateway.gateway import Gateway
from tests.server.conftest import Served
from tests.server.fake_runtime import Asgi, Fake, asking

PROMISED = 1.0
"""Seconds within which nothing is left. The tests wait longer, and say so only where it was ten
times as long: they run on machines that do other things too."""
LONG: dict[str, Any] = {
    "prompt": "Count on: " + "one two three " * 20,
    "max_tokens": 1500,
    "ignore_eos": True,
}
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Go on."}],
    "max_tokens": 1500,
    "ignore_eos": True,
}


async def until(holds: Callable[[dict[str, float]], bool], gateway: Gateway) -> float:
    """Seconds until the runtime's figures are so."""
    began = time.monotonic()
    while not holds(await gateway.link.figures()):
        assert time.monotonic() - began < 10 * PROMISED
        await asyncio.sleep(0.01)
    return time.monotonic() - began


def is_clean(figures: dict[str, float]) -> bool:
    """Nobody runs, waits or holds; all pages are free or evictable."""
    busy = figures["running"], figures["waiting"], figures["suspended"], figures["open_branches"]
    idle = not any(busy)
    return idle and figures["pages_free"] + figures["pages_evictable"] == figures["pages"]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("path", ["completions", "chat/completions"])
@pytest.mark.parametrize("moment", ["at once", "queued", "running", "many results"])
def test_leaving_frees_everything(path: str, streams: bool, moment: str) -> None:
    body = {**(LONG if path == "completions" else CHAT), "stream": streams}
    if moment == "many results":
        body["n"] = 8
    taken: list[float] = []

    async def run(fake: Fake) -> None:
        async with asking(fake, first_reply_wait=60.0) as (_, gateway):
            app = build_app(gateway)
            others = [
                Asgi(app, "POST", f"/v1/{path}", body=body)
                for _ in range(2 if moment == "queued" else 0)
            ]
            if others:
                await until(lambda figures: figures["running"] == 2, gateway)
            ask = Asgi(app, "POST", f"/v1/{path}", body=body)
            if moment == "queued":
                await until(lambda figures: figures["waiting"] == 1, gateway)
            elif moment != "at once":
                await until(
                    lambda figures: figures["running"] >= 1 and figures["generated_tokens"] > 10,
                    gateway,
                )
            for one in [ask, *others]:
                await one.leave()
            taken.append(await until(is_clean, gateway))
            assert gateway.open_results == gateway.open_requests == 0

    with Fake(pace=0.002, max_rows=2 if moment == "queued" else 256) as fake:
        asyncio.run(run(fake))
    print(f"clean after {taken[0]:.3f} s")


def test_leaving_while_the_body_comes_asks_nothing_of_the_runtime(fake: Fake) -> None:
    async def run() -> None:
        async with asking(fake) as (_, gateway):
            before = await gateway.link.figures()
            ask = Asgi(build_app(gateway), "POST", "/v1/completions")
            ask._messages = [{"type": "http.request", "body": b'{"prompt"', "more_body": True}]
            await asyncio.sleep(0.01)
            await ask.leave()
            assert (await gateway.link.figures())["calls"] == before["calls"]
            assert gateway.open_requests == 0

    asyncio.run(run())


def test_what_has_ended_is_not_ended_again(fake: Fake) -> None:
    """No call fails after its normal end: closing comes after the last reply and cancels
    nothing.
    """

    async def run() -> None:
        async with asking(fake) as (client, gateway):
            for streams in (False, True):
                reply = await client.post(
                    "/v1/completions", json={"prompt": "x", "max_tokens": 3, "stream": streams}
                )
                assert reply.status_code == 200
            await until(is_clean, gateway)
            figures = await gateway.link.figures()
            assert figures["calls_failed"] == 0
            assert figures["calls_done"] == figures["calls"] == 2

    asyncio.run(run())


@pytest.mark.parametrize("streams", [False, True])
def test_a_broken_connection_to_the_real_server_frees_everything(
    server: Served, streams: bool
) -> None:
    where = urlsplit(server.url)
    body = json.dumps({**LONG, "max_tokens": 3500, "stream": streams}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(body)}\r\n\r\n"
    with connect(server.runtime, client="test") as runtime:
        assert wait_for(runtime, is_clean)
        with socket.create_connection((where.hostname, where.port)) as client:
            client.sendall(head.encode() + body)
            assert wait_for(runtime, lambda figures: figures["running"] == 1)
        began = time.monotonic()
        assert wait_for(runtime, is_clean)
        print(f"clean after {time.monotonic() - began:.3f} s")


def asked_by(client: socket.socket, server: Served, **changes: Any) -> None:
    """A request of a client with a small window, which reads nothing of its own accord."""
    where = urlsplit(server.url)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((where.hostname, where.port))
    body = json.dumps({**LONG, **changes}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    client.sendall(head.encode() + body)


def test_nothing_is_generated_for_a_reader_who_reads_nothing_until_it_does(server: Served) -> None:
    """Others are answered, one of two leaves, and the other one gets all that it asked for."""
    stream: dict[str, Any] = {"n": 4, "stream": True, "logprobs": 5, "seed": 7}
    with (
        connect(server.runtime, client="test") as runtime,
        socket.socket() as reads_late,
        socket.socket() as leaves,
    ):
        assert wait_for(runtime, is_clean)
        made = [figures_of(runtime)["generated_tokens"]]
        asked_by(leaves, server, **stream, max_tokens=3500)
        assert wait_for(runtime, partial(is_suspended, 4))
        asked_by(reads_late, server, **stream, max_tokens=400)
        assert wait_for(runtime, partial(is_suspended, 8))
        assert figures_of(runtime)["running"] == figures_of(runtime)["waiting"] == 0
        with socket.socket() as other:
            asked_by(other, server, max_tokens=2, prompt="Hi")
            assert b"200 OK" in other.recv(1000)
        leaves.close()
        assert wait_for(runtime, partial(is_suspended, 4))
        made.append(figures_of(runtime)["generated_tokens"])
        whole = b""
        while part := reads_late.recv(1 << 20):
            whole += part
        assert whole.count(b'"finish_reason":"length"') == 4
        assert b"data: [DONE]" in whole
        assert wait_for(runtime, is_clean)
        made.append(figures_of(runtime)["generated_tokens"])
        assert made[2] - made[1] < 4 * 400, "the rest of one, and nothing for who left"
        assert made[2] - made[0] - 2 - 4 * 400 < 4 * 3500 / 4, "what was under way for who left"


def figures_of(runtime: Connection) -> dict[str, float]:
    found: dict[str, float] = {}

    def keep(figures: dict[str, float]) -> bool:
        found.update(figures)
        return True

    assert wait_for(runtime, keep)
    return found


def is_suspended(count: int, figures: dict[str, float]) -> bool:
    return figures["suspended"] == count


def wait_for(runtime: Connection, holds: Callable[[dict[str, float]], bool]) -> bool:
    """Whether the figures of the real runtime become so in time."""
    deadline = time.monotonic() + 10 * PROMISED
    number = 0
    while time.monotonic() < deadline:
        number += 1
        runtime.send([wire.Describe(number)])
        replies = runtime.receive(10.0)
        if any(isinstance(reply, wire.Described) and holds(reply.figures) for reply in replies):
            return True
        time.sleep(0.01)
    return False
