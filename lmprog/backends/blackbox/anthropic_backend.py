"""`lmprog.Anthropic`: programs on Anthropic's Messages, through the `anthropic` package, which is
imported when a backend is created.

Leading system turns become a field of the request; the program's own messages are never changed.
`n` results take `n` requests. The service has no seeds, penalties or log-probabilities: a seed is
not sent, the others are rejected.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from lmprog import wire
from lmprog.backends.blackbox.api import ApiAnswer, ApiRequest, JsonBody, TextListener, Transport
from lmprog.backends.blackbox.api_backend import (
    ADDRESS,
    ApiBackend,
    ApiOptions,
    check_options,
    retry_policy_of,
)
from lmprog.backends.blackbox.api_errors import broken_off, refuse_hidden
from lmprog.backends.blackbox.response_schema import (
    ANTHROPIC_SUBSET,
    ROOM,
    ResponseSchema,
    format_of,
    has_format,
)
from lmprog.backends.blackbox.retry_policy import RetryPolicy
from lmprog.backends.blackbox.sdk_transport import SdkTransport
from lmprog.backends.blackbox.stop_strings import first_stop
from lmprog.backends.blackbox.tool_call_fields import tools_of
from lmprog.backends.blackbox.transcript import ChatPrompt, Kind, Prompt, TranscriptMessage
from lmprog.errors import (
    NotSupported,
    ProtocolError,
    RequestRejected,
    ValidationFailed,
)
from lmprog.tool_calls.writing import as_json

if TYPE_CHECKING:
    from typing_extensions import Unpack


_PATH = "/v1/messages"
_VERSION = "2023-06-01"
"""Of the API, whatever the package's: the next one has no temperature, `top_p` and `top_k`."""
_MOST_TOKENS = 4096  # default: the service requires max_tokens
_SET_BY_REQUESTS = ("max_tokens", "stop", "n", "seed")
"""Options that become a field of another name, several requests, or nothing (a seed)."""


@dataclass(slots=True)
class _Draft:
    """A message under construction from stream events."""

    text: str = ""
    reason: str | None = None
    stopped_by: str | None = None
    prompt: int = 0
    cached: int = 0
    generated: int = 0
    calls: dict[int, wire.SentCall] = field(default_factory=dict)
    """By block; a stream gives their arguments in pieces."""

    def take(self, piece: Mapping[str, Any], on_text: TextListener | None) -> None:
        """Applies one stream event."""
        kind = piece.get("type")
        if kind == "error":
            raise broken_off(piece)
        if kind == "message_start":
            self.take_whole(piece["message"])
        elif kind == "content_block_start" and piece["content_block"].get("type") == "tool_use":
            block = piece["content_block"]
            self.calls[piece["index"]] = wire.SentCall(block["name"], "", block.get("id") or "")
        elif kind == "content_block_delta" and piece["delta"].get("type") == "input_json_delta":
            begun = self.calls[piece["index"]]
            arguments = begun.arguments + piece["delta"]["partial_json"]
            self.calls[piece["index"]] = msgspec.structs.replace(begun, arguments=arguments)
        elif kind == "content_block_delta" and piece["delta"].get("type") == "text_delta":
            self.text += piece["delta"]["text"]
            if on_text is not None:
                on_text(0, piece["delta"]["text"], 1)
        elif kind == "message_delta":
            self._end(piece["delta"], piece.get("usage") or {})

    def take_whole(self, message: Mapping[str, Any]) -> None:
        blocks = message.get("content") or ()
        self.text += "".join(block["text"] for block in blocks if block.get("type") == "text")
        for place, block in enumerate(blocks):
            if block.get("type") == "tool_use":
                arguments = as_json(block["input"])
                self.calls[place] = wire.SentCall(block["name"], arguments, block.get("id") or "")
        self._end(message, message.get("usage") or {})

    def _end(self, message: Mapping[str, Any], usage: Mapping[str, Any]) -> None:
        self.reason = message.get("stop_reason") or self.reason
        self.stopped_by = message.get("stop_sequence") or self.stopped_by
        cached = usage.get("cache_read_input_tokens") or 0
        if usage.get("input_tokens") is not None:
            self.prompt = (
                usage["input_tokens"] + cached + (usage.get("cache_creation_input_tokens") or 0)
            )
            self.cached = cached
        self.generated = usage.get("output_tokens") or self.generated


class AnthropicApi:
    """Anthropic's Messages API. Owns its transport."""

    kind: Kind = "chat"
    context_len = 0

    def __init__(
        self,
        model: str,
        transport: Transport,
        retry_policy: RetryPolicy,
        *,
        can_prefill: bool = False,
    ) -> None:
        self.model = model
        self.can_prefill = can_prefill
        self._transport = transport
        self._retry_policy = retry_policy

    async def generate(self, request: ApiRequest, on_text: TextListener | None) -> ApiAnswer:
        wrapping = format_of(request.constraint, ANTHROPIC_SUBSET)
        body = _body(request, self.model, wrapping)
        is_changed = wrapping is not None and wrapping.is_changed
        hidden = [stop for stop in request.sampling.stop if is_changed or not stop.strip()]
        is_changed = is_changed or bool(hidden)
        live = None if is_changed or request.sampling.n > 1 else on_text
        drafts = await asyncio.gather(*(self._one(body, live) for _ in range(request.sampling.n)))
        outputs = [_output(draft, wrapping, hidden) for draft in drafts]
        if on_text is not None and live is None:
            for index, output in enumerate(outputs):
                on_text(index, output.text, 1)
        prompt, cached = (
            sum(draft.prompt for draft in drafts),
            sum(draft.cached for draft in drafts),
        )
        generated = sum(draft.generated for draft in drafts)
        usage = wire.Usage(
            prompt=prompt, cached=cached, generated=generated, computed=prompt - cached + generated
        )
        return ApiAnswer(tuple(outputs), usage)

    async def _one(self, body: JsonBody, on_text: TextListener | None) -> _Draft:
        draft = _Draft()
        if on_text is None:
            draft.take_whole(await self._retry_policy.run(lambda: self._post(body)))
            return draft
        stream = await self._retry_policy.run(
            lambda: self._transport.open(_PATH, {**body, "stream": True})
        )
        async with contextlib.aclosing(cast("Any", stream)):
            pieces: AsyncIterator[Mapping[str, Any]] = self._retry_policy.pieces(stream)
            async for piece in pieces:
                draft.take(piece, on_text)
        return draft

    async def _post(self, body: JsonBody) -> Mapping[str, Any]:
        answer = await self._transport.post(_PATH, body)
        refuse_hidden(answer)
        return answer

    async def select(self, prompt: Prompt, op: wire.Select) -> wire.Chosen | None:
        return None

    def enforces(self, constraint: wire.Constraint, prompt: Prompt) -> bool:
        return has_format(constraint)

    async def flush(self) -> None:
        raise NotSupported("this API has no request that makes it forget its cache")

    async def close(self) -> None:
        await self._transport.close()


def _body(request: ApiRequest, model: str, wrapping: ResponseSchema | None) -> JsonBody:
    prompt, sampling = request.prompt, request.sampling
    assert isinstance(prompt, ChatPrompt)
    options = _options(sampling)
    room = ROOM if wrapping is not None and wrapping.is_wrapped else 0
    body: JsonBody = {"model": model, "max_tokens": (sampling.max_tokens or _MOST_TOKENS) + room}
    begin = next(
        (i for i, turn in enumerate(prompt.messages) if turn.role != "system"), len(prompt.messages)
    )
    system, rest = prompt.messages[:begin], prompt.messages[begin:]
    if any(turn.role == "system" for turn in rest):
        raise NotSupported(
            "Anthropic's API takes system turns at the beginning only; put this one into a "
            "user's turn"
        )
    if said := [turn.content for turn in system if turn.content.strip()]:
        body["system"] = [{"type": "text", "text": text} for text in said]
    body["messages"] = _messages(rest)
    if prompt.partial:
        body["messages"].append({"role": "assistant", "content": prompt.partial})
    is_changed = wrapping is not None and wrapping.is_changed
    stops = [] if is_changed else [stop for stop in sampling.stop if stop.strip()]
    if (
        stops
    ):  # for the program's text, not for JSON in another form; the service takes no blank ones
        body["stop_sequences"] = stops
    body.update(options)
    if request.tools is not None:
        body.update(_tool_fields(request.tools))
    if wrapping is not None:
        body["output_config"] = {"format": {"type": "json_schema", "schema": wrapping.schema}}
    return body


def _messages(turns: Sequence[TranscriptMessage]) -> list[JsonBody]:
    """Results are blocks of the user's turn; those that follow one another share one. The service
    takes no blank texts: a turn that says nothing is left out.
    """
    made: list[JsonBody] = []
    for turn in turns:
        if turn.answers:
            block: JsonBody = {
                "type": "tool_result",
                "tool_use_id": turn.answers,
                "content": turn.content,
            }
            if made and made[-1]["role"] == "user" and isinstance(made[-1]["content"], list):
                made[-1]["content"].append(block)
            else:
                made.append({"role": "user", "content": [block]})
        elif turn.calls:
            text = [{"type": "text", "text": turn.content}] if turn.content.strip() else []
            uses = [
                {
                    "type": "tool_use",
                    "id": call.id,
                    "name": call.name,
                    "input": json.loads(call.arguments),
                }
                for call in turn.calls
            ]
            made.append({"role": "assistant", "content": [*text, *uses]})
        elif turn.content.strip():
            made.append({"role": turn.role, "content": turn.content})
    return made


def _tool_fields(offer: wire.ToolOffer) -> JsonBody:
    functions = [tool["function"] for tool in tools_of(offer)]
    tools = [
        {
            "name": function["name"],
            "description": function.get("description", ""),
            "input_schema": function["parameters"],
        }
        for function in functions
    ]
    choice: JsonBody = {"type": {"required": "any"}.get(offer.choice, offer.choice)}
    if not offer.is_parallel and offer.choice != "none":
        choice["disable_parallel_tool_use"] = True
    return {"tools": tools, "tool_choice": choice}


def _options(sampling: wire.SamplingParams) -> JsonBody:
    """The requested options as request fields. Raises `NotSupported` for those that the API
    lacks.
    """
    options: JsonBody = {}
    for name, line in wire.SAMPLING_OPTIONS.items():
        value = getattr(sampling, name)
        if name in _SET_BY_REQUESTS or value == line.default:
            continue
        if "anthropic" not in line.option.services:
            raise NotSupported(f"{name}={value!r} cannot be asked of Anthropic's API; leave it out")
        options[name] = value
    return options


def _output(draft: _Draft, wrapping: ResponseSchema | None, hidden: Sequence[str]) -> wire.Output:
    if draft.reason is None:
        raise ProtocolError("the API's answer has no end: it came without a stop_reason")
    if draft.reason == "refusal":
        raise ValidationFailed(f"the model refused: {draft.text}", text=draft.text)
    finish: wire.FinishReason = (
        "length" if draft.reason in ("max_tokens", "model_context_window_exceeded") else "stop"
    )
    text = draft.text if wrapping is None else wrapping.read(draft.text, finish)
    calls = tuple(draft.calls.values())
    output = wire.Output(text, (), finish, draft.stopped_by, calls=calls)
    stop = first_stop(text, hidden)
    if stop is None:
        return output
    return msgspec.structs.replace(
        output, text=text[: stop.begin], finish="stop", stopped_by=stop.of(text)
    )


# --- the backend


class AnthropicOptions(ApiOptions, total=False):
    """Options of `Anthropic` besides the model and the address."""

    prefill: Literal["none", "message"]
    """"message": prefill the assistant's turn by sending its beginning; older models support this.
    """
    client: Any
    """An unused `AsyncAnthropic` client, in place of `base_url` and `api_key`."""


class Anthropic(ApiBackend):
    """A backend on Anthropic's API. `api_key` defaults to the environment variable
    `ANTHROPIC_API_KEY`.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        **options: Unpack[AnthropicOptions],
    ) -> None:
        check_options("Anthropic", options, AnthropicOptions, ADDRESS)
        retry_policy = retry_policy_of(options)
        transport = _transport(options.get("client"), base_url, api_key)
        can_prefill = options.get("prefill", "none") == "message"
        super().__init__(
            AnthropicApi(model, transport, retry_policy, can_prefill=can_prefill),
            retry_policy,
            options,
        )
        given = base_url or getattr(options.get("client"), "base_url", None)
        self.identity = (str(given or os.environ.get("ANTHROPIC_BASE_URL")), can_prefill)


def _transport(client: Any, base_url: str | None, api_key: str | None) -> SdkTransport:
    try:
        anthropic: Any = importlib.import_module("anthropic")
    except ImportError:
        raise NotSupported(
            "lmprog.Anthropic needs the anthropic package: pip install anthropic"
        ) from None
    try:
        own = client or anthropic.AsyncAnthropic(base_url=base_url, api_key=api_key)
        version = {"anthropic-version": _VERSION}
        return SdkTransport(anthropic, own.with_options(default_headers=version))
    except anthropic.AnthropicError as error:
        raise RequestRejected(f"{error} (or set ANTHROPIC_API_KEY)") from None
