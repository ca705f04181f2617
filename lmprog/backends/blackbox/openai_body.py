"""Requests in OpenAI's JSON: what an `ApiRequest` becomes in a dialect, and what that dialect
cannot be asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from lmprog import wire
from lmprog.backends.blackbox.api import ApiRequest
from lmprog.backends.blackbox.dialects import ApiDialect
from lmprog.backends.blackbox.http_transport import Json
from lmprog.backends.blackbox.response_schema import ROOM, ResponseSchema
from lmprog.backends.blackbox.transcript import ChatPrompt, TextPrompt
from lmprog.errors import NotSupported

_BEYOND: Mapping[str, object] = {
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "min_tokens": 0,
    "stop_token_ids": (),
    "stop_regex": (),
    "ignore_eos": False,
    "prompt_logprobs": None,
}
"""Options that OpenAI's API does not have, with the values at which they do nothing."""


def body_of(
    ask: ApiRequest, model: str, dialect: ApiDialect, wrapping: ResponseSchema | None
) -> Json:
    """The request without its `stream`. Raises `NotSupported` for an option that the dialect does
    not know.
    """
    sampling, is_chat = ask.sampling, isinstance(ask.prompt, ChatPrompt)
    body: Json = {"model": model, **_prompt(ask, dialect), **sampling_fields(sampling, dialect)}
    if sampling.max_tokens is not None:
        room = ROOM if wrapping is not None and wrapping.is_wrapped else 0
        body[dialect.max_tokens if is_chat else "max_tokens"] = sampling.max_tokens + room
    if sampling.logprobs is not None and is_chat:
        body["logprobs"] = True
        if sampling.logprobs:
            body["top_logprobs"] = sampling.logprobs
    elif sampling.logprobs is not None:
        body["logprobs"] = sampling.logprobs
    if ask.constraint is not None:
        body.update(_constraint(ask.constraint, dialect, wrapping))
    return body


def sampling_fields(sampling: wire.SamplingParams, dialect: ApiDialect) -> Json:
    """How to sample and where to stop, but for the number of tokens. Raises `NotSupported`."""
    body: Json = {}
    for name, default, key in (
        ("temperature", 1.0, "temperature"),
        ("top_p", 1.0, "top_p"),
        ("frequency_penalty", 0.0, "frequency_penalty"),
        ("presence_penalty", 0.0, "presence_penalty"),
        ("n", 1, "n"),
    ):
        value = getattr(sampling, name)
        if value != default or (dialect.always_says and key in ("temperature", "top_p")):
            body[key] = value
    body.update(beyond_openai(sampling, dialect.options, dialect.name, always=dialect.always_says))
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if sampling.stop:
        body["stop"] = list(sampling.stop[: dialect.max_stops])
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
    return body


def _prompt(ask: ApiRequest, dialect: ApiDialect) -> Json:
    prompt = ask.prompt
    if isinstance(prompt, TextPrompt):
        return {"prompt": prompt.text}
    assert isinstance(prompt, ChatPrompt)
    messages = [{"role": message.role, "content": message.content} for message in prompt.messages]
    if not prompt.partial:
        return {"messages": messages}
    messages.append({"role": "assistant", "content": prompt.partial})
    if dialect.prefill == "message":
        return {"messages": messages}
    return {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}


def beyond_openai(
    sampling: wire.SamplingParams, known: frozenset[str], name: str, *, always: bool
) -> Json:
    """The options that OpenAI's API does not have. Raises `NotSupported` where one is asked for and
    not `known`.
    """
    found: Json = {}
    for option, nothing in _BEYOND.items():
        value = getattr(sampling, option)
        if value != nothing and option not in known:
            raise NotSupported(
                f"{option}={value!r} cannot be asked of this API ({name}); leave it out, or name the server's dialect"
            )
        if option in known and (
            value != nothing or (always and option in ("top_k", "min_p", "repetition_penalty"))
        ):
            found[option] = list(value) if isinstance(value, tuple) else value
    return found


def enforceable(constraint: wire.Constraint, dialect: ApiDialect, *, is_chat: bool) -> bool:
    """Whether the service confines texts by it."""
    if dialect.confines == "response_format":
        return is_chat and isinstance(constraint, wire.JsonSchema | wire.Choices)
    return True


def _constraint(
    constraint: wire.Constraint, dialect: ApiDialect, wrapping: ResponseSchema | None
) -> Json:
    if wrapping is not None:
        return {"response_format": wrapping.field()}
    if dialect.confines == "sglang":
        return sglang_constraint(constraint)
    return structured_outputs(constraint)


def structured_outputs(constraint: wire.Constraint) -> Json:
    """vLLM's field, which lmprog's server knows, too."""
    kind = {
        wire.JsonSchema: "json",
        wire.Regex: "regex",
        wire.Choices: "choice",
        wire.Grammar: "grammar",
    }
    return {"structured_outputs": {kind[type(constraint)]: _inner(constraint)}}


def _inner(constraint: wire.Constraint) -> Any:
    if isinstance(constraint, wire.JsonSchema):
        return json.loads(constraint.schema)
    if isinstance(constraint, wire.Regex):
        return constraint.pattern
    return list(constraint.texts) if isinstance(constraint, wire.Choices) else constraint.text


def sglang_constraint(constraint: wire.Constraint) -> Json:
    """SGLang's three fields; choices are a regular expression there."""
    if isinstance(constraint, wire.JsonSchema):
        return {"json_schema": constraint.schema}
    if isinstance(constraint, wire.Grammar):
        return {"ebnf": constraint.text}
    pattern = (
        constraint.pattern
        if isinstance(constraint, wire.Regex)
        else "|".join(map(re.escape, constraint.texts))
    )
    return {"regex": f"({pattern})" if isinstance(constraint, wire.Choices) else pattern}
