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
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
from contextlib import ExitStack
from pathlib import Path

from benchmarks.gateway_pairs import processor_time, started
from benchmarks.streams import stream

PLACES = 64
SECONDS = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.flood")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--body", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--client", nargs=1, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.client:
        print(json.dumps(asyncio.run(flood(asked.client[0], asked.requests, asked.body))))
        return
    trees = [Path.cwd(), *([asked.against] if asked.against else [])]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        address = f"ipc://{folder}/socket"
        stack.enter_context(started(trees[0], "runtime", address, "0.02"))
        gateways = [
            stack.enter_context(started(tree, "gateway", address, str(PLACES))) for tree in trees
        ]
        for _ in range(asked.rounds):
            for tree, (url, pid) in zip(trees, gateways, strict=True):
                print(f"{tree.name:<10} {asyncio.run(measured(url, pid, asked))}", flush=True)


async def measured(url: str, pid: int, asked: argparse.Namespace) -> str:
    """Fills all places, and floods."""
    opened = [asyncio.Event() for _ in range(PLACES)]
    silent = [
        asyncio.create_task(stream(url, {"prompt": "wait", "max_tokens": 4}, event))
        for event in opened
    ]
    await asyncio.gather(*(event.wait() for event in opened))
    before = processor_time(pid)
    client = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "benchmarks.flood", "--client", url),
        *("--requests", str(asked.requests), "--body", str(asked.body)),
        stdout=subprocess.PIPE,
    )
    said, _ = await client.communicate()
    work = processor_time(pid) - before
    for task in silent:
        task.cancel()
    await asyncio.gather(*silent, return_exceptions=True)
    await asyncio.sleep(0.5)  # until the gateway has noticed
    found = json.loads(said)
    statuses = collections.Counter(status for status, _, _ in found)
    times = sorted(seconds for status, seconds, _ in found if status == 429)
    waits = sorted(seconds for status, _, seconds in found if status == 429)
    return (
        f"{dict(statuses)}, refused after p50 {1e3 * statistics.median(times):,.0f} ms, "
        f"p99 {1e3 * times[int(len(times) * 0.99)]:,.0f} ms; since connected p50 "
        f"{1e3 * statistics.median(waits):,.0f} ms, p99 {1e3 * waits[int(len(waits) * 0.99)]:,.0f} "
        f"ms; work {1e6 * work / len(times):,.0f} us each, {work:.2f} s in all"
    )


class _Flooding(asyncio.Protocol):
    """One request of the flood: sent when its connection stands, timed until its status."""

    def __init__(self, request: bytes, began: float) -> None:
        self._request = request
        self._began = self._connected = began
        self.found: asyncio.Future[tuple[int, float, float]] = (
            asyncio.get_running_loop().create_future()
        )

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
    where = urllib.parse.urlsplit(url)
    body = json.dumps({"prompt": "x" * size, "max_tokens": 4, "stream": True}).encode()
    request = (
        f"POST /v1/completions HTTP/1.1\r\nhost: {where.netloc}\r\ncontent-type: "
        f"application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body
    loop = asyncio.get_running_loop()

    async def one() -> tuple[int, float, float]:
        try:
            transport, protocol = await loop.create_connection(
                functools.partial(_Flooding, request, time.perf_counter()),
                where.hostname,
                where.port,
            )
        except OSError:
            return 0, 0.0, 0.0
        try:
            async with asyncio.timeout(SECONDS):
                return await protocol.found
        finally:
            transport.abort()

    return await asyncio.gather(*(one() for _ in range(count)))


if __name__ == "__main__":
    main()
