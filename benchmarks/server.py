"""The HTTP server under load: closed loops, an open loop beyond what it can do, silent streams, and
its own cost.

    python -m benchmarks.server                 on nano, minutes
    python -m benchmarks.server --small         whether it runs at all, seconds

Clients are in this process; their cost counts against the server's, most of all on few cores. Knows
scenarios and tables; `streams` are the clients, `speaker` is a runtime without a model.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import runner
from benchmarks.gateway_pairs import speaking
from benchmarks.streams import Seen, cancelled, closed_loop, open_loop, silent_streams
from lmprog import launch, wire
from lmprog.backends.runtime_backend import RuntimeBackend

PROMPT = "The sea is wide and the ships on it are small. " * 8
CLIENTS = (1, 16, 64)
ROUNDS = 3


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


@runner.command
def main(*, small: bool = False, tokens: int = 64) -> None:
    tokens = 8 if small else tokens
    body = {"prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    figures: dict[str, Any] = {}
    with runner.started(["-m", "lmprog.server", "--model", "nano", "--port", "0"]) as said:
        url, address = said["url"], said["runtime"]
        asyncio.run(closed_loop(url, 1, 2, body))  # everything is loaded and warm
        each = 1 if small else 6
        for clients in CLIENTS:
            seen, seconds = asyncio.run(closed_loop(url, clients, each, body))
            figures[f"closed loop, {clients} clients"] = summary(seen, seconds, tokens)
        own_cost = cost(url, address, each, body, 1 if small else ROUNDS)
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
