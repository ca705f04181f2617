"""Every sampling option, through every route that can say it, is in the parameters with which the
sampler is asked; and nothing else changes.

Values are made from the table of options, so an option that is added there is tested here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import httpx2
import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from lmprog import wire
from lmprog.lang.ops.sampling import ALIASES, SamplingKeywords, sampling_of
from lmprog.runtime.scheduling.sampling_requests import SampleRequest, ScoreRequest, StepResults
from lmprog.server.http import option_fields
from lmprog.server.http.limits import LIMITS, value_type
from lmprog.simulation.plain_sampler import PlainSampler
from tests.server.fake_runtime import Fake, asking

Json = dict[str, Any]
OPTIONS = wire.SAMPLING_OPTIONS
CHAT: Json = {"messages": [{"role": "user", "content": "tell me"}], "max_tokens": 5}
GENERATE: Json = {"text": "tell me", "sampling_params": {"max_new_tokens": 5}}
PROGRAM: Json = {
    "ops": [
        {"op": "open", "branch": "b"},
        {"op": "append", "branch": "b", "pieces": "tell me"},
        {"op": "gen", "branch": "b", "call": "c", "max_tokens": 5},
    ]
}


@dataclass(frozen=True)
class RequestRoute:
    """`put` adds fields to a copy of `base`."""

    path: str
    dialect: wire.Dialect
    base: Json
    put: Callable[[Json, Json], None]


def _beside(body: Json, fields: Json) -> None:
    body.update(fields)


def _in_params(body: Json, fields: Json) -> None:
    body["sampling_params"].update(fields)


def _in_gen(body: Json, fields: Json) -> None:
    body["ops"][2].update(fields)


ROUTES = (
    RequestRoute("/v1/chat/completions", "openai", CHAT, _beside),
    RequestRoute("/v1/completions", "openai", {"prompt": "tell me", "max_tokens": 5}, _beside),
    RequestRoute("/v1/programs", "openai", PROGRAM, _in_gen),
    RequestRoute("/v1/responses", "responses", {"input": "x", "max_output_tokens": 5}, _beside),
    RequestRoute("/v1/messages", "anthropic", CHAT, _beside),
    RequestRoute("/generate", "sglang", GENERATE, _in_params),
)
OF_OTHERS: dict[wire.Dialect, dict[str, str]] = {
    "openai": {},
    "responses": {"max_tokens": "max_output_tokens"},
    "anthropic": {"stop": "stop_sequences"},
    "sglang": {
        "max_tokens": "max_new_tokens",
        "min_tokens": "min_new_tokens",
        "seed": "sampling_seed",
    },
}
"""Spellings that the documents of OpenAI, Anthropic and SGLang have; all others are the names."""
COMPOSED: list[tuple[str, Json, Json]] = [
    ("/v1/chat/completions", {"logprobs": True}, {"logprobs": 0}),
    ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 3}, {"logprobs": 3}),
    ("/v1/chat/completions", {"max_tokens": None, "max_completion_tokens": 4}, {"max_tokens": 4}),
    ("/v1/completions", {"logprobs": 2}, {"logprobs": 2}),
    ("/v1/completions", {"logprobs": 2, "echo": True}, {"logprobs": 2, "prompt_logprobs": 2}),
    ("/v1/completions", {"best_of": 3}, {"n": 3, "logprobs": 0}),
    ("/v1/programs", {"logprobs": 2}, {"logprobs": 2}),
    ("/v1/responses", {"include": ["message.output_text.logprobs"]}, {"logprobs": 0}),
    ("/v1/responses", {"top_logprobs": 3}, {"logprobs": 3}),
]
SGLANGS: list[tuple[Json, Json]] = [
    ({"return_logprob": True}, {"logprobs": 0}),
    ({"return_logprob": True, "top_logprobs_num": 2}, {"logprobs": 2}),
    (
        {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 3},
        {"logprobs": 2, "prompt_logprobs": 2, "prompt_logprobs_start": 3},
    ),
]


class Listening(PlainSampler):
    """Keeps the parameters of all requests."""

    heard: list[wire.SamplingParams]

    def sample(
        self,
        logits: NDArray[np.float32],
        picks: tuple[SampleRequest, ...],
        scores: tuple[ScoreRequest, ...],
    ) -> StepResults:
        self.heard.extend(pick.sampling for pick in picks)
        return super().sample(logits, picks, scores)


class Heard(Fake):
    """A fake runtime whose sampler keeps what it is asked."""

    def __init__(self) -> None:
        self.heard: list[wire.SamplingParams] = []
        self.sampler = type("Sampler", (Listening,), {"heard": self.heard})
        super().__init__()


class Asked:
    """One gateway before such a runtime, for all requests."""

    def __init__(self, runtime: Heard, loop: asyncio.Runner, client: httpx2.AsyncClient) -> None:
        self.heard = runtime.heard
        self._loop = loop
        self._client = client

    def post(self, path: str, body: Json) -> httpx2.Response:
        return self._loop.run(self._client.post(path, json=body))


@pytest.fixture(scope="module")
def heard() -> Iterator[Asked]:
    with Heard() as runtime, asyncio.Runner() as loop:
        gateway = asking(runtime)
        client, _ = loop.run(gateway.__aenter__())
        yield Asked(runtime, loop, client)
        loop.run(gateway.__aexit__(None, None, None))


def value_of(name: str) -> Any:
    """Another value than the default, inside every range of the option."""
    line = OPTIONS[name]
    if isinstance(line.default, bool):
        return not line.default
    if get_origin(line.type) is Literal:
        return next(value for value in get_args(line.type) if value != line.default)
    if name == "beams":
        return wire.Beams(4)
    shape = msgspec.json.schema(value_type(line))
    if shape["type"] == "array":
        as_json = shape["items"]
        if as_json["type"] == "array":
            return ((7, 1.5), (9, -2.25))
        return (7, 9) if as_json["type"] == "integer" else ("zzz", "yyy")
    limit = LIMITS[name]
    high = min(limit.maximum, 4)
    value = high if isinstance(limit.minimum, int) else limit.minimum + (high - limit.minimum) / 3
    assert value != line.default
    return value


def as_json(value: Any) -> Any:
    if isinstance(value, tuple):
        is_bias = isinstance(value[0], tuple)
        return {str(token): bias for token, bias in value} if is_bias else list(value)
    return value


def sampled(heard: Asked, route: RequestRoute, fields: Json) -> wire.SamplingParams:
    """What the sampler is asked for a request with these fields; the same for all its tokens."""
    body = msgspec.json.decode(msgspec.json.encode(route.base))
    route.put(body, fields)

    heard.heard.clear()
    answer = heard.post(route.path, body)
    assert answer.status_code == 200, answer.text
    assert "warning" not in answer.headers
    (one,) = set(map(msgspec.json.encode, heard.heard))
    return msgspec.json.decode(one, type=wire.SamplingParams)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_every_option_of_every_route_reaches_the_sampler_and_changes_nothing_else(
    heard: Asked, route: RequestRoute
) -> None:
    plain = sampled(heard, route, {})
    num_said = 0
    for name, line in OPTIONS.items():
        if line.spelling(route.dialect) is None:
            continue
        spelling = OF_OTHERS[route.dialect].get(name, name)
        expected = msgspec.structs.replace(plain, **{name: value_of(name)})
        assert sampled(heard, route, {spelling: as_json(value_of(name))}) == expected, name
        num_said += 1
    assert num_said >= len(OPTIONS) - 5


@pytest.mark.parametrize(("path", "fields", "changes"), COMPOSED)
def test_options_that_are_made_of_several_fields_reach_the_sampler(
    heard: Asked, path: str, fields: Json, changes: Json
) -> None:
    route = next(route for route in ROUTES if route.path == path)
    expected = msgspec.structs.replace(sampled(heard, route, {}), **changes)
    assert sampled(heard, route, fields) == expected


@pytest.mark.parametrize(("fields", "changes"), SGLANGS)
def test_sglangs_log_probabilities_reach_the_sampler(
    heard: Asked, fields: Json, changes: Json
) -> None:
    route = RequestRoute("/generate", "sglang", GENERATE, _beside)
    expected = msgspec.structs.replace(sampled(heard, route, {}), **changes)
    assert sampled(heard, route, fields) == expected


def test_what_a_dialect_cannot_say_is_said_to_be_so() -> None:
    cannot = {
        dialect: [name for name, line in OPTIONS.items() if line.option.composed.get(dialect) == ""]
        for dialect in wire.DIALECTS
    }
    assert cannot == {
        "openai": ["prompt_logprobs_start"],
        "responses": ["prompt_logprobs", "prompt_logprobs_start", "n", "beams"],
        "anthropic": ["logprobs", "prompt_logprobs", "prompt_logprobs_start", "n", "beams"],
        "sglang": ["beams"],
    }


def test_both_ends_of_every_range_reach_the_wire() -> None:
    """The ranges of requests lie within those of the wire, once they are translated."""
    for name, line in OPTIONS.items():
        spelling = line.spelling("openai")
        if spelling is None or name not in LIMITS or LIMITS[name].unit == "items":
            continue
        for value in (LIMITS[name].minimum, LIMITS[name].maximum):
            body = option_fields.OpenAIOptions(**{spelling: value})
            decided = {"max_tokens": None} if name in ("max_tokens", "min_tokens") else {}
            made = option_fields.sampling_of(body, "openai", decided)
            assert msgspec.convert(msgspec.to_builtins(made), wire.SamplingParams) == made, name


def test_negative_seeds_and_a_zero_of_top_p_or_top_k_have_their_meaning() -> None:
    body = option_fields.OpenAIOptions(seed=-1, top_p=0.0, top_k=0)
    made = option_fields.sampling_of(body, "openai", {})
    assert (made.seed, made.top_p, made.top_k) == (2**63 - 1, 1e-6, -1)


def test_suggested_options_have_the_names_and_ranges_of_the_table() -> None:
    schema = msgspec.json.schema(wire.SuggestedSampling)["$defs"]["SuggestedSampling"]
    for name, suggestion in schema["properties"].items():
        assert msgspec.json.schema(OPTIONS[name].type) in suggestion["anyOf"], name


def test_the_languages_keywords_are_the_options() -> None:
    """`prompt_logprobs_start` and `max_tokens` have their own ways there. A new option is declared
    in `SamplingKeywords`, where type checkers of programs read it.
    """
    own = {"return_logprob", "top_logprobs_num", "logprob_start_len", "return_text_in_logprobs"}
    known = set(SamplingKeywords.__annotations__) - own - set(ALIASES) | {"max_tokens"}
    assert known == set(OPTIONS) - {"prompt_logprobs_start"}
    for name in known:
        value = value_of(name) if name not in ("logprobs", "seed") else 4
        expected = {name: value} | ({"max_tokens": None} if name == "min_tokens" else {})
        made = sampling_of({**expected, name: as_json(value)}).resolve()
        assert made == wire.SamplingParams(**expected), name


def test_the_documentation_has_the_table_of_options() -> None:
    page = (Path(__file__).parents[2] / "docs" / "server-options.md").read_text()
    found = re.search(r"<!-- sampling -->\n(.*?)<!-- /sampling -->", page, re.DOTALL)
    assert found is not None
    assert found[1] == option_fields.markdown()
