"""`/v1/messages` and its count of tokens: content blocks, whole or as Anthropic's events.

Knows how chats reach the runtime. The fields are in `messages_body`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lmprog import wire
from lmprog.calls.harmony import ThoughtText
from lmprog.calls.reading import ParsedCall
from lmprog.server.anthropic.messages_body import SILENT, Countable, MessagesBody, chat_of, renamed
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.gateway.routes import GatewayRouter
from lmprog.server.http.http_errors import HttpError
from lmprog.server.http.json_body import Given, described
from lmprog.server.http.sse import EventStream, event, until_gone
from lmprog.server.openai import answers
from lmprog.server.openai.chat_completions import ChatCompletions, understood
from lmprog.server.openai.running_request import running, warned
from lmprog.server.openai.tool_calls import AnswerPart

Json = dict[str, Any]


def router(gateway: Gateway) -> GatewayRouter:
    made = GatewayRouter(gateway, "Anthropic")

    def read_as_chat(body: Countable, request: Request) -> ChatCompletions:
        try:
            chat = understood(gateway, chat_of(body))
        except HttpError as error:
            raise renamed(error) from None
        request.state.names = {**chat.names, "max_tokens": "max_tokens"}
        return chat

    @made.post(
        "/v1/messages",
        dependencies=[made.guards.generating],
        summary="Anthropic's messages.",
        responses=described(streams=True),
    )
    async def messages(request: Request, given: Given[MessagesBody]) -> Response:
        read = await given.read(gateway.settings, SILENT)
        chat = read_as_chat(read.body, request)
        headers = warned((*read.warnings, *chat.warnings))
        if read.body.stream:
            events = _events(gateway, request, chat, read.body)
            return await EventStream.begin(request, events, gateway.settings, headers)
        with running(gateway, request, [chat.prompt], False, read.body.cache_salt) as run:
            (done,) = await until_gone(request, run.dones())
        return Response(
            msgspec.json.encode(_whole(chat, done)), headers=headers, media_type="application/json"
        )

    @made.post(
        "/v1/messages/count_tokens",
        dependencies=[made.guards.user],
        summary="How many tokens messages have.",
        responses=described(),
    )
    async def count_tokens(request: Request, given: Given[Countable]) -> Response:
        read = await given.read(gateway.settings, SILENT)
        chat = read_as_chat(read.body, request)
        found = await until_gone(request, _counted(gateway, chat))
        return Response(msgspec.json.encode({"input_tokens": found}), media_type="application/json")

    return made


async def _counted(gateway: Gateway, chat: ChatCompletions) -> int:
    with gateway.link.exchange() as exchange:
        branch = exchange.branch()
        read = wire.Read(branch, exchange.call())
        exchange.send(wire.Open(branch), wire.Append(branch, chat.prompt.pieces), read)
        reply = await exchange.next()
    assert isinstance(reply, wire.TextIs)
    return reply.num_tokens


def _whole(chat: ChatCompletions, done: wire.CallDone) -> Json:
    output = done.outputs[0]
    content, calls, _ = chat.box.read(output)
    blocks: list[Json] = [{"type": "text", "text": content}] if content or not calls else []
    blocks += [{**_tool_use(call), "input": json.loads(call.arguments)} for call in calls]
    return {
        **_head(chat),
        "content": blocks,
        **_ending(chat, done, bool(calls)),
        "usage": _usage(done),
    }


def _head(chat: ChatCompletions) -> Json:
    return {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": chat.head.model,
    }


def _tool_use(call: ParsedCall) -> Json:
    return {"type": "tool_use", "id": call.id, "name": call.name}


def _ending(chat: ChatCompletions, done: wire.CallDone, has_calls: bool) -> Json:
    output = done.outputs[0]
    stopped_by = answers.stop_reason_of(output, chat.prompt.sampling)
    if output.finish == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if has_calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if isinstance(stopped_by, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": stopped_by}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def _usage(done: wire.CallDone) -> Json:
    """What the cache had counts apart, and not among the input."""
    usage, cached = done.usage, done.usage.cached
    return {
        "input_tokens": usage.prompt - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.generated,
    }


async def _events(
    gateway: Gateway, request: Request, chat: ChatCompletions, body: MessagesBody
) -> AsyncGenerator[bytes, None]:
    """The blocks as they come. The prompt's length is in the last event, since it is known then."""
    blocks, reader = _Blocks(), chat.box.reader()
    with running(gateway, request, [chat.prompt], True, body.cache_salt) as run:
        nothing = {"input_tokens": 0, "output_tokens": 0}
        opened = {
            **_head(chat),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": nothing,
        }
        begun = _event("message_start", message=opened)
        async for piece in run.pieces():
            if piece.done is None:
                told, begun = begun + blocks.add(reader.feed(piece.text, piece.tags)), b""
                if told:
                    yield told
                continue
            yield (
                begun
                + blocks.add(reader.finish(piece.done.outputs[0]))
                + blocks.end()
                + _event(
                    "message_delta",
                    delta=_ending(chat, piece.done, blocks.has_calls),
                    usage=_usage(piece.done),
                )
                + _event("message_stop")
            )


class _Blocks:
    """The content blocks of a stream."""

    def __init__(self) -> None:
        self.has_calls = False
        self._index = -1
        self._is_open = False

    def add(self, parts: Sequence[AnswerPart]) -> bytes:
        """Thoughts are left out: this dialect has them only where thinking was asked for."""
        return b"".join(
            self._call(part) if isinstance(part, ParsedCall) else self._text(part)
            for part in parts
            if not isinstance(part, ThoughtText)
        )

    def end(self) -> bytes:
        """Closes what is open; a message has at least one block."""
        begun = self._begin({"type": "text", "text": ""}) if self._index < 0 else b""
        return begun + self._close()

    def _text(self, text: str) -> bytes:
        begun = b"" if self._is_open else self._begin({"type": "text", "text": ""})
        return begun + self._delta({"type": "text_delta", "text": text})

    def _call(self, call: ParsedCall) -> bytes:
        self.has_calls = True
        begun = self._close() + self._begin({**_tool_use(call), "input": {}})
        return (
            begun
            + self._delta({"type": "input_json_delta", "partial_json": call.arguments})
            + self._close()
        )

    def _begin(self, block: Json) -> bytes:
        self._index += 1
        self._is_open = True
        return _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, delta: Json) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _close(self) -> bytes:
        if not self._is_open:
            return b""
        self._is_open = False
        return _event("content_block_stop", index=self._index)


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)
