"""Every sampling option on its way to another service: in the request under the service's name for
it where the table says that the service takes it, else refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
import pytest

from lmprog import wire
from lmprog.backends.blackbox.anthropic_backend import AnthropicApi
from lmprog.backends.blackbox.api import Api, ApiRequest, JsonBody
from lmprog.backends.blackbox.dialects import DIALECTS
from lmprog.backends.blackbox.openai_api import ApiService, OpenAIApi
from lmprog.backends.blackbox.programs_api import ProgramsApi
from lmprog.backends.blackbox.retry_policy import RetryPolicy
from lmprog.backends.blackbox.server_backend import NativeApi
from lmprog.backends.blackbox.transcript import (
    ChatPrompt,
    PiecesPrompt,
    TextPrompt,
    TranscriptMessage,
)
from lmprog.errors import NotSupported
from tests.server.test_sampling_options import as_json, value_of

CHAT = ChatPrompt((TranscriptMessage("user", "x"),))


class Heard(Exception):
    """The request that was sent."""


class Recording:
    """A transport that answers nothing."""

    async def post(self, path: str, body: JsonBody) -> Mapping[str, Any]:
        raise Heard(body)

    async def open(self, path: str, body: JsonBody) -> AsyncIterator[Mapping[str, Any]]:
        raise Heard(body)

    async def close(self) -> None:
        pass


def sent(api: Api, prompt: Any, sampling: wire.SamplingParams) -> JsonBody | None:
    """The request's body; None where it is refused."""
    try:
        asyncio.run(api.generate(ApiRequest(prompt, sampling), None))
    except Heard as heard:
        body: JsonBody = heard.args[0]
        return body
    except NotSupported:
        return None
    raise AssertionError("neither sent nor refused")


def only(name: str) -> wire.SamplingParams:
    return msgspec.structs.replace(wire.SamplingParams(), **{name: value_of(name)})


@pytest.mark.parametrize("name", wire.SAMPLING_OPTIONS)
@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
def test_a_chat_has_the_options_that_its_service_takes_and_no_others(
    dialect: Any, name: str
) -> None:
    api = OpenAIApi(ApiService("m", "chat", dialect), Recording(), RetryPolicy())
    body = sent(api, CHAT, only(name))
    service = "openai" if dialect.name == "plain" else dialect.name
    if service not in wire.SAMPLING_OPTIONS[name].option.services:
        assert body is None
        return
    assert body is not None
    if name == "logprobs":
        assert (body["logprobs"], body["top_logprobs"]) == (True, value_of(name))
    else:
        spelling = dialect.max_tokens if name == "max_tokens" else name
        assert body[spelling] == as_json(value_of(name))


@pytest.mark.parametrize("name", wire.SAMPLING_OPTIONS)
def test_anthropics_messages_have_the_options_that_it_takes(name: str) -> None:
    body = sent(AnthropicApi("m", Recording(), RetryPolicy()), CHAT, only(name))
    if name in ("seed", "n"):  # not sent, and as many requests as results
        assert body is not None
        assert name not in body
    elif "anthropic" not in wire.SAMPLING_OPTIONS[name].option.services:
        assert body is None
    else:
        assert body is not None
        assert body[{"stop": "stop_sequences"}.get(name, name)] == as_json(value_of(name))


@pytest.mark.parametrize("name", wire.SAMPLING_OPTIONS)
def test_sglangs_own_route_has_every_option_under_its_name(name: str) -> None:
    body = sent(NativeApi("m", 64, Recording(), RetryPolicy()), TextPrompt("x"), only(name))
    theirs = {
        "max_tokens": "max_new_tokens",
        "min_tokens": "min_new_tokens",
        "seed": "sampling_seed",
    }
    match name:
        case "prompt_logprobs" | "jump" | "allowed_token_ids" | "bad_words" | "beams" | "faithful":
            assert body is None
        case "prompt_logprobs_start":
            assert body is not None  # without prompt_logprobs it asks for nothing
        case "logprobs":
            assert body is not None
            assert body["top_logprobs_num"] == value_of(name)
        case _:
            assert body is not None
            said = body["sampling_params"][theirs.get(name, name)]
            assert said == as_json(value_of(name))


@pytest.mark.parametrize("name", wire.SAMPLING_OPTIONS)
def test_a_program_sent_to_a_server_has_every_option_that_it_takes(name: str) -> None:
    body = sent(
        ProgramsApi("m", 64, Recording(), RetryPolicy()),
        PiecesPrompt((wire.TextPiece("x"),)),
        only(name),
    )
    if name == "prompt_logprobs_start":
        assert body is not None  # without prompt_logprobs it asks for nothing
    elif name != "prompt_logprobs" and "lmprog" not in wire.SAMPLING_OPTIONS[name].option.services:
        assert body is None
    elif name == "beams":
        assert body is not None
        gen = body["ops"][-1]
        assert (gen["use_beam_search"], gen["beam_width"]) == (True, value_of(name).width)
    else:
        assert body is not None
        assert body["ops"][-1][name] == as_json(value_of(name))
