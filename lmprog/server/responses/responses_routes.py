"""`/v1/responses`, and what can be asked of a response afterwards.

Knows how chats reach the runtime. Fields are in `responses_body`, shapes in `response_events`, and
`stored_responses` keeps them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lmprog import wire
from lmprog.errors import LmprogError
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.gateway.routes import GatewayRouter
from lmprog.server.http.http_errors import HttpError, Problem, problem_of, refused
from lmprog.server.http.json_body import Given, described
from lmprog.server.http.large_answers import entries_in, made_aside
from lmprog.server.http.sse import EventStream, until_gone
from lmprog.server.openai import answers
from lmprog.server.openai.chat_completions import ChatCompletions, understood, usage_of
from lmprog.server.openai.messages import CalledFunction, CalledTool, ChatMessage
from lmprog.server.openai.running_request import (
    RequestPrompt,
    counted,
    read_prompt,
    running,
    warned,
)
from lmprog.server.responses.response_events import Writer
from lmprog.server.responses.responses_body import (
    SILENT,
    ResponsesBody,
    ServedTools,
    chat_of,
    messages_of,
    renamed,
)
from lmprog.server.responses.stored_responses import Kept, Store, kept_at

log = logging.getLogger("lmprog.server")

_INTERRUPTED = Problem(503, "The response was interrupted.", code="interrupted")
"""Of a response whose client left before it was written."""


class Responding:
    """One response on its way: the chat that makes it, the writer, the place where it is kept."""

    def __init__(
        self,
        gateway: Gateway,
        request: Request,
        body: ResponsesBody,
        store: Store,
        history: Sequence[ChatMessage],
    ) -> None:
        """`history` is the conversation that it continues. Raises HttpError for what cannot be
        answered.
        """
        self._gateway = gateway
        self._request = request
        self._store = store
        self._salt = body.cache_salt
        caller = request.state.caller
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

    async def written(self) -> None:
        """Waits until other gateways find it, where they share a file."""
        if self.kept is not None:
            await self._store.written(self.kept)

    async def events(self, stream: bool = True) -> AsyncGenerator[bytes, None]:
        """Writes the response, and tells of it."""
        try:
            async for told in self._events(stream):
                yield told
        except (asyncio.CancelledError, GeneratorExit):
            if self.kept is None or not self.kept.is_background:  # else `end_background` says how
                if self.writer.state["status"] not in ("completed", "incomplete"):
                    self.writer.fail(_INTERRUPTED)
                self._seal()
            raise

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
        writer.is_silent = not stream
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
                told += writer.end(piece.done, logprobs, usage_of(self._chat.box, piece.done))
                self._seal()
                await self.written()
                yield told

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
    most, path = gateway.settings.max_stored_bytes, gateway.settings.responses_file
    file = None if path is None else kept_at(path, most)
    store = Store(most, gateway.memory, file=file)
    background: set[asyncio.Task[None]] = set()

    @router.post(
        "/v1/responses",
        dependencies=[router.guards.generating],
        summary="OpenAI's responses.",
        responses=described(streams=True),
    )
    async def create_response(request: Request, given: Given[ResponsesBody]) -> Response:
        read = await read_prompt(gateway, given, partial(_begun, gateway), SILENT)
        body = read.body
        _check(body)
        history = await _history(store, request.state.caller, body.previous_response_id)
        made = await read.aside(partial(Responding, gateway, request, body, store, history))
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
        await made.written()
        return _json(made.json, headers)

    _add_stored(router, gateway, store)
    _add_inputs(router, gateway, store)
    return router


def _add_stored(router: GatewayRouter, gateway: Gateway, store: Store) -> None:
    """What can be asked of a response that is kept."""

    @router.get(
        "/v1/responses/{response}",
        dependencies=[router.guards.user],
        summary="A response that was stored, or its events.",
    )
    async def stored_response(request: Request, response: str) -> Response:
        kept = await _found(store, request.state.caller, response, "response_id", 404)
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
        if not await store.drop(request.state.caller, response):
            raise _unknown(response, "response_id", 404)
        deleted = {"id": response, "object": "response", "deleted": True}
        return _json(msgspec.json.encode(deleted))

    @router.post(
        "/v1/responses/{response}/cancel",
        dependencies=[router.guards.user],
        summary="Ends a response that is written in the background.",
    )
    async def cancel_response(request: Request, response: str) -> Response:
        kept = await _found(store, request.state.caller, response, "response_id", 404)
        if not kept.is_background:
            raise refused(
                "Only a response that was begun with background=true can be cancelled.",
                "response_id",
            )
        if kept.task is not None and not kept.task.done():
            kept.task.cancel()
            await asyncio.wait({kept.task})
        return _json(kept.json)


def _add_inputs(router: GatewayRouter, gateway: Gateway, store: Store) -> None:
    """What responses answer: its items, and how many tokens they are."""

    @router.get(
        "/v1/responses/{response}/input_items",
        dependencies=[router.guards.user],
        summary="What a stored response answers, as items.",
    )
    async def input_items(request: Request, response: str) -> Response:
        kept = await _found(store, request.state.caller, response, "response_id", 404)
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
        history = await _history(store, request.state.caller, read.body.previous_response_id)
        asked = Responding(gateway, request, read.body, store, history)
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


def _begun(gateway: Gateway, body: ResponsesBody) -> tuple[Sequence[wire.Piece], str | None]:
    """The prompt of a body that is still arriving, and its salt. Raises HttpError."""
    if body.previous_response_id is not None:  # what that ended with is read with the whole body
        return (), None
    chat = chat_of(body, messages_of(body.input), ServedTools(body.tools))
    return understood(gateway, chat).prompt.pieces, body.cache_salt


async def _history(store: Store, caller: str, name: str | None) -> list[ChatMessage]:
    """The conversation that ended with response `name`."""
    if name is None:
        return []
    kept = await _found(store, caller, name, "previous_response_id", 400)
    if kept.status not in ("completed", "incomplete"):
        raise refused(
            f"Response {name[:60]!r} is {kept.status}; only complete ones can be continued.",
            "previous_response_id",
        )
    return kept.messages


async def _found(store: Store, caller: str, name: str, param: str, status: int) -> Kept:
    kept = await store.get(caller, name)
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
