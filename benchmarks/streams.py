"""Streaming clients with as little cost of their own as Python allows, and what they waited for.

Knows sockets and `/v1/completions`; knows no servers and no tables.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
import urllib.parse
from dataclasses import dataclass, field
from typing import Any


def post(url: str, path: str, body: bytes, *more: str) -> bytes:
    """A request with these further lines in its head."""
    host = urllib.parse.urlsplit(url).netloc
    lines = [f"POST {path} HTTP/1.1", f"host: {host}", "content-type: application/json"]
    lines += [*more, f"content-length: {len(body)}", "\r\n"]
    return "\r\n".join(lines).encode() + body


@dataclass(slots=True)
class Seen:
    """One request. Times in seconds since it began."""

    status: int = 0
    first: float = math.nan
    whole: float = math.nan
    between: list[float] = field(default_factory=list)
    chunks: int = 0


class _Reading(asyncio.Protocol):
    """Reads one answer whose connection ends with it, and keeps the times at which texts came."""

    def __init__(self, opened: asyncio.Event | None) -> None:
        self.seen = Seen()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._opened = opened
        self._began = self._last = time.perf_counter()
        self._head = b""
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        if not self.seen.status:
            self._head += data
            head, found, data = self._head.partition(b"\r\n\r\n")
            if not found:
                return
            self.seen.status = int(head.split(b" ", 2)[1])
            if self._opened is not None:
                self._opened.set()
        events = (self._rest + data).split(b"\n\n")
        self._rest = events.pop()
        texts = sum(b"data: {" in event and b'"text":""' not in event for event in events)
        if texts and self.seen.status == 200:
            self._count(texts)

    def connection_lost(self, exc: Exception | None) -> None:
        self.seen.whole = time.perf_counter() - self._began
        if not self.ended.done():
            self.ended.set_result(None)

    def _count(self, texts: int) -> None:
        """Texts that came in one piece of data have no time between them."""
        now = time.perf_counter()
        gaps = [now - self._last, *[0.0] * (texts - 1)]
        if not self.seen.chunks:
            self.seen.first = now - self._began
            gaps = gaps[1:]
        self.seen.between += gaps
        self.seen.chunks += texts
        self._last = now


async def stream(url: str, body: dict[str, Any], opened: asyncio.Event | None = None) -> Seen:
    """Asks for a stream and reads it to its end. `opened` is set when its headers have come."""
    parts = urllib.parse.urlsplit(url)
    data = json.dumps({**body, "stream": True}).encode()
    reading = _Reading(opened)
    transport, _ = await asyncio.get_running_loop().create_connection(
        lambda: reading, str(parts.hostname), int(parts.port or 80)
    )
    try:
        transport.write(post(url, "/v1/completions", data, "connection: close"))
        await reading.ended
    finally:
        transport.close()
    return reading.seen


async def closed_loop(
    url: str, clients: int, each: int, body: dict[str, Any]
) -> tuple[list[Seen], float]:
    """`clients` ask `each` times, one request after the other; what they saw, and the seconds of all."""
    began = time.perf_counter()

    async def client(number: int) -> list[Seen]:
        return [await stream(url, _own(body, number * each + turn)) for turn in range(each)]

    found = await asyncio.gather(*(client(number) for number in range(clients)))
    return [seen for one in found for seen in one], time.perf_counter() - began


async def silent_streams(url: str, count: int) -> list[asyncio.Task[Seen]]:
    """Streams that are open and get nothing, before a speaker as the runtime."""
    tasks: list[asyncio.Task[Seen]] = []
    while len(tasks) < count:
        opened = [asyncio.Event() for _ in range(min(200, count - len(tasks)))]
        body = {"prompt": "wait", "max_tokens": 4}
        tasks += [asyncio.create_task(stream(url, body, event)) for event in opened]
        await asyncio.gather(*(event.wait() for event in opened))
    return tasks


async def cancelled(tasks: list[asyncio.Task[Seen]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def open_loop(
    url: str, rate: float, seconds: float, body: dict[str, Any]
) -> tuple[list[Seen], float]:
    """A request every `1 / rate` seconds, whether earlier ones have ended or not."""
    began = time.perf_counter()
    tasks: list[asyncio.Task[Seen]] = []
    while (now := time.perf_counter() - began) < seconds:
        tasks += [
            asyncio.create_task(stream(url, _own(body, len(tasks) + at)))
            for at in range(int(now * rate) + 1 - len(tasks))
        ]
        await asyncio.sleep(min(0.005, 1 / rate))
    found = await asyncio.gather(*tasks)
    return list(found), time.perf_counter() - began


def _own(body: dict[str, Any], number: int) -> dict[str, Any]:
    """Each request has a prompt of its own behind the shared beginning."""
    return {**body, "prompt": f"{body['prompt']} {number}:"}
