"""What the log holds: who asked for what and how it ended, and nothing of what was said."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.server.fake_runtime import Fake, asking

SECRET = "zebra-crossing-42"
CHAT = [{"role": "user", "content": SECRET}]
REQUESTS: tuple[tuple[str, dict[str, object]], ...] = (
    ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 3}),
    ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 3, "stream": True}),
    ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 100_000}),
    ("/v1/chat/completions", {"messages": SECRET}),
    (
        "/v1/completions",
        {"prompt": SECRET, "max_tokens": 3, "stop": SECRET, "echo": True, "unknown": SECRET},
    ),
    ("/v1/responses", {"input": SECRET, "max_output_tokens": 16}),
    ("/v1/messages", {"messages": CHAT, "max_tokens": 3}),
    (
        "/generate",
        {"text": SECRET, "sampling_params": {"max_new_tokens": 3, "regex": "(" + SECRET}},
    ),
    ("/tokenize", {"prompt": SECRET}),
)


def test_prompts_and_answers_are_never_logged(fake: Fake, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> list[int]:
        async with asking(fake) as (client, _):
            return [(await client.post(path, json=body)).status_code for path, body in REQUESTS]

    caplog.set_level(logging.DEBUG, logger="lmprog")
    assert asyncio.run(run()) == [200, 200, 400, 400, 200, 200, 200, 400, 200]
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("lmprog")]
    assert sum("POST /v1/chat/completions" in line for line in lines) == 4
    assert not any(SECRET in line for line in lines)
