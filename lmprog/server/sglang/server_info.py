"""What the server is and holds, under SGLang's names; forgetting the cache; `/tokenize` and
`/detokenize`: the gateway has no tokenizer, so it asks the runtime.

Knows single calls of the wire and their answers.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from lmprog import wire
from lmprog.errors import ProtocolError
from lmprog.server.gateway.gateway import Gateway, version
from lmprog.server.gateway.routes import GatewayRouter
from lmprog.server.http.http_errors import HttpError, Problem, refused
from lmprog.server.http.json_body import Given, described
from lmprog.server.http.limits import LIMITS, within
from lmprog.server.http.sse import until_gone

HEALTH_SECONDS = 20.0
HEALTH_ACCOUNT = "(health)"
ASKED_AT_A_TIME = 65_536
"""Characters to tokenise, or tokens to decode."""
"""No key's: what is asked for it waits for nobody who was served more."""


def router(gateway: Gateway) -> GatewayRouter:
    made = GatewayRouter(gateway, "SGLang")

    async def model_info() -> Response:
        info = gateway.info
        return JSONResponse(
            {
                "server": "lmprog",  # for those who reach us through somebody else's router
                "model_path": gateway.model_name,
                "served_model_name": gateway.model_name,
                "tokenizer_path": info.model,
                "is_generation": True,
                "preferred_sampling_params": None,
                "context_length": info.context_len,
                "vocab_size": info.vocab_size,
            }
        )

    async def server_info() -> Response:
        info, figures = gateway.info, await gateway.link.figures()
        return JSONResponse(
            {
                "version": version(),
                "model_path": gateway.model_name,
                "context_length": info.context_len,
                "page_size": info.page_size,
                "max_total_num_tokens": info.num_pages * info.page_size,
                "startup_time": gateway.started,
                "internal_states": [figures],
            }
        )

    @made.post(
        "/flush_cache",
        dependencies=[made.guards.admin],
        summary="Forgets all cached prefixes; for the administrator.",
        responses=described(media="text/plain"),
    )
    @made.get("/flush_cache", dependencies=[made.guards.admin], include_in_schema=False)
    async def flush_cache() -> Response:
        await gateway.link.ask(wire.Flush, 60.0)
        return PlainTextResponse("Cache flushed; prefixes of requests under way stay.\n")

    @made.get(
        "/health_generate",
        dependencies=[made.guards.user],
        summary="Whether the runtime still generates: one token.",
        responses=described(media=""),
    )
    async def health_generate(request: Request) -> Response:
        await until_gone(request, _generate_one(gateway))
        return Response(status_code=200)

    for prefix in ("/", "/get_"):
        get = functools.partial(made.get, dependencies=[made.guards.user])
        get(f"{prefix}model_info", summary="The model that is served, under SGLang's names.")(
            model_info
        )
        get(f"{prefix}server_info", summary="What the runtime is, and its counters.")(server_info)
    _add_tokens(made, gateway)
    return made


async def _generate_one(gateway: Gateway) -> None:
    """One token, before everybody else's: whether the runtime still computes. Raises 503 where none
    comes.
    """
    with gateway.link.exchange(is_servers_own=True) as exchange:
        branch, call = exchange.branch(), exchange.call()
        sampling = wire.SamplingParams(temperature=0.0, max_tokens=1)
        gen = wire.Generate(branch, call, sampling, priority=100, timeout=HEALTH_SECONDS)
        opened = wire.Open(branch, "health", account=HEALTH_ACCOUNT)
        exchange.send(opened, wire.Append(branch, (wire.TextPiece("1"),)), gen)
        reply = await exchange.answer()
    if not isinstance(reply, wire.CallDone):
        message = (
            reply.message
            if isinstance(reply, wire.Failed)
            else "the runtime does not answer as it should"
        )
        raise HttpError(
            Problem(503, f"The runtime gave no token: {message}", code="not_generating")
        )


_Id = Annotated[int, within("prompt[]")]


class TokenizeRequest(msgspec.Struct, frozen=True):
    prompt: str | Annotated[list[str], within("prompt")]
    add_special_tokens: bool = True
    model: Annotated[str, within("model")] | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True):
    tokens: Annotated[list[_Id | list[_Id]], Meta(max_length=2**20)]
    skip_special_tokens: bool = True
    model: Annotated[str, within("model")] | None = None


def _add_tokens(made: GatewayRouter, gateway: Gateway) -> None:
    """The routes of tokens, with and without `/v1`."""

    async def tokenize(request: Request, given: Given[TokenizeRequest]) -> Response:
        body = (await given.read(gateway.settings)).body
        gateway.check_model(body.model)
        texts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
        ops = [
            lambda call, text=text: wire.Encode(call, text, body.add_special_tokens)
            for text in texts
        ]
        found = [_tokens(reply) for reply in await until_gone(request, _spelled(gateway, ops))]
        is_list = not isinstance(body.prompt, str)
        counts = [len(tokens) for tokens in found]
        answer: dict[str, Any] = {
            "tokens": found if is_list else found[0],
            "count": counts if is_list else counts[0],
            "max_model_len": gateway.info.context_len,
        }
        return Response(msgspec.json.encode(answer), media_type="application/json")

    async def detokenize(request: Request, given: Given[DetokenizeRequest]) -> Response:
        body = (await given.read(gateway.settings)).body
        gateway.check_model(body.model)
        rows, is_list = _rows(body.tokens)
        special = not body.skip_special_tokens
        ops = [lambda call, row=row: wire.Decode(call, row, special) for row in rows]
        found = [_text(reply) for reply in await until_gone(request, _spelled(gateway, ops))]
        return Response(
            msgspec.json.encode({"text": found if is_list else found[0]}),
            media_type="application/json",
        )

    for prefix in ("", "/v1"):
        post = functools.partial(made.post, dependencies=[made.guards.user], responses=described())
        post(f"{prefix}/tokenize", summary="The tokens of a text.")(tokenize)
        post(f"{prefix}/detokenize", summary="The text of tokens.")(detokenize)


async def _spelled(gateway: Gateway, makes: list[Any]) -> list[wire.Reply]:
    """The answers to questions of texts and tokens, in their order: some are asked at a time, so
    that not much goes on when nobody waits any more. Raises why one of them failed.
    """
    found: dict[int, wire.Reply | None] = {}
    sizes: dict[int, int] = {}
    with gateway.link.exchange() as exchange:

        async def answered() -> int:
            """The size of what was."""
            reply = await exchange.next()
            call = getattr(reply, "call", None) or 0
            found[call] = reply
            return sizes.pop(call, 0)

        total = 0
        for make in makes:
            op: wire.Encode | wire.Decode = make(exchange.call())
            size = len(op.text if isinstance(op, wire.Encode) else op.tokens)
            while sizes and total + size > ASKED_AT_A_TIME:
                total -= await answered()
            found[op.call], sizes[op.call] = None, size
            total += size
            exchange.send(op)
        while sizes:
            await answered()
    return [reply for reply in found.values() if reply is not None]


def _tokens(reply: wire.Reply) -> tuple[int, ...]:
    if not isinstance(reply, wire.TokensAre):
        raise ProtocolError("asked for tokens, the runtime answered something else")
    return reply.tokens


def _text(reply: wire.Reply) -> str:
    if not isinstance(reply, wire.TextIs):
        raise ProtocolError("asked for a text, the runtime answered something else")
    return reply.text


def _rows(given: list[int | list[int]]) -> tuple[list[tuple[int, ...]], bool]:
    rows = [tuple(row) for row in given if isinstance(row, list)]
    single = tuple(token for token in given if isinstance(token, int))
    if rows and single:
        raise refused(
            "tokens is an array of token ids, or an array of such arrays; not both.", "tokens"
        )
    if len(rows) > LIMITS["prompt"].maximum:
        raise refused(
            f"tokens has {len(rows):,} rows; it may have {LIMITS['prompt'].maximum:,.0f}.", "tokens"
        )
    return (rows, True) if rows else ([single], False)
