"""The real sglang-router before two of our servers: what it finds there, and what programs lose."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

import lmprog
from tests.server.process import PATIENCE, Served, serving

MODEL = str(Path(lmprog.__file__).parent / "nano")
"""As a folder, where the router finds the tokenizer: by the name it would ask a hub for it."""
OPTIONS = ("--threads", "1", "--kv-memory-mb", "64")


def prompts() -> list[str]:
    """Of eight families with a long prefix each, in random order."""
    draw = random.Random(3)
    words = ["river", "stone", "green", "walk", "seven", "letter", "house", "morning"]
    found = []
    for family in range(8):
        shared = f"Family {family}: " + " ".join(draw.choices(words, k=90))
        found += [f"{shared} and then number {draw.randrange(10**6)}" for _ in range(6)]
    draw.shuffle(found)
    return found


def cached(url: str, texts: Sequence[str]) -> float:
    """The share of prompt tokens that were found in a cache."""
    needed = hits = 0
    with httpx2.Client(base_url=url, timeout=PATIENCE, trust_env=False) as http:
        for text in texts:
            body = {"model": MODEL, "prompt": text, "max_tokens": 2, "temperature": 0}
            answer = http.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            usage = answer.json()["usage"]
            needed += usage["prompt_tokens"]
            hits += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return hits / needed


def free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


@contextmanager
def router(servers: Sequence[Served], log: Path) -> Iterator[str]:
    """The recipe of docs/scale-routers.md; ready with all servers."""
    port, metrics = free_ports()
    command = [sys.executable, "-m", "sglang_router.launch_router"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics)]
    command += ["--policy", "cache_aware", "--health-check-endpoint", "/ready"]
    command += ["--health-check-interval-secs", "1"]
    command += ["--worker-urls", *(one.url for one in servers)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + PATIENCE
        while len(healthy(url)) < len(servers):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(PATIENCE)


def healthy(url: str) -> list[str]:
    """Servers that the router uses."""
    try:
        answer = httpx2.get(f"{url}/workers", trust_env=False)
    except httpx2.TransportError:
        return []
    if answer.status_code != 200:
        return []
    return [one["url"] for one in answer.json()["workers"] if one["is_healthy"]]


def test_two_servers_behind_a_router_find_as_much_as_one_and_programs_hear_what_they_lose(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("sglang_router", reason="sglang-router is not installed")
    texts = prompts()
    with serving(MODEL, *OPTIONS) as one, serving(MODEL, *OPTIONS) as other:
        alone = cached(one.url, texts)
        one.http.post("/flush_cache")
        with router([one, other], tmp_path / "router.log") as url:
            assert cached(url, texts) >= 0.99 * alone > 0.5
            with lmprog.RuntimeEndpoint(url) as backend:
                assert backend.kind == "vllm"
                assert backend.lost is not None
                assert "no route for whole programs" in caplog.text

                @lmprog.function
                def program(s: lmprog.Branch) -> list[str]:
                    s += "Once upon a time"
                    return [s.gen(max_tokens=4, temperature=0).value, s.select([" a", " b"]).value]

                through = program.run(backend=backend).value
            with lmprog.RuntimeEndpoint(one.url) as backend:
                assert (backend.kind, backend.lost) == ("lmprog", None)
                assert program.run(backend=backend).value == through
            one.signal(signal.SIGTERM)  # drains: /ready is 503
            assert one.process.wait(PATIENCE) == 0
            deadline = time.monotonic() + PATIENCE
            while healthy(url) != [other.url]:  # until then a request may meet the one that ended
                assert time.monotonic() < deadline
                time.sleep(0.1)
            cached(url, texts[:8])  # each of them is answered
