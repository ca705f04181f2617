"""Many idle streams, many requests one after the other, clients that do not read: what a server
holds meanwhile and afterwards.
"""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import tempfile
import time
import urllib.parse
from typing import Any

from benchmarks.served_process import Footprint, ServedProcess, served_nano
from benchmarks.server import gateway, served
from benchmarks.streams import closed_loop, percentile, stream

BODY: dict[str, Any] = {"prompt": "The sea", "max_tokens": 2, "ignore_eos": True, "temperature": 0}
AT_ONCE = 8
SAMPLES = 10


def idle_streams(count: int) -> bool:
    """Streams that wait for their first token before a runtime that never gives them one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return asyncio.run(_idle_streams(count))


async def _idle_streams(count: int) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        address = f"ipc://{folder}/socket"
        with (
            served(["-m", "benchmarks.speaker", "runtime", address]),
            gateway(address, str(2 * count + 128)) as (url, pid),
        ):
            await closed_loop(url, 1, 2, BODY)
            before = Footprint.of(pid)
            waiting = []
            for begin in range(0, count, 200):
                opened = [asyncio.Event() for _ in range(min(200, count - begin))]
                waiting += [
                    asyncio.create_task(stream(url, {**BODY, "prompt": "wait"}, event))
                    for event in opened
                ]
                await asyncio.gather(*(event.wait() for event in opened))
            during = Footprint.of(pid)
            seen, _ = await closed_loop(url, 1, 20, BODY)
            is_served = all(one.status == 200 and one.chunks for one in seen)
            for one in waiting:
                one.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            after = await _settled(pid, before.files + 2)
    each = (during.kilobytes - before.kilobytes) / count
    first = percentile([one.first for one in seen], 50) * 1000
    print(f"{count:,} idle streams: {each:.1f} kB each; the gateway: {before}; {during}; {after}")
    print(f"beside them: {is_served}, first token of another client p50 {first:.1f} ms")
    return is_served and after.files <= before.files + 2 and after.threads <= before.threads + 2


async def _settled(pid: int, files: int) -> Footprint:
    for _ in range(300):
        now = Footprint.of(pid)
        if now.files <= files:
            break
        await asyncio.sleep(0.2)
    return now


def churn(count: int) -> bool:
    """Short requests of eight clients on nano; what gateway and runtime hold after each tenth."""
    with served_nano("--kv-memory-mb", "16") as server:
        asyncio.run(closed_loop(server.url, AT_ONCE, min(100, count // 80), BODY))
        runtime_pid = server.runtime_pid()
        figures = [held(server)]
        began, answered = time.monotonic(), 0
        for _ in range(SAMPLES):
            seen, _ = asyncio.run(
                closed_loop(server.url, AT_ONCE, count // SAMPLES // AT_ONCE, BODY)
            )
            answered += sum(one.status == 200 and one.chunks > 0 for one in seen)
            figures.append(held(server))
            print(f"{answered:,}: gateway {figures[-1][0]}; runtime {figures[-1][1]}", flush=True)
        seconds = time.monotonic() - began
        is_same = server.runtime_pid() == runtime_pid
    asked = count // SAMPLES // AT_ONCE * AT_ONCE * SAMPLES
    later = figures[SAMPLES // 2 :]
    slopes = [slope([one[at].kilobytes for one in later], asked / SAMPLES) for at in (0, 1)]
    print(
        f"{answered:,} of {asked:,} requests in {seconds:.0f} s, one runtime: {is_same}; over the "
        f"second half the gateway grew by {slopes[0]:.2f} kB and the runtime by {slopes[1]:.2f} kB "
        "for 1,000 requests"
    )
    kept = all(
        now.files <= then.files + 2 and now.threads <= then.threads + 2
        for then, now in zip(figures[0], figures[-1], strict=True)
    )
    return answered == asked and is_same and kept


def held(server: ServedProcess) -> tuple[Footprint, Footprint]:
    """What gateway and runtime hold now."""
    return Footprint.of(server.pid), Footprint.of(server.runtime_pid())


def slope(values: list[int], apart: float) -> float:
    """By least squares, for 1,000 requests; `values` are so many requests apart."""
    mean_at, mean = (len(values) - 1) / 2, sum(values) / len(values)
    above = sum((at - mean_at) * (value - mean) for at, value in enumerate(values))
    return above / sum((at - mean_at) ** 2 for at in range(len(values))) / apart * 1000


def slow_readers(count: int) -> bool:
    """Clients that ask for long streams and read nothing; others must get theirs."""
    with served_nano() as server:
        seen, _ = asyncio.run(closed_loop(server.url, 2, 4, BODY))
        quiet = percentile([one.first for one in seen], 50)
        before = held(server)
        slow = [_unread(server.url) for _ in range(count)]
        seen, _ = asyncio.run(closed_loop(server.url, 2, 10, BODY))
        beside = percentile([one.first for one in seen], 50)
        is_served = all(one.status == 200 and one.chunks for one in seen)
        during = max(
            (held(server)[0] for _ in range(SAMPLES) if not time.sleep(0.5)),
            key=lambda one: one.kilobytes,
        )
        for one in slow:
            one.close()
        after = asyncio.run(_settled(server.pid, before[0].files + 2))
    print(f"{count} clients that do not read; the gateway: {before[0]}; {during}; {after}")
    print(
        f"others are served: {is_served}, first token p50 {1000 * beside:.0f} ms, quiet "
        f"{1000 * quiet:.0f} ms"
    )
    return is_served and after.files <= before[0].files + 2


def _unread(url: str) -> socket.socket:
    parts = urllib.parse.urlsplit(url)
    made = socket.create_connection((str(parts.hostname), int(parts.port or 80)))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    # with log-probabilities, so that no buffer of the system takes the whole of it
    asked = {**BODY, "max_tokens": 3000, "logprobs": 5, "stream": True}
    body = json.dumps(asked).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: {parts.netloc}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    made.sendall(head.encode() + body)
    return made
