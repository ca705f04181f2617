"""A full server refuses in the turn in which a request's head has come, without the application."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest

from lmprog.server.gateway.gateway import Gateway
from lmprog.server.http.http_server import HttpConnection, HttpServer, bind, url_of
from lmprog.server.link.runtime_link import RuntimeLink
from lmprog.server.options.server_settings import ServerSettings
from lmprog.server.service import http_server
from tests.server.fake_runtime import Fake, asking

BODY = b'{"prompt": "x", "max_tokens": 2}'
HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n"
)
PLAIN = HEAD % len(BODY) + b"\r\n" + BODY


class Calls:
    """An application that counts the requests that reach it."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.count = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.count += 1
        await self._app(scope, receive, send)


class FullServer:
    """A server on a socket, with one place, which `fill` takes."""

    def __init__(self, gateway: Gateway, server: HttpServer, port: int) -> None:
        self.gateway = gateway
        self.server = server
        self.port = port
        self.calls = Calls(server.config.app)
        server.config.app = self.calls  # type: ignore[assignment]
        self._places = ExitStack()

    def fill(self) -> None:
        self._places.enter_context(self.gateway.admit())
        self._places.enter_context(self.gateway.admit())
        assert self.gateway.refusal() is not None

    def empty(self) -> None:
        self._places.close()

    async def answers(self, *parts: bytes, count: int = 1) -> list[tuple[int, bytes, bytes]]:
        """Status, head and body of `count` answers to what is sent on one connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        found = []
        for part in parts:
            writer.write(part)
            await writer.drain()
        for _ in range(count):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            found.append((int(head.split()[1]), head.lower(), await reader.readexactly(length)))
        writer.close()
        return found


@asynccontextmanager
async def full(fake: Fake, **settings: Any) -> AsyncIterator[FullServer]:
    chosen = ServerSettings(port=0, max_running=1, max_waiting=1, **settings)
    gateway = Gateway(chosen, RuntimeLink(), clock=lambda: 1.0)  # it was refusing just now
    gateway.link.replace(fake.connect("test"))
    bound = bind(chosen)
    server = http_server(gateway)
    made = FullServer(gateway, server, int(url_of(bound).rpartition(":")[2]))
    made.fill()
    serving = asyncio.create_task(server.serve([bound]))
    try:
        yield made
    finally:
        server.stop_now()
        await serving
        gateway.link.close()


def test_a_flood_is_refused_without_the_application(fake: Fake) -> None:
    async def run() -> None:
        async with full(fake) as server:
            found = await asyncio.gather(*(server.answers(PLAIN) for _ in range(50)))
            assert {answer[0][0] for answer in found} == {429}
            assert server.calls.count == 0
            counted, _ = server.gateway.meters.text()
            assert b'status="429"' in counted
            assert server.gateway.open_requests == 0

    asyncio.run(run())


def test_a_refused_request_gets_no_task_and_an_older_kind_of_request_does(fake: Fake) -> None:
    async def run() -> None:
        async with full(fake) as server:
            for _ in range(3):
                await server.answers(PLAIN)
            assert server.server.server_state.total_requests == 0
            await server.answers(PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0"))
            assert server.server.server_state.total_requests == 1
            assert server.calls.count == 1

    asyncio.run(run())


def test_a_refused_client_that_asks_nothing_more_is_cut_off(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HttpConnection, "header_seconds", 0.2)

    async def run() -> None:
        async with full(fake) as server:
            for sent in (b"", PLAIN):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(sent)
                with contextlib.suppress(ConnectionError):
                    while await reader.read(1000):
                        pass
                writer.close()

    asyncio.run(run())


def test_connections_that_never_asked_end_with_the_server(fake: Fake) -> None:
    async def run() -> None:
        async with full(fake) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            await server.answers(PLAIN)  # by then the other one is accepted
            server.server.stop()
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()

    asyncio.run(run())


def test_the_answer_is_that_of_the_application(fake: Fake) -> None:
    async def run() -> None:
        settings = {"api_keys": ("key",)}
        async with full(fake, **settings) as server:
            for more, status in (
                (b"", 401),
                (b"Authorization: Bearer key\r\n", 429),
                (b"Origin: http://evil.example\r\n", 403),
                (b"X-Request-Id: mine\r\nX-Api-Key: key\r\n", 429),
            ):
                early = (await server.answers(HEAD % len(BODY) + more + b"\r\n" + BODY))[0]
                assert server.calls.count == 0
                with asking_full(fake, **settings) as asked:
                    headers = dict(line.split(b": ") for line in more.splitlines())
                    late = await asked({k.decode(): v.decode() for k, v in headers.items()})
                assert (early[0], late.status_code) == (status, status)
                assert json.loads(early[2]) == late.json()
                given = {line.split(b":")[0].decode() for line in early[1].splitlines()[1:-1]}
                assert given == set(late.headers)
                assert (b"x-request-id: mine" in early[1]) == (b"mine" in more)

    asyncio.run(run())


class asking_full:
    """The same question without sockets, to an application that is full."""

    def __init__(self, fake: Fake, **settings: Any) -> None:
        self._fake, self._settings = fake, settings

    def __enter__(self) -> Any:
        return self._ask

    def __exit__(self, *_: object) -> None: ...

    async def _ask(self, headers: dict[str, str]) -> Any:
        settings = {"max_running": 1, "max_waiting": 1, **self._settings}
        async with asking(self._fake, **settings) as (client, gateway):
            with gateway.admit(), gateway.admit():
                return await client.post("/v1/completions", content=BODY, headers=headers)


def test_a_connection_goes_on_after_a_refusal(fake: Fake) -> None:
    async def run() -> None:
        async with full(fake) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            statuses = []
            for turn in range(4):
                if turn == 2:
                    server.empty()
                writer.write(PLAIN)
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                await reader.readexactly(length)
                statuses.append(int(head.split()[1]))
            writer.close()
            assert statuses == [429, 429, 200, 200]
            assert server.calls.count == 2

    asyncio.run(run())


def test_a_body_that_is_still_coming_is_read_before_the_connection_ends(fake: Fake) -> None:
    """Else the system would take the answer back from a client that still writes."""

    async def run() -> None:
        async with full(fake) as server:
            size = 3_000_000
            (answer,) = await server.answers(HEAD % size + b"\r\n" + b" " * 10, b" " * (size - 10))
            assert answer[0] == 429
            assert b"connection: close" in answer[1]
            assert server.calls.count == 0

    asyncio.run(run())


def test_a_refused_client_that_goes_on_writing_is_cut_off(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmprog.server.http.early_refusal.LINGER_SECONDS", 0.05)

    async def run() -> None:
        async with full(fake) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(HEAD % 1_000_000 + b"\r\n")
            with contextlib.suppress(ConnectionError):
                while await reader.read(1000):
                    pass
            writer.close()

    asyncio.run(run())


def test_what_comes_in_pieces_is_refused_early_and_what_has_no_length_by_the_application(
    fake: Fake,
) -> None:
    async def run() -> None:
        async with full(fake) as server:
            chunked = PLAIN.partition(b"Content-Length")[
                0
            ] + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
            assert (await server.answers(chunked))[0][0] == 429
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(PLAIN[:40])
            await asyncio.sleep(0.05)
            writer.write(PLAIN[40:])
            assert b" 429 " in await reader.readuntil(b"\r\n")
            writer.close()
            assert server.calls.count == 1
            for two in (await server.answers(PLAIN + PLAIN, count=2),):
                assert [one[0] for one in two] == [429, 429]
            assert server.calls.count == 1

    asyncio.run(run())


def test_pages_that_may_use_the_server_read_why_they_are_refused(fake: Fake) -> None:
    async def run() -> None:
        site = b"https://app.example"
        async with full(fake, cors_origins=(site.decode(),)) as server:
            asked = HEAD % len(BODY) + b"Origin: " + site + b"\r\n\r\n" + BODY
            (answer,) = await server.answers(asked)
            assert answer[0] == 429
            assert b"access-control-allow-origin: " + site in answer[1]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (PLAIN, 429),
        (PLAIN.replace(b"Content-Length: 32", b"Content-Length: 32, 32"), 429),
        (PLAIN.replace(b"Host:", b"X: " + b"y" * 20_000 + b"\r\nHost:"), 429),
        (PLAIN.replace(b"Content-Length: 32", b"Content-Length: 32\r\nExpect: 100-continue"), 429),
        (PLAIN.replace(b"POST", b"GET"), 405),
        (PLAIN.replace(b"/v1/completions", b"/v1/models"), 405),
        (PLAIN.replace(b"Host: localhost\r\n", b""), 400),
        (PLAIN.replace(b"Host:", b"Host: x\r\nHost:"), 400),
        (PLAIN.replace(b"Content-Length: 32", b"Content-Length: 32\r\nContent-Length: 31"), 400),
        (PLAIN.replace(b"Content-Length: 32", b"Content-Length: +32"), 400),
        (PLAIN.replace(b"Content-Length: 32", b"Content-Length : 32"), 400),
        (PLAIN.replace(b"Content-Length: 32", b"Content-Length: 31"), 429),
    ],
)
def test_a_full_server_reads_heads_as_strictly_as_an_empty_one(
    fake: Fake, data: bytes, status: int
) -> None:
    async def run() -> None:
        async with full(fake) as server:
            assert (await server.answers(data))[0][0] == status

    asyncio.run(run())
