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

import asyncio
import json
import tempfile
import urllib.parse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import runner
from benchmarks.streams import post

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


@contextmanager
def speaking(
    trees: list[Path], pace: tuple[str, ...] = (), places: tuple[str, ...] = ()
) -> Iterator[list[dict[str, Any]]]:
    """The gateways of these checkouts (their `url` and `pid`) before one speaker as the runtime."""
    with ExitStack() as stack:
        address = f"ipc://{stack.enter_context(tempfile.TemporaryDirectory())}/socket"
        roles = [("runtime", trees[0], pace), *(("gateway", tree, places) for tree in trees)]
        said = [
            stack.enter_context(
                runner.started(["-m", "benchmarks.speaker", role, address, *more], tree)
            )
            for role, tree, more in roles
        ]
        yield said[1:]


def sleeps(pid: int) -> int:
    """How often the threads of a process have waited for something."""
    tasks = Path(f"/proc/{pid}/task").glob("*/status")
    lines = [line for task in tasks for line in task.read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))


async def ask(url: str, path: str, body: dict[str, Any], count: int) -> None:
    """The same request `count` times on one connection, one after the other."""
    where = urllib.parse.urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    request = f"GET {path} HTTP/1.1\r\nhost: {where.netloc}\r\n\r\n".encode()
    if body:
        request = post(url, path, json.dumps(body).encode())
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


def cost(gateway: dict[str, Any], path: str, body: dict[str, Any], count: int) -> Any:
    """Microseconds of a request, and how often the gateway slept."""
    pid = gateway["pid"]
    before, slept = runner.processor_time(pid), sleeps(pid)
    asyncio.run(ask(gateway["url"], path, body, count))
    spent = runner.processor_time(pid) - before
    return 1e6 * spent / count, (sleeps(pid) - slept) / count


@runner.command
def main(*, against: Path | None = None, rounds: int = 5) -> None:
    trees = [Path.cwd(), *([against] if against else [])]
    for scenarios, pace in ((SCENARIOS, ()), (PACED, (PACE,))):
        with speaking(trees, pace) as gateways:
            for name, scenario in scenarios.items():
                sides = {str(n): partial(cost, one, *scenario) for n, one in enumerate(gateways)}
                found = runner.in_turn(sides, rounds + 1)
                least = [min(each[1:]) for each in found.values()]  # the first round warms up
                told = "".join(f"{us:>9.0f} us ({slept:.0f} sleeps)" for us, slept in least)
                ratio = f"  ratio {least[0][0] / least[1][0]:.2f}" if against else ""
                print(f"{name:<34}{told}{ratio}", flush=True)
