"""Runs programs for HTTP clients: one frame to the runtime, one JSON or a stream of events back.

A program's calls come to values under the client's names; one that failed is a value, too. Knows
exchanges and replies. Names are translated in `program_body`. Programs in Python, from a folder of
the server's owner, are run by somebody else: here are their routes.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lmprog import wire
from lmprog.errors import RuntimeGone, from_wire
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.gateway.routes import GatewayRouter
from lmprog.server.http.auth import given_key, headers_of
from lmprog.server.http.http_errors import problem_of, refused
from lmprog.server.http.json_body import Given, described
from lmprog.server.http.large_answers import Encode, check_entries, entries_in, made_aside
from lmprog.server.http.sse import END, EventStream, event, until_gone
from lmprog.server.link.exchange import Exchange
from lmprog.server.openai.running_request import warned
from lmprog.server.programs.program_body import NamedCall, ProgramBody, Translated, Translator

_COMPUTED = ("computed", "recomputed", "drafted", "accepted")
TOKENS = ("prompt", "cached", "generated", "forced", *_COMPUTED)
"""Fields of `wire.Usage` that count tokens; here their names end in `_tokens`."""
NAMES = {
    name: f"{name}_tokens" if name in TOKENS else name for name in wire.Usage.__struct_fields__
}


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


def _check_goes_on(body: ProgramBody, gateway: Gateway) -> None:
    """Raises 412 where nobody has the model with which the program has begun."""
    there = {gateway.info.digest, *(() if gateway.fleet is None else gateway.fleet.models)}
    if body.fingerprint is not None and body.fingerprint not in there:
        gone = RuntimeGone.of_another_model()
        raise refused(gone.message, "fingerprint", gone.code, 412)


def router(gateway: Gateway) -> GatewayRouter:
    made = GatewayRouter(gateway, "Programs")

    @contextmanager
    def begun(request: Request, body: ProgramBody) -> Iterator[RunningProgram]:
        salt = gateway.salt(request.state.caller, body.cache_salt)
        timeout = gateway.settings.request_timeout
        with gateway.link.exchange() as exchange:
            _check_goes_on(body, gateway)
            context = gateway.info.context_len
            translator = Translator(
                exchange.branch, exchange.call, salt, timeout, body.stream, context
            )
            translator.model = body.fingerprint or ""
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


class ProgramFolder(Protocol):
    """Programs in Python, which are run on the server at `url`, as the client with that key."""

    @property
    def parameters(self) -> Mapping[str, Sequence[str]]:
        """Of each program, by its name."""
        ...

    async def run(
        self, name: str, arguments: Mapping[str, Any], url: str, key: str | None
    ) -> tuple[Any, wire.Usage]:
        """What came of it, as JSON has it, and what it took."""
        ...


class ProgramArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a program of the folder is run with."""

    arguments: dict[str, Any] = {}


class FolderRoutes:
    """The programs of a folder, each by its name."""

    def __init__(self, folder: ProgramFolder) -> None:
        self._folder = folder

    def router(self, gateway: Gateway) -> GatewayRouter:
        made, folder = GatewayRouter(gateway, "Programs"), self._folder

        @made.get("/v1/programs", dependencies=[made.guards.local], summary="The server's own.")
        async def listed(request: Request) -> Response:
            told = [{"id": name, "takes": takes} for name, takes in folder.parameters.items()]
            return _json({"object": "list", "data": told})

        @made.post(
            "/v1/programs/{name}",
            dependencies=[made.guards.generating],
            summary="Runs a program of the server's folder.",
            responses=described(),
        )
        async def run(request: Request, given: Given[ProgramArguments]) -> Response:
            body = (await given.read(gateway.settings)).body
            name = request.path_params["name"]
            if name not in folder.parameters:
                known = ", ".join(folder.parameters) or "none"
                raise refused(f"There is no program {name!r}: {known}.", "name", "not_found", 404)
            key = None if gateway.keyring.is_open else given_key(headers_of(request.scope))[0]
            host, port = request.scope["server"]
            url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            running = folder.run(name, body.arguments, url, key)
            value, usage = await until_gone(request, running)
            told = {"object": "program.run", "program": name, "value": value}
            return _json({**told, "usage": total([usage])})

        return made


def _json(told: Mapping[str, Any]) -> Response:
    return Response(msgspec.json.encode(told), media_type="application/json")


def result_of(asked: NamedCall, reply: wire.Reply) -> dict[str, Any]:
    """The value of one call. A failure is a value, too: the other calls of the program have
    theirs.
    """
    match reply:
        case wire.CallDone():
            outputs = [_output(output) for output in reply.outputs]
            following = [_likely(*one) for one in reply.next_logprobs]
            return {
                "type": "gen",
                "text": reply.outputs[0].text,
                "outputs": outputs,
                "usage": usage_of(reply.usage),
                **({"constraint_left_out": reply.left_out} if reply.left_out else {}),
                **_logprobs("prompt_logprobs", reply.prompt_logprobs),
                **({"next_logprobs": following} if following else {}),
            }
        case wire.Chosen():
            options = [
                {
                    "text": text,
                    "score": option.score,
                    "probability": option.probability,
                    "logprobs": option.logprobs,
                    **({"baseline": option.baseline} if option.baseline else {}),
                    **({"tokens": option.tokens} if option.tokens else {}),
                }
                for text, option in zip(asked.choices, reply.options, strict=True)
            ]
            return {
                "type": "select",
                "index": reply.index,
                "text": asked.choices[reply.index],
                "options": options,
                "usage": usage_of(reply.usage),
            }
        case wire.TextIs():
            return {"type": "read", "text": reply.text, "num_tokens": reply.num_tokens}
        case wire.Failed():
            problem = problem_of(from_wire(reply.code, reply.message, reply.details))
            error = {
                "message": problem.message,
                "code": problem.code,
                "param": asked.place,
                "status": problem.status,
            }
            return {"type": "error", "error": error}
    raise AssertionError(f"a call was answered by {type(reply).__name__}")


def usage_of(usage: wire.Usage) -> dict[str, Any]:
    """Tokens by what happened to them, preemptions, and times."""
    return {name: getattr(usage, field) for field, name in NAMES.items()}


def total(used: Sequence[wire.Usage]) -> dict[str, Any]:
    """The work of the whole program."""
    return {name: sum(getattr(one, field) for one in used) for field, name in NAMES.items()}


def _output(output: wire.Output) -> dict[str, Any]:
    made: dict[str, Any] = {
        "text": output.text,
        "tokens": output.tokens,
        "finish_reason": output.finish,
        "stopped_by": output.stopped_by,
    }
    if output.score is not None:
        made["score"] = output.score
    for name in ("seam", "rest"):
        if value := getattr(output, name):
            made[name] = value
    if output.healed is not None:
        made["healed"] = output.healed
    if output.forced:
        made["forced"] = output.forced
    return {**made, **_logprobs("logprobs", output.logprobs)}


def _likely(token: int, text: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "text": text, "logprob": logprob}


def _logprobs(name: str, given: Sequence[wire.TokenLogprob]) -> dict[str, Any]:
    """Nothing where none were asked for."""
    found = [
        {
            "token": one.token,
            "text": one.text,
            "logprob": one.logprob,
            "top": [_likely(*likely) for likely in one.top],
        }
        for one in given
    ]
    return {name: found} if found else {}
