"""What the server is and holds, under SGLang's names; forgetting the cache.

Knows single calls of the wire and their answers.
"""

from __future__ import annotations

import functools

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from lmprog import wire
from lmprog.server.gateway.gateway import Gateway, version
from lmprog.server.gateway.routes import GatewayRouter
from lmprog.server.http.http_errors import HttpError, Problem
from lmprog.server.http.json_body import described
from lmprog.server.http.sse import until_gone

HEALTH_SECONDS = 20.0
HEALTH_ACCOUNT = "(health)"
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
