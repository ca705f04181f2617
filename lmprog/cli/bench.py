"""`lmprog bench URL`: a closed loop of streaming clients against a server, and their latencies.

Each client sends a request, reads its stream to the end, and sends the next one. Times are measured
by the client: to the first text, between texts, to the end. Knows an `Endpoint` and numbers.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from lmprog.cli.http_endpoint import Endpoint
from lmprog.errors import LmprogError
from lmprog.lang.ops import threads

PERCENTS = (50, 90, 99)


@dataclass(slots=True)
class StreamTimes:
    """The times that one client or all clients measured, in seconds."""

    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    num_tokens: int = 0
    failures: list[str] = field(default_factory=list)


def run(given: argparse.Namespace) -> int:
    with Endpoint(given.url, given.api_key) as endpoint:
        model = endpoint.model_named(given.model)
    numbers = itertools.count()
    lock = threading.Lock()
    began = time.perf_counter()

    def client() -> StreamTimes:
        seen = StreamTimes()
        with Endpoint(given.url, given.api_key) as endpoint:
            while True:
                with lock:
                    number = next(numbers)
                if number >= given.requests:
                    return seen
                try:
                    _ask(endpoint, model, f"{given.prompt} ({number})", given.max_tokens, seen)
                except LmprogError as error:
                    seen.failures.append(str(error))

    clients = threads.start_all("lmprog-bench", [client] * given.clients, given.clients)
    threads.wait(clients)  # Ctrl-C ends it, and with the process its requests
    all_seen = [one.result() for one in clients]
    _print_summary(_joined(all_seen), given, model, time.perf_counter() - began)
    return int(any(seen.failures for seen in all_seen))


def _ask(endpoint: Endpoint, model: str, prompt: str, max_tokens: int, seen: StreamTimes) -> None:
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began = last = time.perf_counter()
    is_first = True
    for event in endpoint.events("/v1/completions", body):
        now = time.perf_counter()
        if event.get("usage"):
            seen.num_tokens += event["usage"]["completion_tokens"]
        if not any(choice.get("text") for choice in event["choices"]):
            continue
        (seen.first if is_first else seen.between).append(now - last)
        is_first, last = False, now
    seen.whole.append(time.perf_counter() - began)


def _joined(all_seen: Sequence[StreamTimes]) -> StreamTimes:
    joined = StreamTimes()
    for seen in all_seen:
        joined.first += seen.first
        joined.between += seen.between
        joined.whole += seen.whole
        joined.failures += seen.failures
        joined.num_tokens += seen.num_tokens
    return joined


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of the values; nan if there are none."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    rank = math.ceil(len(ordered) * percent / 100)
    return ordered[max(0, rank - 1)]


def _milliseconds(values: Sequence[float], percent: float) -> str:
    """A dash where there are none: every answer came in one piece."""
    return f"{1e3 * percentile(values, percent):,.1f}" if values else "-"


def _print_summary(
    seen: StreamTimes, given: argparse.Namespace, model: str, seconds: float
) -> None:
    if seen.failures:
        print(f"{len(seen.failures)} failed; the first: {seen.failures[0]}", file=sys.stderr)
    if not seen.whole:
        return
    print(
        f"{model}: {given.clients} clients, {len(seen.whole)} requests of {given.max_tokens} tokens"
    )
    table = Table()
    table.add_column("milliseconds")
    for percent in PERCENTS:
        table.add_column(f"p{percent}", justify="right")
    for name, values in (
        ("first text", seen.first),
        ("between texts", seen.between),
        ("whole", seen.whole),
    ):
        table.add_row(name, *(_milliseconds(values, percent) for percent in PERCENTS))
    Console().print(table)
    print(
        f"{seen.num_tokens / seconds:,.1f} tokens/s, {len(seen.whole) / seconds:,.2f} "
        f"requests/s, {seconds:.1f} s"
    )
