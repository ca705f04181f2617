"""What a checkpoint suggests is used where a request does not say, and only by those routes that
say so.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import lmprog
from lmprog import wire
from lmprog.errors import ModelError
from lmprog.runtime.assembly import suggested_sampling
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.openai import chat_completions, completions
from tests.server.fake_runtime import Fake, asking

SUGGESTED = wire.SuggestedSampling(
    temperature=0.6, top_p=0.95, top_k=20, min_p=0.01, repetition_penalty=1.05
)
ASKED: list[dict[str, Any]] = [{"role": "user", "content": "x"}]


class Suggesting(Fake):
    suggested = SUGGESTED


@pytest.fixture
def suggesting() -> Iterator[Fake]:
    with Suggesting() as fake:
        yield fake


def sampled(fake: Fake, body: dict[str, Any], **settings: Any) -> list[wire.SamplingParams]:
    """How a chat and a completion with these fields are sampled."""

    def both(gateway: Gateway) -> list[wire.SamplingParams]:
        asked = msgspec.convert({"messages": ASKED, **body}, chat_completions.ChatBody)
        text = msgspec.convert({"prompt": "x", **body}, completions.CompletionBody)
        (prompt,) = completions.understood(gateway, text).prompts
        return [chat_completions.understood(gateway, asked).prompt.sampling, prompt.sampling]

    async def run() -> list[wire.SamplingParams]:
        async with asking(fake, **settings) as (_, gateway):
            return both(gateway)

    return asyncio.run(run())


def values(sampling: wire.SamplingParams) -> tuple[float, ...]:
    return (
        sampling.temperature,
        sampling.top_p,
        sampling.top_k,
        sampling.min_p,
        sampling.repetition_penalty,
    )


def test_what_a_request_does_not_say_is_as_the_checkpoint_suggests(suggesting: Fake) -> None:
    for sampling in sampled(suggesting, {}):
        assert values(sampling) == (0.6, 0.95, 20, 0.01, 1.05)


def test_what_a_request_says_counts_also_where_it_switches_off(suggesting: Fake) -> None:
    body = {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}
    for sampling in sampled(suggesting, body):
        assert values(sampling) == (0.0, 1.0, -1, 0.0, 1.0)
    for sampling in sampled(suggesting, {"temperature": 1.5}):
        assert values(sampling) == (1.5, 0.95, 20, 0.01, 1.05)


def test_an_operator_can_leave_suggestions_alone(suggesting: Fake) -> None:
    for sampling in sampled(suggesting, {}, generation_config="none"):
        assert values(sampling) == (1.0, 1.0, -1, 0.0, 1.0)


def test_without_suggestions_everything_is_as_openai_has_it(fake: Fake) -> None:
    for sampling in sampled(fake, {}):
        assert sampling == wire.SamplingParams(max_tokens=sampling.max_tokens)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": ASKED}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {"messages": ASKED, "max_tokens": 16}),
    ],
)
def test_every_dialect_heeds_them(path: str, body: dict[str, Any]) -> None:
    """The answer is the greedy one, though nobody asked for that."""

    class Sure(Fake):
        suggested = wire.SuggestedSampling(temperature=0.0)

    async def run(fake: Fake) -> list[Any]:
        async with asking(fake) as (client, _):
            found = []
            for more in ({}, {"temperature": 0}):
                answer = (await client.post(path, json={**body, **more})).json()
                found.append(answer.get("choices") or answer.get("output") or answer["content"])
            return [json.dumps(one) for one in found]

    def text(one: str) -> str:
        parts = json.loads(one)
        return str(
            parts[0].get("text")
            or parts[0].get("message", {}).get("content")
            or parts[0].get("content")
        )

    with Sure() as fake:
        one, other = asyncio.run(run(fake))
    assert text(one) == text(other)


def test_a_checkpoints_file_is_read_as_it_stands(tmp_path: Path) -> None:
    assert suggested_sampling(None) == suggested_sampling(tmp_path) == wire.SuggestedSampling()
    file = tmp_path / "generation_config.json"
    file.write_text(
        '{"temperature": 0.6, "top_k": 20, "top_p": null, "do_sample": true, "eos_token_id": '
        "[1, 2]}"
    )
    assert suggested_sampling(tmp_path) == wire.SuggestedSampling(temperature=0.6, top_k=20)


def test_the_shipped_model_suggests_nothing() -> None:
    assert suggested_sampling(Path(lmprog.__file__).parent / "nano") == wire.SuggestedSampling()


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"temperature": "hot"}', '{"top_p": 0}', '{"top_k": 0.5}']
)
def test_a_file_that_makes_no_sense_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(ModelError, match=r"generation_config\.json"):
        suggested_sampling(tmp_path)
