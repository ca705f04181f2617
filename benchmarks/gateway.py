"""The HTTP server: what its gateway costs for one request, under load, and in a flood.

    python -m benchmarks.gateway load [--small]              closed loops, an open loop, silent streams
    python -m benchmarks.gateway pairs [--against FOLDER]    processor time of one request
    python -m benchmarks.gateway idle [--streams 10000]      silent streams, with a soft limit of 1,024 open files
    python -m benchmarks.gateway flood [--body 200000] [--against FOLDER]    how soon refusals come

`--against` takes turns with the gateway of another checkout. Clients are `streams`; `speaker` is a
runtime without a model. Knows processes and sockets; knows no gateway from the inside.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from benchmarks import runner
from benchmarks.streams import Seen, cancelled, closed_loop, open_loop, post, silent_streams
from lmprog import launch, wire
from lmprog.backends.client import RuntimeBackend

# -- one request

PROMPT = "The sea is wide and the ships on it are small. "
SHORT = {"prompt": PROMPT, "max_tokens": 1, "temperature": 0}
CHAT = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 1, "temperature": 0}
LONG = {**SHORT, "max_tokens": 64, "stream": True}
SCENARIOS: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "a completion of one token": ("/v1/completions", SHORT, 600, 1),
    "a chat of one token": ("/v1/chat/completions", CHAT, 600, 1),
    "64 chats of one token at once": ("/v1/chat/completions", CHAT, 1920, 64),
    "a stream of 64 tokens": ("/v1/completions", LONG, 100, 1),
    "a refusal of what the body says": ("/v1/completions", {"prompt": 1}, 600, 1),
    "a list of models": ("/v1/models", {}, 600, 1),
}
"""Path, body (empty: GET), how many requests make a round, and on how many connections."""
PACED = {"a stream of 64 single tokens": ("/v1/completions", LONG, 10, 1)}
PACE = "0.001"


@contextmanager
def speaking(
    trees: list[Path], pace: tuple[str, ...] = (), places: tuple[str, ...] = ()
) -> Iterator[list[dict[str, Any]]]:
    """The gateways of these checkouts (their `url` and `pid`), each before its checkout's speaker as
    the runtime: the messages of two checkouts may differ.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        said = []
        for number, tree in enumerate(trees):
            address = f"ipc://{folder}/{number}"
            for role, more in (("runtime", pace), ("gateway", places)):
                words = ["-m", "benchmarks.speaker", role, address, *more]
                said.append(stack.enter_context(runner.started(words, tree)))
        yield said[1::2]


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


def request_cost(
    gateway: dict[str, Any], path: str, body: dict[str, Any], count: int, clients: int
) -> tuple[float, float, float]:
    """Microseconds of a request, how often the gateway slept, and requests a second."""
    pid, url = gateway["pid"], gateway["url"]
    before, slept, began = runner.processor_time(pid), sleeps(pid), time.perf_counter()

    async def all_of_them() -> None:
        await asyncio.gather(*(ask(url, path, body, count // clients) for _ in range(clients)))

    asyncio.run(all_of_them())
    seconds, spent = time.perf_counter() - began, runner.processor_time(pid) - before
    return 1e6 * spent / count, (sleeps(pid) - slept) / count, count / seconds


def pairs(*, against: Path | None = None, rounds: int = 5) -> None:
    """Gateways stand before a runtime that takes no time, and serve the same requests in turns; the
    figures are microseconds of processor time of the gateway's process, the least of all rounds,
    how often its threads went to sleep for a request, and the most requests a second. What a stream costs depends on the latter:
    tokens that come while the gateway is busy are one piece. So a stream also comes from a runtime
    that takes a millisecond for each token, which makes every token a piece of its own.
    """
    trees = [Path.cwd(), *([against] if against else [])]
    for scenarios, pace in ((SCENARIOS, ()), (PACED, (PACE,))):
        with speaking(trees, pace) as gateways:
            for name, scenario in scenarios.items():
                sides = {
                    str(n): partial(request_cost, one, *scenario) for n, one in enumerate(gateways)
                }
                found = runner.in_turn(sides, rounds + 1)
                least = [min(each[1:]) for each in found.values()]  # the first round warms up
                most = [max(rate for *_, rate in each[1:]) for each in found.values()]
                told = "".join(
                    f"{us:>9.0f} us ({slept:.0f} sleeps, {rate:,.0f}/s)"
                    for (us, slept, _), rate in zip(least, most, strict=True)
                )
                ratio = f"  ratio {least[0][0] / least[1][0]:.2f}" if against else ""
                print(f"{name:<34}{told}{ratio}", flush=True)


# -- under load

LONG_PROMPT = "The sea is wide and the ships on it are small. " * 8
CLIENTS = (1, 16, 64)
LOAD_ROUNDS = 3


def summary(seen: Sequence[Seen], seconds: float, tokens: int) -> dict[str, Any]:
    """Times in milliseconds. Requests that were refused count apart."""
    good = [one for one in seen if one.status == 200]
    refused = [one.whole for one in seen if one.status in (429, 503)]
    made: dict[str, Any] = {
        "requests": len(good),
        "refused": len(refused),
        "failed": len(seen) - len(good) - len(refused),
        "tokens_per_second": len(good) * tokens / seconds,
    }
    parts = {
        "first": [one.first for one in good],
        "between": [gap for one in good for gap in one.between],
        "whole": [one.whole for one in good],
        **({"refusal": refused} if refused else {}),
    }
    for name, values in parts.items():
        for percent in (50, 90, 99):
            made[f"{name}_p{percent}_ms"] = 1e3 * runner.percentile(values, percent / 100)
    return made


def cost(url: str, address: str, each: int, body: dict[str, Any], rounds: int) -> dict[str, Any]:
    """The same work through the gateway and over the bare wire, in turns; the best of each, so that
    other work on the machine counts least. Both read what they ask for in streams."""
    clients, tokens = CLIENTS[-1], int(body["max_tokens"])

    def through() -> float:
        _, seconds = asyncio.run(closed_loop(url, clients, each, body))
        return clients * each * tokens / seconds

    sides = {"through": through, "bare": lambda: bare_wire(address, clients, each, body)}
    best = {name: max(found) for name, found in runner.in_turn(sides, rounds).items()}
    return {
        "gateway_tokens_per_second": best["through"],
        "bare_wire_tokens_per_second": best["bare"],
        "share_lost": 1 - best["through"] / best["bare"],
    }


def bare_wire(address: str, calls: int, each: int, body: dict[str, Any]) -> float:
    """Tokens per second of the same work by one client of the wire, `calls` at once, streamed as
    well.
    """
    sampling = wire.SamplingParams(temperature=0.0, max_tokens=body["max_tokens"], ignore_eos=True)
    with RuntimeBackend(launch.connect(address, client="benchmark")) as backend:
        client, began = backend.client, time.perf_counter()

        def one(number: int) -> None:
            for turn in range(each):
                branch = client.number()
                text = f"{body['prompt']} {1000 + number * each + turn}:"
                client.post(wire.Open(branch), wire.Append(branch, (wire.TextPiece(text),)))
                gen = wire.Generate(branch, client.number(), sampling, stream=True)
                outcome = client.call(gen, lambda delta: None).wait(600)
                assert isinstance(outcome, wire.CallDone), outcome
                client.post(wire.Close(branch))

        threads = [threading.Thread(target=one, args=(number,)) for number in range(calls)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return calls * each * int(body["max_tokens"]) / (time.perf_counter() - began)


async def by_itself(url: str, pid: int, body: dict[str, Any], small: bool) -> dict[str, Any]:
    """The gateway before a runtime that takes no time: most tokens, and what silent streams
    cost.
    """
    silent, tokens, figures = 100 if small else 1000, int(body["max_tokens"]), dict[str, Any]()
    await closed_loop(url, 1, 2, body)
    seen, seconds = await closed_loop(url, 64, 2 if small else 10, body)
    figures["gateway alone, 64 clients"] = summary(seen, seconds, tokens)
    before = runner.Footprint.of(pid).kilobytes
    waiting = await silent_streams(url, silent)
    seen, seconds = await closed_loop(url, 1, 5 if small else 50, body)
    figures[f"gateway alone, 1 client beside {silent} silent streams"] = {
        "kilobytes_per_stream": (runner.Footprint.of(pid).kilobytes - before) / silent,
        **summary(seen, seconds, tokens),
    }
    await cancelled(waiting)
    return figures


def load(*, small: bool = False, tokens: int = 64) -> None:
    """Closed loops, an open loop beyond what the server can do, silent streams, and its own cost, on
    nano; `--small` whether it runs at all. Clients are in this process; their cost counts against the
    server's, most of all on few cores.
    """
    tokens = 8 if small else tokens
    body = {"prompt": LONG_PROMPT, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    figures: dict[str, Any] = {}
    with runner.started(["-m", "lmprog.server", "--model", "nano", "--port", "0"]) as said:
        url, address = said["url"], said["runtime"]
        asyncio.run(closed_loop(url, 1, 2, body))  # everything is loaded and warm
        each = 1 if small else 6
        for clients in CLIENTS:
            seen, seconds = asyncio.run(closed_loop(url, clients, each, body))
            figures[f"closed loop, {clients} clients"] = summary(seen, seconds, tokens)
        own_cost = cost(url, address, each, body, 1 if small else LOAD_ROUNDS)
        figures["the gateway's own cost, 64 clients"] = own_cost
        rate = 2 * figures[f"closed loop, {CLIENTS[-1]} clients"]["tokens_per_second"] / tokens
        seen, seconds = asyncio.run(open_loop(url, rate, 2 if small else 20, body))
        figures["open loop, twice the capacity"] = {"rate": rate, **summary(seen, seconds, tokens)}
    with speaking([runner.ROOT]) as [gateway]:
        figures |= asyncio.run(by_itself(gateway["url"], gateway["pid"], body, small))
    runner.head("scenario", "figure", "value", texts=2)
    for name, found in figures.items():
        for key, value in found.items():
            runner.say(name, key, f"{value:,.3f}" if isinstance(value, float) else f"{value:,}")


SOFT_LIMIT = 1024


def idle(*, streams: int = 10_000) -> None:
    """Streams that are open and say nothing, before a gateway that was started with a soft limit of
    1,024 open files; then one more client's request. `kilobytes` are those of the gateway's process
    for a stream.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT_LIMIT, hard))
    with speaking([runner.ROOT], places=(str(2 * streams + 2),)) as [gateway]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        asyncio.run(held_open(gateway["url"], gateway["pid"], streams))


async def held_open(url: str, pid: int, streams: int) -> None:
    before = runner.Footprint.of(pid).kilobytes
    waiting = await silent_streams(url, streams)
    each = (runner.Footprint.of(pid).kilobytes - before) / streams
    open_files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    (one, *_), _ = await closed_loop(url, 1, 1, {**SHORT, "stream": True})
    runner.head("streams", "open files", "kilobytes", "one more request", texts=0)
    runner.say(streams, open_files, f"{each:.1f}", one.status)
    await cancelled(waiting)


# -- in a flood

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


async def flooded(url: str, count: int, size: int) -> list[tuple[int, float, float]]:
    """For each request its status, and the seconds since it began and since it was connected."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    where, loop = urllib.parse.urlsplit(url), asyncio.get_running_loop()
    body = json.dumps({"prompt": "x" * size, "max_tokens": 4, "stream": True}).encode()
    request = post(url, "/v1/completions", body)

    async def one() -> tuple[int, float, float]:
        made = functools.partial(_Flooding, request, time.perf_counter())
        try:
            transport, protocol = await loop.create_connection(
                made, str(where.hostname), int(where.port or 80)
            )
        except OSError:
            return 0, 0.0, 0.0
        try:
            async with asyncio.timeout(SECONDS):
                return await protocol.found
        finally:
            transport.abort()

    return await asyncio.gather(*(one() for _ in range(count)))


async def refusals(url: str, pid: int, count: int, size: int) -> str:
    """Fills all places, and floods."""
    silent = await silent_streams(url, PLACES)
    before = runner.processor_time(pid)
    client = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "benchmarks.gateway", "flood", "--client", url),
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


def flood(
    *,
    against: Path | None = None,
    requests: int = 3000,
    body: int = 200,
    rounds: int = 3,
    client: Annotated[str, runner.HIDDEN] = "",
) -> None:
    """A flood of requests before a server that is full: how soon they are refused, and what it costs.

    All places are taken by requests that say nothing. Then all others come at once, each with its
    connection, from another process, which takes time on the same cores. A request's time runs from
    its connection's beginning to its status. `work` is the processor time of the gateway's process for
    one refusal.
    """
    if client:
        print(json.dumps(asyncio.run(flooded(client, requests, body))))
        return
    trees = [Path.cwd(), *([against] if against else [])]
    with speaking(trees, ("0.02",), (str(PLACES),)) as gateways:
        for _ in range(rounds):
            for tree, one in zip(trees, gateways, strict=True):
                told = asyncio.run(refusals(one["url"], one["pid"], requests, body))
                print(f"{tree.name:<10} {told}", flush=True)


COMMANDS = runner.commands(load, pairs, idle, flood)
