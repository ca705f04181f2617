"""Builds requests in OpenAI's JSON: an `ApiRequest` in a given dialect, and what that dialect does
not support.
"""

from __future__ import annotations

import json
from typing import Any

from lmprog import wire
from lmprog.backends.blackbox.api import ApiRequest, JsonBody
from lmprog.backends.blackbox.dialects import ApiDialect
from lmprog.backends.blackbox.response_schema import ROOM, ResponseSchema, has_format
from lmprog.backends.blackbox.tool_call_fields import tools_of
from lmprog.backends.blackbox.transcript import ChatPrompt, TextPrompt, TranscriptMessage
from lmprog.errors import NotSupported

_SET_BY_BODY = ("max_tokens", "logprobs")
"""Options whose fields depend on whether the request is a chat."""
_SAID_ALWAYS = wire.SuggestedSampling.__struct_fields__
"""Fields that default to the checkpoint's values on some servers; the dialect says on which."""


def body_of(
    request: ApiRequest, model: str, dialect: ApiDialect, wrapping: ResponseSchema | None
) -> JsonBody:
    """The request body without `stream`. Raises `NotSupported` for an option that the dialect
    lacks.
    """
    sampling, is_chat = request.sampling, isinstance(request.prompt, ChatPrompt)
    body: JsonBody = {
        "model": model,
        **_prompt(request, dialect),
        **sampling_fields(sampling, dialect),
    }
    if sampling.max_tokens is not None:
        room = ROOM if wrapping is not None and wrapping.is_wrapped else 0
        body[dialect.max_tokens if is_chat else "max_tokens"] = sampling.max_tokens + room
    if sampling.logprobs is not None and is_chat:
        body["logprobs"] = True
        if sampling.logprobs:
            body["top_logprobs"] = sampling.logprobs
    elif sampling.logprobs is not None:
        body["logprobs"] = sampling.logprobs
    if request.constraint is not None:
        body.update(_constraint(request.constraint, dialect, wrapping))
    if request.tools is not None:
        body.update(tool_fields(request.tools))
    return body


def tool_fields(offer: wire.ToolOffer) -> JsonBody:
    body: JsonBody = {"tools": tools_of(offer)}
    if offer.choice != "auto":
        body["tool_choice"] = offer.choice
    if not offer.is_parallel and offer.choice != "none":
        body["parallel_tool_calls"] = False
    return body


def sampling_fields(sampling: wire.SamplingParams, dialect: ApiDialect) -> JsonBody:
    """The sampling and stop fields, without the token limit. Raises `NotSupported`."""
    body: JsonBody = {}
    for name, line in wire.SAMPLING_OPTIONS.items():
        value = getattr(sampling, name)
        is_default = value == line.default
        if name in _SET_BY_BODY or (is_default and not dialect.sends_defaults):
            continue
        if name not in dialect.options:
            if is_default:
                continue
            raise NotSupported(
                f"{name}={value!r} cannot be asked of this API ({dialect.name}); leave it out, or "
                "name the server's dialect"
            )
        if not is_default or name in _SAID_ALWAYS:
            body[name] = json_value(value)
    if sampling.stop:
        body["stop"] = list(sampling.stop[: dialect.max_stops])
    return body


def json_value(value: Any) -> Any:
    """The JSON form of an option's value: lists, and an object for biases."""
    if not isinstance(value, tuple):
        return value
    if value and isinstance(value[0], tuple):
        return {str(token): bias for token, bias in value}
    return list(value)


def _prompt(request: ApiRequest, dialect: ApiDialect) -> JsonBody:
    prompt = request.prompt
    if isinstance(prompt, TextPrompt):
        return {"prompt": prompt.text}
    assert isinstance(prompt, ChatPrompt)
    messages = [_message(message) for message in prompt.messages]
    if not prompt.partial:
        return {"messages": messages}
    messages.append({"role": "assistant", "content": prompt.partial})
    if dialect.prefill == "message":
        return {"messages": messages}
    return {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}


def _message(message: TranscriptMessage) -> JsonBody:
    made: JsonBody = {"role": message.role, "content": message.content}
    if message.answers:
        made["tool_call_id"] = message.answers
    if message.calls:
        made["content"] = message.content or None
        made["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.calls
        ]
    return made


def enforceable(constraint: wire.Constraint, dialect: ApiDialect, *, is_chat: bool) -> bool:
    """Whether the service enforces the constraint."""
    if dialect.confines == "response_format":
        return is_chat and has_format(constraint)
    return constraint.is_portable


def _constraint(
    constraint: wire.Constraint, dialect: ApiDialect, wrapping: ResponseSchema | None
) -> JsonBody:
    if wrapping is not None:
        return {"response_format": wrapping.field()}
    if dialect.confines == "sglang":
        return sglang_constraint(constraint)
    return structured_outputs(constraint)


def structured_outputs(constraint: wire.Constraint) -> JsonBody:
    """vLLM's field, which lmprog's server also accepts; of a portable constraint."""
    schema, choices = constraint.as_schema(), constraint.as_choices()
    grammar, pattern = constraint.as_grammar(), constraint.as_pattern()
    field: JsonBody
    if schema is not None:
        field = {"json": json.loads(schema.schema)}
    elif choices is not None:
        field = {"choice": list(choices)}
    else:
        field = {"regex": pattern} if grammar is None else {"grammar": grammar}
    return {"structured_outputs": field}


def sglang_constraint(constraint: wire.Constraint) -> JsonBody:
    """SGLang's three fields, of a portable constraint; choices become a regular expression."""
    schema, grammar = constraint.as_schema(), constraint.as_grammar()
    if schema is not None:
        return {"json_schema": schema.schema}
    return {"regex": constraint.as_pattern()} if grammar is None else {"ebnf": grammar}
