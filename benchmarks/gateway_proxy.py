"""What Serve's own HTTP proxy costs beside our gateway alone, before the same replicas on Ray.

    python -m benchmarks.gateway_proxy [times]

A Ray cluster of this machine with two replicas of nano, one gateway behind Serve's proxy and one
that joined (`lmprog serve --join`), which are asked in turns. Figures are processor milliseconds
of all processes on a request's way but the runtimes: the gateway, and on the other way the proxy
and the gateway's actor.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import httpx2

from benchmarks import runner
from tests.ray.cluster import ENVIRONMENT, OPTIONS, offspring, running_cluster, until
from tests.server.process import serving

TIMES, STREAMED = 60, 64
ROUNDS = 5


def named(pids: set[int], *words: str) -> set[int]:
    """Those whose titles have one of the words."""
    return {
        pid
        for pid in pids
        if any(word in Path(f"/proc/{pid}/cmdline").read_text() for word in words)
    }


def ask(http: httpx2.Client) -> None:
    """One token."""
    body = {"prompt": "Once", "max_tokens": 1, "temperature": 0}
    assert http.post("/v1/completions", json=body).status_code == 200


def stream(http: httpx2.Client) -> None:
    """Up to an event a token."""
    body = {"prompt": "Once", "max_tokens": STREAMED, "stream": True, "ignore_eos": True, "seed": 1}
    with http.stream("POST", "/v1/completions", json=body) as response:
        assert "data: [DONE]" in list(response.iter_lines())


def health(http: httpx2.Client) -> None:
    """Nothing of a runtime."""
    assert http.get("/health").status_code == 200


Way = tuple[httpx2.Client, set[int]]


def cost(way: Way, work: Callable[[httpx2.Client], None], times: int) -> tuple[float, float]:
    """Processor milliseconds of the way's processes for one `work`, and how long it took."""
    http, pids = way
    began, spent = time.perf_counter(), runner.processor_time(*pids)
    for _ in range(times):
        work(http)
    spent = runner.processor_time(*pids) - spent
    return 1e3 * spent / times, 1e3 * (time.perf_counter() - began) / times


@runner.command
def main(times: int = TIMES) -> None:
    """Prints the table."""
    os.environ.update(ENVIRONMENT)
    import ray
    from ray import serve

    import lmprog.ray

    with running_cluster() as proxy:
        app = lmprog.ray.with_gateways(lmprog.ray.app("nano", replicas=2, **OPTIONS))
        serve.run(app, name="tales", route_prefix="/")
        os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
        behind = named(offspring(), "ProxyActor", "Gateway")
        assert len(behind) == 2, "the proxy, and the gateway's actor"
        with serving("--join", "ray:tales") as gateway:
            ways: dict[str, Way] = {
                "our gateway": (gateway.http, {gateway.process.pid}),
                "Serve's proxy": (httpx2.Client(base_url=proxy, timeout=120.0), behind),
            }
            until(lambda: ways["Serve's proxy"][0].get("/ready").status_code == 200, "ready")
            runner.head("what", "by", "processor ms", "ms until it is over", texts=2)
            for work in (health, ask, stream):
                each = max(1, times // ROUNDS)
                sides = {name: partial(cost, way, work, each) for name, way in ways.items()}
                for name, pairs in runner.in_turn(sides, ROUNDS).items():
                    spent, took = (median(one) for one in zip(*pairs, strict=True))
                    runner.say(work.__name__, name, f"{spent:.1f}", f"{took:.1f}")
