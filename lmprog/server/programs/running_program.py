"""Runs programs for HTTP clients: one frame to the runtime, one JSON or a stream of events back.

Knows exchanges. Names are translated in `translation`, results shaped in `program_results`.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lmprog import wire
from lmprog.server.exchange import Exchange
from lmprog.server.gateway import Gateway
from lmprog.server.http.http_errors import refused
from lmprog.server.http.json_body import Given, described
from lmprog.server.http.sse import END, EventStream, event, until_gone
from lmprog.server.openai.running_request import warned
from lmprog.server.programs.program_body import ProgramBody
from lmprog.server.programs.program_results import result_of, total
from lmprog.server.programs.translation import Translated, Translator
from lmprog.server.routers import GatewayRouter


class RunningProgram:
    """A program under way, and what has come of it so far."""

    def __init__(self, exchange: Exchange, made: Translated) -> None:
        """Sends all of it in one frame."""
        self._exchange = exchange
        self._calls = made.calls
        self.results: dict[str, dict[str, Any]] = {}
        exchange.send(*made.ops)

    async def run(self) -> AsyncIterator[tuple[str, wire.Delta | dict[str, Any]]]:
        """(call's name, more text of it or its result), until every call has ended."""
        while len(self.results) < len(self._calls):
            reply = await self._exchange.answer()
            asked = self._calls[getattr(reply, "call", None) or 0]
            if isinstance(reply, wire.Delta):
                yield asked.name, reply
            else:
                result = result_of(asked, reply)
                self.results[asked.name] = result
                yield asked.name, result

    def summary(self) -> dict[str, Any]:
        has_failed = any(result["type"] == "error" for result in self.results.values())
        return {"status": "failed" if has_failed else "completed", "usage": total(self.results)}


def router(gateway: Gateway) -> GatewayRouter:
    made = GatewayRouter(gateway, "Programs")

    @contextmanager
    def begun(request: Request, body: ProgramBody) -> Iterator[RunningProgram]:
        salt = gateway.salt(request.state.caller, body.cache_salt)
        timeout = gateway.settings.request_timeout
        with gateway.link.exchange() as exchange:
            translator = Translator(exchange.branch, exchange.call, salt, timeout, body.stream)
            for at, op in enumerate(body.ops):
                translator.take(at, op)
            if not translator.made.calls:
                raise refused(
                    "The program asks for nothing: it has no gen, select or read.",
                    "ops",
                    "invalid_program",
                )
            with gateway.admit(translator.made.most_results):
                yield RunningProgram(exchange, translator.made)

    async def whole(request: Request, body: ProgramBody, head: dict[str, Any]) -> bytes:
        with begun(request, body) as program:
            async for _ in program.run():
                pass
            return msgspec.json.encode({**head, **program.summary(), "results": program.results})

    async def events(
        request: Request, body: ProgramBody, head: dict[str, Any]
    ) -> AsyncGenerator[bytes, None]:
        with begun(request, body) as program:
            yield event({**head, "status": "running"}, "program")
            async for name, what in program.run():
                if isinstance(what, wire.Delta):
                    yield event({"call": name, "index": what.index, "text": what.text}, "delta")
                else:
                    yield event({"call": name, **what}, "result")
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
