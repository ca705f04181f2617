"""What chats and completions ask for alike: how to sample, when to stop, what to confine the text
to.

Structs for the fields of a request, with their ranges, and their translation to
`wire.SamplingParams`. `None` always means that the field was not given. Knows the wire's settings;
knows no messages and no answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from lmprog import wire
from lmprog.server.http.http_errors import refused
from lmprog.server.http.limits import INT63, within

SILENT = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
)
"""Fields of OpenAI's that change nothing here and that nobody needs a warning about."""

NOTHING = wire.SuggestedSampling()
Number = TypeVar("Number", int, float)
_LEAST_TOP_P = 1e-6  # the wire takes no 0, which means the same: only the likeliest token


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class StructuredOutputs(msgspec.Struct, frozen=True):
    """vLLM's way to confine a text: one of these."""

    json: dict[str, Any] | str | bool | None = None
    regex: Annotated[str, within("regex")] | None = None
    choice: Annotated[list[Annotated[str, within("choice[]")]], within("choice")] | None = None
    grammar: Annotated[str, within("grammar")] | None = None
    json_object: bool | None = None
    structural_tag: Any = None
    whitespace_pattern: str | None = None


class NamedSchema(msgspec.Struct, frozen=True):
    name: Annotated[str, within("name")]
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    type: str
    json_schema: NamedSchema | None = None


class GenerationFields(msgspec.Struct, kw_only=True):
    """The common fields."""

    model: Annotated[str, within("model")] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    n: Annotated[int, within("n")] | None = None
    temperature: Annotated[float, within("temperature")] | None = None
    top_p: Annotated[float, within("top_p")] | None = None
    top_k: Annotated[int, within("top_k")] | None = None
    min_p: Annotated[float, within("min_p")] | None = None
    seed: Annotated[int, within("seed")] | None = None
    max_tokens: Annotated[int, within("max_tokens")] | None = None
    min_tokens: Annotated[int, within("min_tokens")] | None = None
    stop: str | Annotated[list[Annotated[str, within("stop[]")]], within("stop")] | None = None
    stop_token_ids: (
        Annotated[list[Annotated[int, within("stop_token_ids[]")]], within("stop_token_ids")] | None
    ) = None
    frequency_penalty: Annotated[float, within("frequency_penalty")] | None = None
    presence_penalty: Annotated[float, within("presence_penalty")] | None = None
    repetition_penalty: Annotated[float, within("repetition_penalty")] | None = None
    logit_bias: (
        Annotated[dict[str, Annotated[float, within("logit_bias[]")]], within("logit_bias")] | None
    ) = None
    ignore_eos: bool | None = None
    priority: Annotated[int, within("priority")] | None = None
    cache_salt: Annotated[str, within("cache_salt")] | None = None

    response_format: ResponseFormat | None = None
    regex: Annotated[str, within("regex")] | None = None
    ebnf: Annotated[str, within("grammar")] | None = None
    json_schema: dict[str, Any] | str | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: Annotated[str, within("regex")] | None = None
    guided_choice: Annotated[list[Annotated[str, within("choice[]")]], within("choice")] | None = (
        None
    )
    guided_grammar: Annotated[str, within("grammar")] | None = None

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a chunk of its usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def sampling_of(
    asked: GenerationFields,
    *,
    max_tokens: int | None,
    n: int,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
    suggested: wire.SuggestedSampling = NOTHING,
) -> wire.SamplingParams:
    """How to sample; `suggested` where the request does not say. Raises HttpError for what ranges
    do not forbid.
    """
    check_stream(asked)
    min_tokens = asked.min_tokens or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise refused(
            f"min_tokens is {min_tokens:,}, more than max_tokens, {max_tokens:,}.", "min_tokens"
        )
    return wire.SamplingParams(
        temperature=_first(asked.temperature, suggested.temperature, 1.0),
        top_p=max(_LEAST_TOP_P, _first(asked.top_p, suggested.top_p, 1.0)),
        top_k=_first(asked.top_k, suggested.top_k, -1) or -1,
        min_p=_first(asked.min_p, suggested.min_p, 0.0),
        seed=None if asked.seed is None else asked.seed & INT63,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop=_stops(asked.stop),
        stop_token_ids=tuple(asked.stop_token_ids or ()),
        frequency_penalty=asked.frequency_penalty or 0.0,
        presence_penalty=asked.presence_penalty or 0.0,
        repetition_penalty=_first(asked.repetition_penalty, suggested.repetition_penalty, 1.0),
        logit_bias=_bias(asked.logit_bias or {}),
        ignore_eos=bool(asked.ignore_eos),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        n=n,
    )


def check_stream(asked: GenerationFields) -> None:
    """`stream_options` says how to stream; without a stream it is a mistake."""
    if asked.stream_options is not None and not asked.stream:
        raise refused(
            "stream_options needs stream=true; leave it out, or stream.", "stream_options"
        )


def _first(given: Number | None, suggested: Number | None, default: Number) -> Number:
    """The first that there is."""
    return given if given is not None else default if suggested is None else suggested


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    if isinstance(stop, str):
        if len(stop) > 256:  # a list's texts are checked by their range
            raise refused(
                f"stop has {len(stop):,} characters; it may have 1 to 256.", "stop", "invalid_value"
            )
        return (stop,) if stop else ()
    return tuple(stop or ())


def _bias(given: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    """JSON's keys are texts; here they are token ids."""
    for key in given:
        if not (key.isascii() and key.isdecimal() and len(key) <= 10 and int(key) < 2**31):
            raise refused(
                f'logit_bias has the key {key[:40]!r}; its keys are token ids, as in {{"42": -100}}.',
                "logit_bias",
                "invalid_value",
            )
    return tuple((int(key), value) for key, value in given.items())
