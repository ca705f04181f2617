"""A flood of requests before a server that is full: how soon they are refused, and what it costs.

    python -m benchmarks.flood                      3,000 requests at once, each with its connection
    python -m benchmarks.flood --against FOLDER     in turns with another checkout's gateway
    python -m benchmarks.flood --body 200000        with bodies of so many bytes

All places are taken by requests that say nothing. Then all others come at once, from another
process, which takes time on the same cores. A request's time runs from its connection's beginning to
its status. `work` is the processor time of the gateway's process for one refusal. Knows processes
and sockets.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import functools
import json
import resource
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path
from typing import Annotated

from benchmarks import runner
from benchmarks.gateway_pairs import speaking
from benchmarks.streams import cancelled, post, silent_streams

PLACES = 64
SECONDS = 120.0


class _Flooding(asyncio.Protocol):
    """One request of the flood: sent when its connection stands, timed until its status."""

    def __init__(self, request: bytes, began: float) -> None:
        self._request = request
        self._began = self._connected = began
        self.found: asyncio.Future[tuple[int, float, float]] = asyncio.Future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._connected = time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self.found.done():
            now, status = time.perf_counter(), int(data.split(b" ", 2)[1])
            self.found.set_result((status, now - self._began, now - self._connected))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.found.done():
            self.found.set_result((0, 0.0, 0.0))


async def flood(url: str, count: int, size: int) -> list[tuple[int, float, float]]:
    """For each request its status, and the seconds since it began and since it was connected."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    where, loop = urllib.parse.urlsplit(url), asyncio.get_running_loop()
    body = json.dumps({"prompt": "x" * size, "max_tokens": 4, "stream": True}).encode()
    request = post(url, "/v1/completions", body)

    async def one() -> tuple[int, float, float]:
        made = functools.partial(_Flooding, request, time.perf_counter())
        try:
            transport, protocol = await loop.create_connection(made, where.hostname, where.port)
        except OSError:
            return 0, 0.0, 0.0
        try:
            async with asyncio.timeout(SECONDS):
                return await protocol.found
        finally:
            transport.abort()

    return await asyncio.gather(*(one() for _ in range(count)))


async def measured(url: str, pid: int, count: int, size: int) -> str:
    """Fills all places, and floods."""
    silent = await silent_streams(url, PLACES)
    before = runner.processor_time(pid)
    client = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "benchmarks.flood", "--client", url),
        *("--requests", str(count), "--body", str(size)),
        stdout=subprocess.PIPE,
    )
    said, _ = await client.communicate()
    work = runner.processor_time(pid) - before
    await cancelled(silent)
    await asyncio.sleep(0.5)  # until the gateway has noticed
    found = json.loads(said)
    statuses = collections.Counter(status for status, _, _ in found)
    refused = [one for one in found if one[0] == 429]
    times, waits = ([1e3 * one[at] for one in refused] for at in (1, 2))
    (p50, p99), (since50, since99) = (
        [runner.percentile(each, part) for part in (0.5, 0.99)] for each in (times, waits)
    )
    return (
        f"{dict(statuses)}, refused after p50 {p50:,.0f} ms, p99 {p99:,.0f} ms; since connected "
        f"p50 {since50:,.0f} ms, p99 {since99:,.0f} ms; work {1e6 * work / len(times):,.0f} us "
        f"each, {work:.2f} s in all"
    )


@runner.command
def main(
    *,
    against: Path | None = None,
    requests: int = 3000,
    body: int = 200,
    rounds: int = 3,
    client: Annotated[str, argparse.SUPPRESS] = "",
) -> None:
    if client:
        print(json.dumps(asyncio.run(flood(client, requests, body))))
        return
    trees = [Path.cwd(), *([against] if against else [])]
    with speaking(trees, ("0.02",), (str(PLACES),)) as gateways:
        for _ in range(rounds):
            for tree, one in zip(trees, gateways, strict=True):
                told = asyncio.run(measured(one["url"], one["pid"], requests, body))
                print(f"{tree.name:<10} {told}", flush=True)
