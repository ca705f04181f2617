"""`/v1/responses`, and what can be asked of a response afterwards.

Responses that may be asked for again are kept by whom they belong to: in memory, bounded by their
bytes, the oldest forgotten first. One is kept as bytes once it is written, its JSON and the
conversation that it ends: parsed values would take many times that, and nobody could say how much.

Knows how chats reach the runtime. Fields are in `responses_body`, shapes in `response_events`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lmprog import wire
from lmprog.errors import LmprogError
from lmprog.server.fairness.accounts import MemoryPool
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.gateway.routes import GatewayRouter
from lmprog.server.http.http_errors import HttpError, Problem, problem_of, refused
from lmprog.server.http.json_body import Given, described
from lmprog.server.http.large_answers import entries_in, made_aside
from lmprog.server.http.sse import EventStream, until_gone
from lmprog.server.openai import answers
from lmprog.server.openai.chat_completions import ChatCompletions, understood
from lmprog.server.openai.messages import CalledFunction, CalledTool, ChatMessage
from lmprog.server.openai.running_request import RequestPrompt, counted, running, warned
from lmprog.server.responses.response_events import Writer
from lmprog.server.responses.responses_body import (
    SILENT,
    ResponsesBody,
    ServedTools,
    chat_of,
    items_of,
    messages_of,
    renamed,
)

MOST_KEPT = 4096
"""Responses."""
ENTRY_BYTES = 1024
"""What one takes beside its bytes, at most: the objects that hold them, and their places."""
EVENT_BYTES = 64
"""What an event takes beside its own."""
_conversation = msgspec.msgpack.Decoder(list[ChatMessage])


class Kept:
    """A response and the conversation that it ends, without instructions."""

    def __init__(
        self,
        caller: str,
        account: str,
        state: dict[str, Any],
        messages: list[ChatMessage],
        told: list[bytes] | None = None,
    ) -> None:
        """Of one that is being written: what is asked of it is seen in `state` until `seal`. The
        `account` is charged for its bytes.
        """
        self.caller = caller
        self.account = account
        self.name: str = state["id"]
        self.is_background: bool = state["background"]
        self.told = told
        """Its events, by their numbers, also those to come; None where they are not kept."""
        self._grown = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        """What still writes it in the background."""
        self.size = ENTRY_BYTES
        """Bytes, as of when it was last written down."""
        self._live: tuple[dict[str, Any], list[ChatMessage]] | None = (state, messages)
        self._status = ""
        self._json = b""
        self._messages = b""

    @property
    def status(self) -> str:
        return self._status if self._live is None else str(self._live[0]["status"])

    @property
    def json(self) -> bytes:
        """What is known of it now."""
        return self._json if self._live is None else msgspec.json.encode(self._live[0])

    @property
    def messages(self) -> list[ChatMessage]:
        """The conversation so far; of one that is written its answer is the last message."""
        return _conversation.decode(self._messages) if self._live is None else self._live[1]

    def input_items(self) -> list[dict[str, Any]]:
        """What it answers, with the conversation before."""
        asked = self.messages[:-1] if self.status in ("completed", "incomplete") else self.messages
        found = [item for message in asked for item in items_of(message)]
        return [{"id": f"item_{self.name}_{at}", **item} for at, item in enumerate(found)]

    def seal(self, state: dict[str, Any], messages: list[ChatMessage]) -> None:
        """It is written, and changes no more; the values that made it are held no longer."""
        self._write(state, messages)
        self._live = None
        self.grow()

    def grow(self) -> None:
        """There is more to tell, or nothing will come any more."""
        self._grown.set()
        self._grown = asyncio.Event()

    async def events(self, after: int = -1) -> AsyncGenerator[bytes, None]:
        """Those after number `after`, and all that will come. Only where they are kept."""
        assert self.told is not None
        at = after + 1
        while True:
            more = self.told[at:]
            if more:
                at += len(more)
                yield b"".join(more)
            elif self._live is None:
                return
            else:
                await self._grown.wait()

    def begin(self) -> None:
        """It is kept from now on: of one that is being written, its size is what it is now."""
        if self._live is not None:
            self._write(*self._live)
            self._json = self._messages = b""

    def _write(self, state: dict[str, Any], messages: list[ChatMessage]) -> None:
        self._status = state["status"]
        self._json = msgspec.json.encode(state)
        self._messages = msgspec.msgpack.encode(messages)
        events = sum(len(one) + EVENT_BYTES for one in self.told or ())
        self.size = ENTRY_BYTES + len(self._json) + len(self._messages) + events


class Store:
    """Forgets what was not used for longest when there is too much, of all, or in the memory that
    one client may have.
    """

    def __init__(self, most_bytes: int, memory: MemoryPool, most: int = MOST_KEPT) -> None:
        self._most = most
        self._memory = memory
        memory.reclaims.append(self._reclaim)
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._counted: dict[str, int] = {}
        self.num_bytes = 0
        """Of all that are kept."""

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, kept: Kept) -> None:
        """Keeps one more, if it is not larger than all may be. One that still runs is forgotten
        like any other; it runs on.
        """
        kept.begin()
        self._kept[kept.name] = kept
        self.recount(kept)

    def recount(self, kept: Kept) -> None:
        """Its size has changed. Nothing happens where it is not kept."""
        if self._kept.get(kept.name) is not kept:
            return
        more = kept.size - self._counted.get(kept.name, 0)
        self.num_bytes += more
        self._counted[kept.name] = kept.size
        self._memory.add(kept.account, more)
        self._memory.makes_room(kept.account, 0)
        while len(self._kept) > self._most or self.num_bytes > self._most_bytes:
            self._forget(next(iter(self._kept)))

    def get(self, caller: str, name: str) -> Kept | None:
        """None where there is none of that caller's."""
        kept = self._kept.get(name)
        if kept is None or kept.caller != caller:
            return None
        self._kept.move_to_end(name)
        return kept

    def drop(self, caller: str, name: str) -> bool:
        """Whether it was there."""
        kept = self.get(caller, name)
        if kept is not None:
            self._forget(name)
        return kept is not None

    def _reclaim(self, account: str, count: int) -> None:
        """See `MemoryPool.reclaims`."""
        for name in [one.name for one in self._kept.values() if one.account == account]:
            if self._memory.has_room(account, count):
                return
            self._forget(name)

    def _forget(self, name: str) -> None:
        size = self._counted.pop(name)
        self.num_bytes -= size
        self._memory.add(self._kept.pop(name).account, -size)


log = logging.getLogger("lmprog.server")

_INTERRUPTED = Problem(503, "The response was interrupted.", code="interrupted")
"""Of a response whose client left before it was written."""


class Responding:
    """One response on its way: the chat that makes it, the writer, the place where it is kept."""

    def __init__(
        self, gateway: Gateway, request: Request, body: ResponsesBody, store: Store
    ) -> None:
        """Raises HttpError for what cannot be answered."""
        self._gateway = gateway
        self._request = request
        self._store = store
        self._salt = body.cache_salt
        caller = request.state.caller
        history = _history(store, caller, body.previous_response_id)
        self._messages = [*history, *messages_of(body.input)]
        try:
            tools = ServedTools(body.tools)
            chat = chat_of(body, self._messages, tools)
            self._chat: ChatCompletions = understood(gateway, chat, tools.warnings)
        except HttpError as error:
            raise renamed(error) from None
        self._names = {**self._chat.names, "prompt": "input", "max_tokens": "max_output_tokens"}
        if self._names["constraint"] == "response_format":
            self._names["constraint"] = "text.format"
        if self._names["template_variables"] == "reasoning_effort":
            self._names["template_variables"] = "reasoning.effort"
        request.state.names = self._names
        self.writer = Writer(body, self._chat.head.model, self._chat.head.created, tools)
        self._begun = b""
        """Events that are made and not told yet: the first ones go with the first text."""
        self.kept: Kept | None = None
        if body.keeps:
            account = request.state.held.account
            writer = self.writer
            self.kept = Kept(caller, account, writer.state, self._messages, writer.told)

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._chat.warnings

    @property
    def prompt(self) -> RequestPrompt:
        return self._chat.prompt

    @property
    def json(self) -> bytes:
        """The response as it is now."""
        return msgspec.json.encode(self.writer.state) if self.kept is None else self.kept.json

    def keep(self, task: asyncio.Task[None] | None = None) -> None:
        """It can be asked for from now on. `task` writes it, where nobody waits for it."""
        if self.kept is not None:
            self.kept.task = task
            self._store.put(self.kept)

    async def events(self, stream: bool = True) -> AsyncGenerator[bytes, None]:
        """Writes the response, and tells of it."""
        try:
            async for told in self._events(stream):
                yield told
        except (asyncio.CancelledError, GeneratorExit):
            if self.writer.state["status"] not in ("completed", "incomplete"):
                self.writer.fail(_INTERRUPTED)
            raise
        finally:
            self._seal()

    def failed(self, problem: Problem) -> bytes:
        """The last events of a stream that fails."""
        begun, self._begun = self._begun, b""
        told = begun + self.writer.fail(problem)
        self._seal()
        return told

    def _seal(self) -> None:
        """What is kept of it is as it is now."""
        if self.kept is not None:
            self.kept.seal(self.writer.state, self._messages)
            self._store.recount(self.kept)

    async def _events(self, stream: bool) -> AsyncGenerator[bytes, None]:
        writer, reader = self.writer, self._chat.box.reader()
        with running(self._gateway, self._request, [self._chat.prompt], stream, self._salt) as run:
            self._begun = writer.begin()
            async for piece in run.pieces():
                if piece.done is None:
                    parts = reader.feed(piece.text, piece.tags)
                    told, self._begun = self._begun + writer.add(parts), b""
                    if told:
                        yield told
                    continue
                output = piece.done.outputs[0]
                rest = [] if stream else reader.feed(output.text, output.tags)
                told = self._begun + writer.add([*rest, *reader.finish(output)])
                self._begun = b""
                self._remember(piece.done)
                logprobs = await self._logprobs(piece.done)
                yield told + writer.end(piece.done, logprobs)

    async def _logprobs(self, done: wire.CallDone) -> bytes | None:
        """As JSON, where they were asked for."""
        if self._chat.prompt.sampling.logprobs is None:
            return None
        found = done.outputs[0].logprobs
        return await made_aside(
            lambda encode: encode(answers.chat_logprobs(found).content), entries_in([done])
        )

    async def whole(self) -> None:
        """Written without one who reads along; events that are kept come piece by piece."""
        async for _ in self.events(stream=self.writer.told is not None):
            if self.kept is not None:
                self.kept.grow()

    async def in_background(self) -> None:
        """The same without a waiting client: failures are recorded in the response."""
        try:
            await self.whole()
        except asyncio.CancelledError:
            self.writer.cancel()
            raise
        except LmprogError as error:
            self.writer.fail(problem_of(error, self._names))
        except HttpError as error:
            self.writer.fail(error.problem)
        except Exception:  # the border of a background task
            log.exception("a response in the background failed")
            message = "The server failed; its log says more."
            self.writer.fail(Problem(500, message, code="server_error"))

    def end_background(self, _: asyncio.Task[None]) -> None:
        """Its task has ended, perhaps before it began."""
        if self.writer.state["status"] in ("queued", "in_progress"):
            self.writer.cancel()
        self._seal()
        if self.kept is not None:
            self.kept.task = None

    def _remember(self, done: wire.CallDone) -> None:
        """Adds the answer to the conversation, for requests that continue it."""
        output = done.outputs[0]
        content, calls, thought = self._chat.box.read(output)
        tools = [CalledTool(CalledFunction(call.name, call.arguments), call.id) for call in calls]
        self._messages.append(
            ChatMessage(
                "assistant", content, tool_calls=tools or None, reasoning_content=thought or None
            )
        )


def router(gateway: Gateway) -> GatewayRouter:
    router = GatewayRouter(gateway, "OpenAI")
    store = Store(gateway.settings.max_stored_bytes, gateway.memory)
    background: set[asyncio.Task[None]] = set()

    @router.post(
        "/v1/responses",
        dependencies=[router.guards.generating],
        summary="OpenAI's responses.",
        responses=described(streams=True),
    )
    async def create_response(request: Request, given: Given[ResponsesBody]) -> Response:
        read = await given.read(gateway.settings, SILENT)
        body = read.body
        _check(body)
        made = Responding(gateway, request, body, store)
        headers = warned((*read.warnings, *made.warnings))
        if body.background:
            task = asyncio.create_task(made.in_background())
            background.add(task)
            task.add_done_callback(background.discard)
            held = request.state.held.hand_over()
            task.add_done_callback(made.end_background)
            task.add_done_callback(lambda _: held.leave())
            made.keep(task)
            if made.kept is not None and body.stream:
                return await EventStream.begin(
                    request, made.kept.events(), gateway.settings, headers
                )
            return _json(made.json, headers)
        if body.stream:
            stream = await EventStream.begin(
                request, made.events(), gateway.settings, headers, made.failed
            )
            made.keep()
            return stream
        await until_gone(request, made.whole())
        made.keep()
        return _json(made.json, headers)

    @router.get(
        "/v1/responses/{response}",
        dependencies=[router.guards.user],
        summary="A response that was stored, or its events.",
    )
    async def stored_response(request: Request, response: str) -> Response:
        kept = _found(store, request.state.caller, response, "response_id", 404)
        asked = request.query_params
        streams = _one_of(
            ("true", "false"), asked.get("stream", "false"), "stream", "true or false"
        )
        if streams == "false":
            return _json(kept.json)
        if kept.told is None:
            raise refused(
                "Only a response that was begun with background=true and stream=true keeps its "
                "events.",
                "stream",
            )
        after = asked.get("starting_after", "-1")
        if after != "-1" and not (after.isascii() and after.isdigit() and len(after) < 10):
            raise refused(
                "starting_after must be the number of an event.", "starting_after", "invalid_value"
            )
        return await EventStream.begin(request, kept.events(int(after)), gateway.settings)

    @router.delete(
        "/v1/responses/{response}",
        dependencies=[router.guards.user],
        summary="Forgets a response that was stored.",
    )
    async def drop_response(request: Request, response: str) -> Response:
        if not store.drop(request.state.caller, response):
            raise _unknown(response, "response_id", 404)
        deleted = {"id": response, "object": "response", "deleted": True}
        return _json(msgspec.json.encode(deleted))

    @router.post(
        "/v1/responses/{response}/cancel",
        dependencies=[router.guards.user],
        summary="Ends a response that is written in the background.",
    )
    async def cancel_response(request: Request, response: str) -> Response:
        kept = _found(store, request.state.caller, response, "response_id", 404)
        if not kept.is_background:
            raise refused(
                "Only a response that was begun with background=true can be cancelled.",
                "response_id",
            )
        if kept.task is not None and not kept.task.done():
            kept.task.cancel()
            await asyncio.wait({kept.task})
        return _json(kept.json)

    _add_inputs(router, gateway, store)
    return router


def _add_inputs(router: GatewayRouter, gateway: Gateway, store: Store) -> None:
    """What responses answer: its items, and how many tokens they are."""

    @router.get(
        "/v1/responses/{response}/input_items",
        dependencies=[router.guards.user],
        summary="What a stored response answers, as items.",
    )
    async def input_items(request: Request, response: str) -> Response:
        kept = _found(store, request.state.caller, response, "response_id", 404)
        asked = request.query_params
        sizes, ways = map(str, range(1, 101)), {"asc": 1, "desc": -1}
        limit = int(_one_of(sizes, asked.get("limit", "20"), "limit", "a number from 1 to 100"))
        order = _one_of(ways, asked.get("order", "desc"), "order", "asc or desc")
        items = kept.input_items()[:: ways[order]]
        places = (at for at, one in enumerate(items, 1) if one["id"] == asked.get("after"))
        begin = next(places, 0)
        page = items[begin : begin + limit]
        ends = [page[at]["id"] if page else None for at in (0, -1)]
        more = {"first_id": ends[0], "last_id": ends[1], "has_more": begin + limit < len(items)}
        return _json(msgspec.json.encode({"object": "list", "data": page, **more}))

    @router.post(
        "/v1/responses/input_tokens",
        dependencies=[router.guards.user],
        summary="How many tokens an input has.",
        responses=described(),
    )
    async def input_tokens(request: Request, given: Given[ResponsesBody]) -> Response:
        read = await given.read(gateway.settings, SILENT)
        asked = Responding(gateway, request, read.body, store)
        found = await until_gone(request, counted(gateway, asked.prompt))
        said = {"object": "response.input_tokens", "input_tokens": found}
        return _json(msgspec.json.encode(said))


def _one_of(values: Iterable[str], given: str, name: str, words: str) -> str:
    """Raises HttpError for another one."""
    if given not in values:
        raise refused(f"{name} is {given[:60]!r}; it must be {words}.", name, "invalid_value")
    return given


def _check(body: ResponsesBody) -> None:
    if body.background and not body.keeps:
        raise refused(
            "background needs store=true; else the response could not be fetched.", "background"
        )


def _history(store: Store, caller: str, name: str | None) -> list[ChatMessage]:
    """The conversation that ended with response `name`."""
    if name is None:
        return []
    kept = _found(store, caller, name, "previous_response_id", 400)
    if kept.status not in ("completed", "incomplete"):
        raise refused(
            f"Response {name[:60]!r} is {kept.status}; only complete ones can be continued.",
            "previous_response_id",
        )
    return kept.messages


def _found(store: Store, caller: str, name: str, param: str, status: int) -> Kept:
    kept = store.get(caller, name)
    if kept is None:
        raise _unknown(name, param, status)
    return kept


def _unknown(name: str, param: str, status: int) -> HttpError:
    return refused(
        f"There is no response {name[:60]!r}: it was not stored, or it has been forgotten.",
        param,
        "not_found",
        status,
    )


def _json(encoded: bytes, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encoded, headers=headers, media_type="application/json")
