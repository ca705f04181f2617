"""Requests of every kind, none like the one before: what gateway and runtime hold meanwhile.

Chats, completions, streams, `/generate`, responses, Anthropic's messages, programs, required tools,
schemas, patterns and choices that never come twice, errors of many sorts, clients that leave. Knows
HTTP; `benchmarks.endurance mixed` is the command.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
import urllib.parse
from collections import Counter
from typing import Any

import httpx2

from benchmarks.lasting_loads import AT_ONCE, SAMPLES, held, slope
from benchmarks.served_process import served_nano

Json = dict[str, Any]
LEAVES = "leaves"
"""Not a path: the client of a stream goes after its first bytes."""
_WORDS = [
    "sea",
    "ship",
    "wind",
    "sail",
    "harbour",
    "rope",
    "anchor",
    "storm",
    "calm",
    "star",
    "north",
    "lamp",
]


def drawn(number: int) -> tuple[str, Json | bytes, range]:
    """The request of this number: its path, its body, and the statuses that are right."""
    draw = random.Random(number)
    text = f"{number}: " + " ".join(draw.choice(_WORDS) for _ in range(draw.randrange(4, 40)))
    few = {"max_tokens": 6, "temperature": 0}
    asked = {"messages": [{"role": "user", "content": text}], **few}
    prompt = {"prompt": text, **few}
    schema = {
        "type": "object",
        "properties": {f"{draw.choice(_WORDS)}{number}": {"enum": [number, draw.random()]}},
        "additionalProperties": False,
    }
    function = {"name": f"f{number}", "parameters": schema}
    tools = [{"type": "function", "function": function}]
    named = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    ops = [
        {"op": "open", "branch": "a"},
        {"op": "append", "branch": "a", "pieces": text},
        {"op": "fork", "branch": "a", "into": ["b"]},
        {"op": "gen", "branch": "b", "call": "c", "max_tokens": 4},
        {"op": "select", "branch": "a", "call": "d", "choices": [f"{number}", "none"]},
    ]
    choices = [f"{word} {number}" for word in _WORDS]
    good, wrong = range(200, 201), range(400, 500)
    kinds: list[tuple[str, Json | bytes, range]] = [
        ("/v1/chat/completions", asked, good),
        ("/v1/chat/completions", {**asked, "stream": True}, good),
        ("/v1/chat/completions", {**asked, "max_tokens": 64, "response_format": named}, good),
        (
            "/v1/chat/completions",
            {**asked, "max_tokens": 96, "tools": tools, "tool_choice": "required", "stream": True},
            good,
        ),
        ("/v1/completions", {**prompt, "n": 2, "logprobs": 2, "user": f"u{number}"}, good),
        ("/v1/completions", {**prompt, "stream": True, "stop": [f"{number}"]}, good),
        ("/v1/completions", {**prompt, "max_tokens": 32, "regex": f"[a-z]{{2,9}}{number}"}, good),
        (
            "/v1/completions",
            {**prompt, "max_tokens": 64, "structured_outputs": {"choice": choices}},
            good,
        ),
        (
            "/generate",
            {"text": text, "sampling_params": {"max_new_tokens": 4}, "rid": f"r{number}"},
            good,
        ),
        ("/v1/responses", {"input": text, "max_output_tokens": 6}, good),
        ("/v1/messages", {"model": "nano", "max_tokens": 6, "messages": asked["messages"]}, good),
        ("/v1/programs", {"ops": ops}, good),
        (LEAVES, {**prompt, "max_tokens": 200, "stream": True, "ignore_eos": True}, good),
        ("/v1/completions", {**prompt, f"unknown_{number}": 1}, good),
        ("/v1/completions", {**prompt, "temperature": f"{number}"}, wrong),
        ("/v1/completions", {**prompt, "regex": f"({number}"}, wrong),
        ("/v1/chat/completions", {**asked, "model": f"m{number}"}, wrong),
        (f"/v1/nothing/{number}", asked, wrong),
        ("/v1/completions", b'{"prompt": "%d' % number, wrong),
    ]
    return kinds[number % len(kinds)]


async def _ask(url: str, number: int, seen: Counter[str]) -> None:
    path, body, right = drawn(number)
    where = urllib.parse.urlsplit(url)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    to = "/v1/completions" if path == LEAVES else path
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write(
        f"POST {to} HTTP/1.1\r\nhost: {where.netloc}\r\ncontent-type: application/json\r\n"
        f"x-request-id: mixed-{number}\r\nconnection: close\r\n"
        f"content-length: {len(data)}\r\n\r\n".encode()
        + data
    )
    head = await reader.readuntil(b"\r\n\r\n")
    if path != LEAVES:
        await reader.read()
    writer.close()
    status = int(head.split(b" ", 2)[1])
    seen["as expected" if status in right else f"{status} for {path}"] += 1


async def _some(url: str, numbers: range, seen: Counter[str]) -> None:
    left = iter(numbers)

    async def client() -> None:
        for number in left:
            await _ask(url, number, seen)

    async with asyncio.TaskGroup() as clients:
        for _ in range(AT_ONCE):
            clients.create_task(client())


def mixed(count: int) -> bool:
    """`count` requests of eight clients on nano; what both processes hold after each tenth."""
    seen = Counter[str]()
    each = max(count // SAMPLES, 1)
    with served_nano("--kv-memory-mb", "16") as server:
        asyncio.run(_some(server.url, range(each), Counter[str]()))
        runtime_pid = server.runtime_pid()
        figures = [held(server)]
        began = time.monotonic()
        for sample in range(1, SAMPLES + 1):
            asyncio.run(_some(server.url, range(sample * each, (sample + 1) * each), seen))
            figures.append(held(server))
            print(
                f"{sample * each:,}: gateway {figures[-1][0]}; runtime {figures[-1][1]}", flush=True
            )
        seconds = time.monotonic() - began
        is_same = server.runtime_pid() == runtime_pid
        httpx2.post(f"{server.url}/flush_cache", timeout=60, trust_env=False).raise_for_status()
        flushed = held(server)
    later = figures[SAMPLES // 2 :]
    slopes = [slope([one[at].kilobytes for one in later], each) for at in (0, 1)]
    print(f"after a flush: gateway {flushed[0]}; runtime {flushed[1]}")
    print(
        f"{dict(seen)} in {seconds:.0f} s, one runtime: {is_same}; over the second half the gateway "
        f"grew by {slopes[0]:.0f} kB and the runtime by {slopes[1]:.0f} kB for 1,000 requests"
    )
    kept = all(
        now.files <= then.files + 4 and now.threads <= then.threads + 4
        for then, now in zip(figures[0], figures[-1], strict=True)
    )
    return set(seen) == {"as expected"} and is_same and kept
