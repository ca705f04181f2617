"""Streaming clients with as little cost of their own as Python allows, and what they waited for.

Knows sockets and `/v1/completions`; knows no servers and no tables.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Seen:
    """One request. Times in seconds since it began."""

    status: int = 0
    first: float = math.nan
    whole: float = math.nan
    between: list[float] = field(default_factory=list)
    chunks: int = 0


async def stream(url: str, body: dict[str, Any], opened: asyncio.Event | None = None) -> Seen:
    """Asks for a stream and reads it to its end. `opened` is set when its headers have come."""
    parts = urllib.parse.urlsplit(url)
    seen, began = Seen(), time.perf_counter()
    data = json.dumps({**body, "stream": True}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\nconnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(head.encode() + data)
        seen.status = int((await reader.readline()).split()[1])
        while (await reader.readline()).strip():
            pass
        if opened is not None:
            opened.set()
        last = began
        while line := await reader.readline():
            if line.startswith(b"data: {") and b'"text":""' not in line and seen.status == 200:
                now = time.perf_counter()
                if seen.chunks:
                    seen.between.append(now - last)
                else:
                    seen.first = now - began
                seen.chunks += 1
                last = now
        seen.whole = time.perf_counter() - began
    finally:
        writer.close()
    return seen


async def closed_loop(url: str, clients: int, each: int, body: dict[str, Any]) -> tuple[list[Seen], float]:
    """`clients` ask `each` times, one request after the other; what they saw, and the seconds for all."""
    began = time.perf_counter()

    async def client(number: int) -> list[Seen]:
        return [await stream(url, _own(body, number * each + turn)) for turn in range(each)]

    found = await asyncio.gather(*(client(number) for number in range(clients)))
    return [seen for one in found for seen in one], time.perf_counter() - began


async def open_loop(url: str, rate: float, seconds: float, body: dict[str, Any]) -> tuple[list[Seen], float]:
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


def percentile(values: Sequence[float], percent: float) -> float:
    """nan of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else math.nan
