"""The playground: one prompt with one question to it (a text, a JSON value, a choice, several
continuations).

A program of a few ops on one branch, as events: the prompt as the runtime saw it and how much of it
was cached, text as it comes, each result with its usage. Knows ops and replies; knows nothing of
the page's looks.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from lmprog import wire
from lmprog.errors import LmprogError, from_wire
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.http.http_errors import problem_of, refused
from lmprog.server.http.limits import within
from lmprog.server.http.sse import END, event
from lmprog.server.link.exchange import Exchange

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
