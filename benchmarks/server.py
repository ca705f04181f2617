"""The HTTP server under load: closed loops, an open loop beyond what it can do, silent streams, and
its own cost.

    python -m benchmarks.server                 on nano, minutes
    python -m benchmarks.server --small         whether it runs at all, seconds
    python -m benchmarks.server --json FILE     the figures as JSON, too

Clients are in this process; their cost counts against the server's, most of all on few cores. Knows
scenarios and tables; `streams` are the clients, `speaker` is a runtime without a model.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.streams import Seen, closed_loop, open_loop, percentile, stream
from lmprog import launch, wire
from lmprog.backends.runtime_backend import RuntimeBackend

PROMPT = "The sea is wide and the ships on it are small. " * 8
CLIENTS = (1, 16, 64)
SILENT = 1000
ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.server")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    tokens = 8 if asked.small else asked.tokens
    body = {"prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    figures: dict[str, Any] = {}
    with served(["-m", "lmprog.server", "--model", "nano", "--port", "0"]) as said:
        url, address = said["url"], said["runtime"]
        asyncio.run(closed_loop(url, 1, 2, body))  # everything is loaded and warm
        each = 1 if asked.small else 6
        for clients in CLIENTS:
            seen, seconds = asyncio.run(closed_loop(url, clients, each, body))
            figures[f"closed loop, {clients} clients"] = summary(seen, seconds, tokens)
        figures["the gateway's own cost, 64 clients"] = cost(
            url, address, each, body, 1 if asked.small else ROUNDS
        )
        through = figures[f"closed loop, {CLIENTS[-1]} clients"]["tokens_per_second"]
        rate = 2 * through / tokens
        seen, seconds = asyncio.run(open_loop(url, rate, 2 if asked.small else 20, body))
        figures["open loop, twice the capacity"] = {"rate": rate, **summary(seen, seconds, tokens)}
    figures |= asyncio.run(by_itself(100 if asked.small else SILENT, body, asked.small))
    for name, found in figures.items():
        print(f"\n{name}")
        for key, value in found.items():
            print(
                f"  {key:<26} {value:,.3f}"
                if isinstance(value, float)
                else f"  {key:<26} {value:,}"
            )
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=1) + "\n")


def summary(seen: Sequence[Seen], seconds: float, tokens: int) -> dict[str, Any]:
    """Times in milliseconds. Requests that were refused count apart."""
    good = [one for one in seen if one.status == 200]
    refused = [one.whole for one in seen if one.status in (429, 503)]
    between = [gap for one in good for gap in one.between]
    made: dict[str, Any] = {
        "requests": len(good),
        "refused": len(refused),
        "failed": len(seen) - len(good) - len(refused),
        "tokens_per_second": len(good) * tokens / seconds,
    }
    parts = {
        "first": [one.first for one in good],
        "between": between,
        "whole": [one.whole for one in good],
    }
    if refused:
        parts["refusal"] = refused
    for name, values in parts.items():
        for percent in (50, 90, 99):
            made[f"{name}_p{percent}_ms"] = 1e3 * percentile(values, percent)
    return made


def cost(url: str, address: str, each: int, body: dict[str, Any], rounds: int) -> dict[str, Any]:
    """The same work through the gateway and over the bare wire, in turns; the best of each, so that
    other work on the machine counts least. Both read what they ask for in streams."""
    clients, tokens = CLIENTS[-1], int(body["max_tokens"])
    through, bare = [], []
    for _ in range(rounds):
        _, seconds = asyncio.run(closed_loop(url, clients, each, body))
        through.append(clients * each * tokens / seconds)
        bare.append(bare_wire(address, clients, each, body))
    return {
        "gateway_tokens_per_second": max(through),
        "bare_wire_tokens_per_second": max(bare),
        "share_lost": 1 - max(through) / max(bare),
    }


def bare_wire(address: str, calls: int, each: int, body: dict[str, Any]) -> float:
    """Tokens per second of the same work by one client of the wire, `calls` at once, streamed as
    well.
    """
    connection = launch.connect(address, client="benchmark")
    sampling = wire.SamplingParams(temperature=0.0, max_tokens=body["max_tokens"], ignore_eos=True)
    with RuntimeBackend(connection) as backend:
        client, began = backend.client, time.perf_counter()

        def one(number: int) -> None:
            for turn in range(each):
                branch = client.number()
                text = f"{body['prompt']} {1000 + number * each + turn}:"
                client.post(wire.Open(branch), wire.Append(branch, (wire.TextPiece(text),)))
                call = client.call(
                    wire.Generate(branch, client.number(), sampling, stream=True),
                    lambda delta: None,
                )
                outcome = call.wait(600)
                assert isinstance(outcome, wire.CallDone), outcome
                client.post(wire.Close(branch))

        threads = [threading.Thread(target=one, args=(number,)) for number in range(calls)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return calls * each * int(body["max_tokens"]) / (time.perf_counter() - began)


async def by_itself(silent: int, body: dict[str, Any], small: bool) -> dict[str, Any]:
    """The gateway before a runtime that takes no time: most tokens, and what silent streams
    cost.
    """
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        address = f"ipc://{folder}/socket"
        with (
            served(["-m", "benchmarks.speaker", "runtime", address]),
            gateway(address) as (url, pid),
        ):
            await closed_loop(url, 1, 2, body)
            seen, seconds = await closed_loop(url, 64, 2 if small else 10, body)
            figures["gateway alone, 64 clients"] = summary(seen, seconds, int(body["max_tokens"]))
            before = memory(pid)
            opened = [asyncio.Event() for _ in range(silent)]
            waiting = [
                asyncio.create_task(stream(url, {**body, "prompt": "wait", "max_tokens": 4}, event))
                for event in opened
            ]
            await asyncio.gather(*(event.wait() for event in opened))
            seen, seconds = await closed_loop(url, 1, 5 if small else 50, body)
            figures[f"gateway alone, 1 client beside {silent} silent streams"] = {
                "kilobytes_per_stream": (memory(pid) - before) / silent,
                **summary(seen, seconds, int(body["max_tokens"])),
            }
            for one in waiting:
                one.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
    return figures


@contextmanager
def gateway(address: str, *places: str) -> Iterator[tuple[str, int]]:
    with served(["-m", "benchmarks.speaker", "gateway", address, *places]) as said:
        yield said["url"], said["pid"]


@contextmanager
def served(arguments: list[str]) -> Iterator[dict[str, Any]]:
    """A process of ours, and what its first line said."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield {**json.loads(process.stdout.readline()), "pid": process.pid}
    finally:
        process.terminate()
        process.communicate(timeout=60)


def memory(pid: int) -> int:
    """Resident kilobytes of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


if __name__ == "__main__":
    main()
