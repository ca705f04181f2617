"""Runs programs for HTTP clients: one frame to the runtime, one JSON or a stream of events back.

Knows exchanges. Names are translated in `translation`, results shaped in `program_results`.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from lmprog import wire
from lmprog.errors import RuntimeGone
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.gateway.routes import GatewayRouter
from lmprog.server.http.http_errors import refused
from lmprog.server.http.json_body import Given, described
from lmprog.server.http.large_answers import Encode, check_entries, entries_in, made_aside
from lmprog.server.http.sse import END, EventStream, event, until_gone
from lmprog.server.link.exchange import Exchange
from lmprog.server.openai.running_request import warned
from lmprog.server.programs.program_body import ProgramBody
from lmprog.server.programs.program_results import result_of, total
from lmprog.server.programs.translation import NamedCall, Translated, Translator


class RunningProgram:
    """A program under way, and what has come of it so far."""

    def __init__(self, exchange: Exchange, made: Translated) -> None:
        """Sends all of it in one frame."""
        self._exchange = exchange
        self._calls = made.calls
        self._left = len(made.calls)
        self._used: list[wire.Usage] = []
        self._has_failed = False
        exchange.send(*made.ops)

    async def run(self) -> AsyncIterator[tuple[NamedCall, wire.Reply]]:
        """(call, more text of it or its result), until every call has ended."""
        while self._left:
            reply = await self._exchange.answer()
            if not isinstance(reply, wire.Delta):
                self._left -= 1
                self._has_failed |= isinstance(reply, wire.Failed)
                if isinstance(reply, wire.CallDone | wire.Chosen):
                    self._used.append(reply.usage)
            yield self._calls[getattr(reply, "call", None) or 0], reply

    def summary(self) -> dict[str, Any]:
        """Of what has ended so far."""
        status = "failed" if self._has_failed else "completed"
        return {"status": status, "usage": total(self._used)}


def shaped(ended: Sequence[tuple[NamedCall, wire.Reply]]) -> dict[str, Any]:
    """The results by the names of their calls."""
    return {asked.name: result_of(asked, reply) for asked, reply in ended}


def _result_event(asked: NamedCall, reply: wire.Reply, encode: Encode) -> bytes:
    return event({"call": asked.name, **result_of(asked, reply)}, "result", encode)


def _check_goes_on(body: ProgramBody, info: wire.Welcome) -> None:
    """Raises 412 where the program has begun with another model than the one that is there now."""
    if body.fingerprint is not None and body.fingerprint != info.digest:
        raise refused(
            "The model was replaced, and this program had begun with another; begin it anew.",
            "fingerprint",
            RuntimeGone.code,
            412,
        )


def router(gateway: Gateway) -> GatewayRouter:
    made = GatewayRouter(gateway, "Programs")

    @contextmanager
    def begun(request: Request, body: ProgramBody) -> Iterator[RunningProgram]:
        salt = gateway.salt(request.state.caller, body.cache_salt)
        timeout = gateway.settings.request_timeout
        with gateway.link.exchange() as exchange:
            _check_goes_on(body, gateway.info)
            context = gateway.info.context_len
            translator = Translator(
                exchange.branch, exchange.call, salt, timeout, body.stream, context
            )
            for at, op in enumerate(body.ops):
                translator.take(at, op)
            if not translator.made.calls:
                raise refused(
                    "The program asks for nothing: it has no gen, select or read.",
                    "ops",
                    "invalid_program",
                )
            check_entries(translator.made.entries, "ops")
            with gateway.admit(translator.made.most_results):
                yield RunningProgram(exchange, translator.made)

    async def whole(request: Request, body: ProgramBody, head: dict[str, Any]) -> bytes:
        with begun(request, body) as program:
            ended = [one async for one in program.run() if not isinstance(one[1], wire.Delta)]
            return await made_aside(
                lambda encode: encode({**head, **program.summary(), "results": shaped(ended)}),
                entries_in(reply for _, reply in ended),
            )

    async def events(
        request: Request, body: ProgramBody, head: dict[str, Any]
    ) -> AsyncGenerator[bytes, None]:
        with begun(request, body) as program:
            yield event({**head, "status": "running"}, "program")
            async for asked, reply in program.run():
                if isinstance(reply, wire.Delta):
                    told = {"call": asked.name, "index": reply.index, "text": reply.text}
                    yield event(told, "delta")
                else:
                    made = partial(_result_event, asked, reply)
                    yield await made_aside(made, entries_in([reply]))
            yield event({**head, **program.summary()}, "done") + END

    @made.post(
        "/v1/programs",
        dependencies=[made.guards.generating],
        summary="A whole program: forks, references, choices.",
        responses=described(streams=True),
    )
    async def programs(request: Request, given: Given[ProgramBody]) -> Response:
        read = await given.read(gateway.settings)
        head = {
            "id": f"program-{secrets.token_hex(12)}",
            "object": "program",
            "created": int(gateway.wall()),
            "model": gateway.check_model(read.body.model),
        }
        headers = warned(read.warnings)
        if read.body.stream:
            stream = events(request, read.body, head)
            return await EventStream.begin(request, stream, gateway.settings, headers)
        answer = await until_gone(request, whole(request, read.body, head))
        return Response(answer, headers=headers, media_type="application/json")

    return made
