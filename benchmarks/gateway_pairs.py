"""The gateway's processor time for one request, beside that of another checkout's gateway.

    python -m benchmarks.gateway_pairs                      of this checkout
    python -m benchmarks.gateway_pairs --against FOLDER     in turns with that of another checkout

Both stand before a runtime that takes no time (`speaker`), and serve the same requests in turns; the
figures are microseconds of processor time of the gateway's process, the least of all rounds, and how
often its threads went to sleep for a request. What a stream costs depends on the latter: tokens that
come while the gateway is busy are one piece. So a stream also comes from a runtime that takes a
millisecond for each token, which makes every token a piece of its own. Knows processes and sockets;
knows no gateway from the inside.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import urllib.parse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

PROMPT = "The sea is wide and the ships on it are small. "
SHORT = {"prompt": PROMPT, "max_tokens": 1, "temperature": 0}
CHAT = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 1, "temperature": 0}
SCENARIOS: dict[str, tuple[str, dict[str, Any], int]] = {
    "a completion of one token": ("/v1/completions", SHORT, 600),
    "a chat of one token": ("/v1/chat/completions", CHAT, 600),
    "a stream of 64 tokens": ("/v1/completions", {**SHORT, "max_tokens": 64, "stream": True}, 100),
    "a refusal of what the body says": ("/v1/completions", {"prompt": 1}, 600),
    "a list of models": ("/v1/models", {}, 600),
}
"""Path, body (empty: GET) and how many requests make a round."""
PACED = {"a stream of 64 single tokens": (*SCENARIOS["a stream of 64 tokens"][:2], 10)}
PACE = "0.001"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.gateway_pairs")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    trees = [Path.cwd(), *([asked.against] if asked.against else [])]
    for scenarios, pace in ((SCENARIOS, ()), (PACED, (PACE,))):
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            address = f"ipc://{folder}/socket"
            stack.enter_context(started(trees[0], "runtime", address, *pace))
            gateways = [stack.enter_context(started(tree, "gateway", address)) for tree in trees]
            for name, (path, body, count) in scenarios.items():
                print(
                    f"{name:<34}{compared(gateways, path, body, count, asked.rounds)}", flush=True
                )


def compared(
    gateways: list[tuple[str, int]], path: str, body: dict[str, Any], count: int, rounds: int
) -> str:
    """The least cost of each gateway, how often it slept in that round, and the ratio."""
    costs: list[list[tuple[float, float]]] = [[] for _ in gateways]
    for turn in range(rounds + 1):
        for cost, (url, pid) in zip(costs, gateways, strict=True):
            before, slept = processor_time(pid), sleeps(pid)
            asyncio.run(ask(url, path, body, count))
            if turn:  # the first round warms up
                each = (processor_time(pid) - before) / count
                cost.append((1e6 * each, (sleeps(pid) - slept) / count))
    least = [min(cost) for cost in costs]
    ratio = f"  ratio {least[0][0] / least[1][0]:.2f}" if len(least) > 1 else ""
    return "".join(f"{cost:>9.0f} us ({slept:.0f} sleeps)" for cost, slept in least) + ratio


def sleeps(pid: int) -> int:
    """How often the threads of a process have waited for something."""
    tasks = Path(f"/proc/{pid}/task").glob("*/status")
    lines = [line for task in tasks for line in task.read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))


@contextmanager
def started(tree: Path, role: str, address: str, *more: str) -> Iterator[tuple[str, int]]:
    """A speaker's process of a checkout: its URL (of a gateway) and its id."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.speaker", role, address, *more],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline()).get("url", ""), process.pid
    finally:
        process.terminate()
        process.communicate(timeout=60)


def processor_time(pid: int) -> float:
    """Seconds that all threads of a process have computed."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


async def ask(url: str, path: str, body: dict[str, Any], count: int) -> None:
    """The same request `count` times on one connection, one after the other."""
    where = urllib.parse.urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    data = json.dumps(body).encode() if body else b""
    method = "POST" if body else "GET"
    head = f"{method} {path} HTTP/1.1\r\nhost: {where.netloc}\r\n"
    if body:
        head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n"
    request = head.encode() + b"\r\n" + data
    for _ in range(count):
        writer.write(request)
        await read_answer(reader)
    writer.close()
    await writer.wait_closed()


async def read_answer(reader: asyncio.StreamReader) -> int:
    """Reads one answer to its end; its status."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = head.partition(b"content-length:")[2].split(b"\r\n", 1)[0]
    if length:
        await reader.readexactly(int(length))
    else:
        await reader.readuntil(b"\r\n0\r\n\r\n")
    return int(head.split(b" ", 2)[1])


if __name__ == "__main__":
    main()
