"""Gateway and runtime that have answered harmful bodies are hardly larger than before."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.runner import Footprint, children_of
from lmprog.heap import GROWN, _glibc
from lmprog.linux import is_linux
from tests.server.conftest import Served, start, stop
from tests.server.live import Live

pytestmark = pytest.mark.skipif(
    not is_linux() or _glibc() is None, reason="another allocator, or none that tells"
)
MIB = 1 << 20
SIZE = 6 * MIB
MOST_GROWN = 2.5 * GROWN / MIB
"""Megabytes that all bodies together may leave. They left 57 and 72 until memory was given back."""
PATIENCE = 60.0

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "a text": ("/v1/completions", {"prompt": "word " * (SIZE // 5)}),
    "a wide text": ("/v1/completions", {"prompt": "a" * SIZE + "🙂"}),
    "another chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "é" * (SIZE // 2)}]}),
    "ids": ("/v1/completions", {"prompt": [7] * 1_400_000}),
    "names": ("/v1/completions", {"prompt": "a", "logit_bias": {str(n): 1 for n in range(190_000)}}),
    "tools": ("/v1/responses", {"input": "a", "tools": [TOOL] * 30_000}),
    "texts": ("/tokenize", {"prompt": ["text " * 1000] * (SIZE // 5000)}),
}  # fmt: skip


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    one = start("--model", "nano", "--options", json.dumps({"kv_memory_mb": 16}))
    yield one
    assert stop(one) == 0


def sizes(served: Served) -> list[float]:
    """Megabytes of gateway and runtime."""
    gateway = served.process.pid
    return [Footprint.of(pid).kilobytes / 1024 for pid in (gateway, *children_of(gateway))]


def test_large_bodies_leave_both_processes_small(served: Served) -> None:
    live = Live(served.url)
    try:
        grown = growth(served, live)
    finally:
        live.http.close()
    assert max(grown) < MOST_GROWN, grown


def growth(served: Served, live: Live) -> list[float]:
    """After a while, or less."""
    prompt = [64 + 7 * n % 900 for n in range(1500)]
    for _ in range(3):  # what every request needs is there before
        live.ok("/v1/completions", prompt=prompt, max_tokens=2)
    before = sizes(served)
    for path, body in list(BODIES.values()) * 2:
        raw = json.dumps(body, ensure_ascii=False).encode()
        answer = live.http.post(path, content=raw, headers={"content-type": "application/json"})
        assert answer.status_code in (200, 400, 413), answer.text[:200]
    deadline, grown = time.monotonic() + PATIENCE, [MOST_GROWN]
    while max(grown) >= MOST_GROWN and time.monotonic() < deadline:
        time.sleep(0.2)
        grown = [now - then for now, then in zip(sizes(served), before, strict=True)]
    return grown
