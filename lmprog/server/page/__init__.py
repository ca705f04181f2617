"""The page of the server, at `/` and `/ui`: its files, its stream of pictures, what can be looked
at closer, its playground.

The files are the same for everybody and hold no data, so they need no key; the page asks for the
key and sends it as a header with everything else. Nothing is loaded from elsewhere, and the policy
sent with the files lets the browser run nothing but them. Knows files and routes; `watching` makes
the pictures, `requests_view` says who may see which request, `blocks` looks into the tree.

The playground is one prompt with one question to it (a text, a JSON value, a choice, several
continuations): a program of a few ops on one branch, as events: the prompt as the runtime saw it
and how much of it was cached, text as it comes, each result with its usage.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from fastapi import Path
from msgspec import Meta
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lmprog import wire
from lmprog.errors import LmprogError, from_wire
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.gateway.routes import GatewayRouter
from lmprog.server.http.auth import Access
from lmprog.server.http.http_errors import problem_of, refused
from lmprog.server.http.json_body import Given
from lmprog.server.http.limits import within
from lmprog.server.http.sse import END, EventStream, event
from lmprog.server.link.exchange import Exchange, calling_request
from lmprog.server.page.requests_view import RequestsView, Viewer
from lmprog.server.page.watching import Blocks, Search, Watcher

Number: TypeAlias = Annotated[int, Path(ge=1, le=2**53)]
STATIC = FilePath(__file__).parent / "static"
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".json": "application/json",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for "
    "'script'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


def router(gateway: Gateway) -> GatewayRouter:
    made = GatewayRouter(gateway, "Page")
    watcher, requests, blocks = Watcher(gateway), RequestsView(gateway), Blocks(gateway)
    asking: dict[str, Any] = {"dependencies": [made.guards.local], "include_in_schema": False}

    def viewer(request: Request) -> Viewer:
        is_admin = request.state.access is Access.ADMIN
        shows_text, account = gateway.settings.ui_show_text, calling_request.get().key
        return Viewer(is_admin, request.state.caller, shows_text, account)

    def may_read(request: Request) -> bool:
        return request.state.access is Access.ADMIN and gateway.settings.ui_show_text

    @made.get("/ui/events", **asking)
    async def events(request: Request) -> Response:
        return await EventStream.begin(request, watcher.frames(viewer(request)), gateway.settings)

    @made.get("/ui/requests/{number}/texts", **asking)
    async def texts(request: Request, number: Number) -> Response:
        return JSONResponse(await requests.texts(number, viewer(request)))

    @made.post("/ui/requests/{number}/cancel", **asking)
    async def cancel(request: Request, number: Number) -> Response:
        requests.cancel(number, viewer(request))
        return JSONResponse({"state": "cancelled"})

    @made.get("/ui/blocks/{number}", **asking)
    async def block(request: Request, number: Number) -> Response:
        return JSONResponse(await blocks.block(number, may_read(request)))

    @made.get("/ui/blocks/{number}/below", **asking)
    async def below(request: Request, number: Number) -> Response:
        return JSONResponse(await blocks.part(number, may_read(request)))

    @made.post("/ui/search", **asking)
    async def search(request: Request, given: Given[Search]) -> Response:
        wanted = (await given.read(gateway.settings)).body.text
        return JSONResponse(await blocks.search(wanted, may_read(request)))

    @made.post("/ui/play", dependencies=[made.guards.generating], include_in_schema=False)
    async def play(request: Request, given: Given[Play]) -> Response:
        read = await given.read(gateway.settings)
        player = Player(gateway, read.body, request.state.caller)
        return await EventStream.begin(request, player.events(), gateway.settings)

    files = {path.name: _file(path) for path in STATIC.iterdir() if path.suffix in TYPES}

    async def file(request: Request) -> Response:
        given = request.path_params
        give = files.get("{name}.{kind}".format_map(given) if given else "index.html")
        if give is None:
            raise HTTPException(404)
        return await give(request)

    for where in ("/", "/ui", "/ui/{name}.{kind}"):
        made.get(where, dependencies=[made.guards.open], include_in_schema=False)(file)
    return made


def _file(path: FilePath) -> Callable[[Request], Awaitable[Response]]:
    """One file, read once; a browser that has it already gets 304."""
    body = path.read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {**HEADERS, "etag": tag}

    async def give(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(
            body, headers={**headers, "content-type": f"{TYPES[path.suffix]}; charset=utf-8"}
        )

    return give


MOST_FORKS = 16


class PlaygroundTurn(msgspec.Struct, frozen=True):
    role: Literal["system", "user", "assistant"]
    content: Annotated[str, Meta(max_length=200_000)]


class Play(msgspec.Struct, frozen=True):
    """Either `messages` (a chat, which the model answers) or `prompt` (a text, which it goes
    on).
    """

    prompt: Annotated[str, Meta(max_length=200_000)] | None = None
    messages: Annotated[list[PlaygroundTurn], within("messages")] | None = None
    schema: dict[str, Any] | None = None
    choices: Annotated[list[Annotated[str, within("choice[]")]], within("choice")] | None = None
    forks: Annotated[int, Meta(ge=1, le=MOST_FORKS)] = 1
    temperature: Annotated[float, within("temperature")] = 0.0
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 64
    seed: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    stop: Annotated[list[Annotated[str, within("stop[]")]], within("stop")] = msgspec.field(
        default_factory=list
    )


class Player:
    """One play. Raises `HttpError` for what cannot be meant."""

    def __init__(self, gateway: Gateway, play: Play, caller: str) -> None:
        if (play.prompt is None) == (play.messages is None):
            raise refused("Give either prompt or messages.", "prompt")
        if play.choices is not None and (play.forks > 1 or play.schema is not None):
            raise refused("A choice goes with neither forks nor a schema.", "choices")
        self._gateway = gateway
        self._play = play
        self._caller = caller

    async def events(self) -> AsyncGenerator[bytes, None]:
        """All events of the play, `[DONE]` at the end. A result that fails is an event; what fails
        all is raised.
        """
        play, gateway = self._play, self._gateway
        with gateway.admit(play.forks), gateway.link.exchange() as exchange:
            trunk, read = exchange.branch(), exchange.call()
            pieces = self._pieces()
            exchange.send(
                wire.Open(trunk, gateway.salt(self._caller)),
                wire.Append(trunk, pieces),
                wire.Read(trunk, read),
            )
            prompt = await exchange.next()
            assert isinstance(prompt, wire.TextIs)
            yield event({"text": prompt.text, "tokens": prompt.num_tokens}, "prompt")
            calls = self._send(exchange, trunk)
            while exchange.waiting:
                reply = await exchange.answer()
                index = calls[getattr(reply, "call", 0)]
                if isinstance(reply, wire.Delta):
                    yield event(
                        {"index": index, "text": reply.text, "tokens": reply.num_tokens}, "delta"
                    )
                elif isinstance(reply, wire.CallDone | wire.Chosen):
                    cut = await self._cached_text(prompt, reply.usage)
                    yield event(
                        {"index": index, "cachedText": cut, **_result(reply, play)}, _name(reply)
                    )
                elif isinstance(reply, wire.Failed):
                    problem = problem_of(from_wire(reply.code, reply.message, reply.details))
                    yield event(
                        {"index": index, "message": problem.message, "code": reply.code}, "failed"
                    )
            yield END

    def _pieces(self) -> tuple[wire.Piece, ...]:
        play = self._play
        if play.messages is None:
            return (wire.TextPiece(play.prompt or ""),)
        pieces: list[wire.Piece] = []
        for turn in play.messages:
            pieces += [
                wire.RoleBegin(turn.role),
                wire.TextPiece(turn.content),
                wire.RoleEnd(turn.role),
            ]
        return (*pieces, wire.RoleBegin("assistant"))

    def _send(self, exchange: Exchange, trunk: int) -> dict[int, int]:
        """Sends the calls; each with the place of its result."""
        play, timeout = self._play, self._gateway.settings.request_timeout
        if play.choices is not None:
            call = exchange.call()
            exchange.send(wire.Select(trunk, call, tuple(play.choices), timeout=timeout))
            return {call: 0}
        constraint = None
        if play.schema is not None:
            constraint = wire.JsonSchema(json.dumps(play.schema, ensure_ascii=False))
        branches = [trunk] if play.forks == 1 else [exchange.branch() for _ in range(play.forks)]
        calls = {exchange.call(): index for index in range(len(branches))}
        ops: list[wire.Op] = [] if play.forks == 1 else [wire.Fork(trunk, tuple(branches))]
        for branch, (call, index) in zip(branches, calls.items(), strict=True):
            sampling = wire.SamplingParams(
                temperature=play.temperature,
                max_tokens=play.max_tokens,
                seed=None if play.seed is None else play.seed + index,
                stop=tuple(play.stop),
            )
            ops.append(
                wire.Generate(branch, call, sampling, constraint, stream=True, timeout=timeout)
            )
        exchange.send(*ops)
        return calls

    async def _cached_text(self, prompt: wire.TextIs, usage: wire.Usage) -> int | None:
        """How many characters of the prompt the cached tokens spell, which are always its first;
        None: not known.
        """
        if self._play.choices is not None:
            return None  # of a select, cached tokens are counted over all options
        cached = min(usage.cached, usage.prompt)
        link = self._gateway.link
        try:
            known = await link.ask(lambda call: wire.Encode(call, prompt.text, prefix=False))
            assert isinstance(known, wire.TokensAre)
            first = known.tokens[: max(0, cached - (prompt.num_tokens - len(known.tokens)))]
            decoded = await link.ask(lambda call: wire.Decode(call, first, special=True))
        except (LmprogError, TimeoutError):
            return None  # the result stands without it
        assert isinstance(decoded, wire.TextIs)
        return len(decoded.text) if prompt.text.startswith(decoded.text) else None


def _name(reply: wire.CallDone | wire.Chosen) -> str:
    return "done" if isinstance(reply, wire.CallDone) else "chosen"


def _result(reply: wire.CallDone | wire.Chosen, play: Play) -> dict[str, Any]:
    usage = {name: getattr(reply.usage, name) for name in reply.usage.__struct_fields__}
    if isinstance(reply, wire.Chosen):
        options = [
            {"text": text, "probability": option.probability, "score": option.score}
            for text, option in zip(play.choices or (), reply.options, strict=True)
        ]
        return {"chosen": reply.index, "options": options, "usage": usage}
    output = reply.outputs[0]
    return {"text": output.text, "forced": output.forced, "finish": output.finish, "usage": usage}
