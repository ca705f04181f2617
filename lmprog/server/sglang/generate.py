"""`/generate` and `/abort_request`: prompts go out in one frame, results come back as one JSON or
as a stream: `text`, `output_ids` and `meta_info`, as SGLang shapes them.

Two things differ. The first position whose log-probability is asked for has one, unless it is the
prompt's very first token, which nothing precedes: there it is always null. And a request that
generates nothing and asks for log-probabilities gets those of its prompt without saying where they
begin: it can mean no others.

Knows exchanges, and who may end which requests. Fields are in `generate_body`.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from lmprog import wire
from lmprog.errors import from_wire
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.gateway.routes import GatewayRouter
from lmprog.server.http.auth import calling_label
from lmprog.server.http.http_errors import refused
from lmprog.server.http.json_body import Given, described
from lmprog.server.http.large_answers import (
    Encode,
    check_entries,
    entries_in,
    is_beyond,
    made_aside,
)
from lmprog.server.http.sse import END, EventStream, event, until_gone
from lmprog.server.link.exchange import Exchange
from lmprog.server.openai.running_request import read_prompt, warned
from lmprog.server.sglang.generate_body import (
    SILENT,
    GeneratePrompt,
    GenerateRequest,
    names_of,
    prompts_of,
)

_encode = msgspec.json.Encoder().encode
ENTRIES_A_CHUNK = 1024
"""With so many log-probabilities, at most, every delta is a chunk."""
Row = tuple[float | None, int, str | None]
"""One position: log-probability, token, text."""


class AbortRequest(msgspec.Struct, frozen=True):
    rid: Annotated[str, Meta(max_length=160)] = ""
    abort_all: bool = False


class GenerateBatch:
    """The prompts of one request under way."""

    def __init__(
        self,
        gateway: Gateway,
        exchange: Exchange,
        prompts: Sequence[GeneratePrompt],
        salt: str,
        body: GenerateRequest,
    ):
        """Sends everything in one frame."""
        self.prompts = prompts
        self._exchange = exchange
        self._clock = gateway.clock
        self._began = gateway.clock()
        self._calls: dict[int, int] = {}
        """Call -> its prompt's place."""
        self._side_calls: dict[int, int] = {}
        """Calls that ask for a prompt's tokens, or for the text of the first one."""
        self._firsts: dict[int, Row] = {}
        self._done: dict[int, wire.CallDone] = {}
        self._aborted: set[int] = set()
        self.entries = 0
        """Log-probabilities of all results that are made."""
        self.growing = [[GenerateStream() for _ in range(prompt.results)] for prompt in prompts]
        ops: list[wire.Op] = []
        for place, prompt in enumerate(prompts):
            branch, call = exchange.branch(), exchange.call()
            self._calls[call] = place
            ops += [
                wire.Open(branch, salt, turn=calling_label.get()),
                wire.Append(branch, (prompt.piece,)),
                prompt.gen(
                    branch, call, body.stream, body.priority or 0, gateway.settings.request_timeout
                ),
            ]
            if prompt.start == 0:  # the first token has no log-probability, but a place in the list
                ops += self._first_token_calls(place, prompt)
        exchange.send(*ops)

    def abort(self, rid: str | None) -> None:
        """Ends the prompts of that name, or of the batch of that name; None: all of them."""
        for call, place in self._calls.items():
            own = self.prompts[place].rid
            if place not in self._done and (rid is None or own == rid or own.startswith(f"{rid}_")):
                self._aborted.add(place)
                self._exchange.send(wire.Cancel(call))

    async def run(self) -> AsyncIterator[tuple[int, int, list[dict[str, Any]] | None]]:
        """(prompt, index, None) where a result has grown, (prompt, 0, results) where a prompt is
        done.
        """
        left = len(self.prompts)
        while left:
            reply = await self._exchange.answer()
            call = getattr(reply, "call", None)
            if call in self._side_calls:
                self._take_side_reply(reply, self._side_calls[call])
                place = self._side_calls[call]
            elif isinstance(reply, wire.Delta):
                place = self._calls[reply.call]
                if self.growing[place][reply.index].take(reply):
                    yield place, reply.index, None
                continue
            else:
                place = self._calls[call or 0]
                if isinstance(reply, wire.Failed):
                    if place not in self._aborted or reply.code != "cancelled":
                        raise from_wire(reply.code, reply.message, reply.details)
                    left -= 1
                    yield place, 0, aborted(self.prompts[place], self.growing[place])
                    continue
                assert isinstance(reply, wire.CallDone)
                self._done[place] = reply
            prompt = self.prompts[place]
            if place in self._done and (prompt.start != 0 or self._has_first(place)):
                left -= 1
                done, first = self._done[place], self._firsts.get(place)
                seconds = self._clock() - self._began
                make = partial(_results, prompt, done, first, seconds)
                entries = self._entries_of(place)
                self.entries += entries
                yield place, 0, await made_aside(make, entries)

    def _entries_of(self, place: int) -> int:
        """Of the results of one prompt, each of which has those of the prompt."""
        return self.prompts[place].results * entries_in([self._done[place]])

    def chunks(
        self, place: int, index: int, made: list[dict[str, Any]] | None
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """What `run` gave, for a stream: (place among all results, the result so far)."""
        base = sum(prompt.results for prompt in self.prompts[:place])
        if made is not None:
            yield from enumerate(made, base)
            return
        prompt = self.prompts[place]
        known = len(prompt.piece.ids) if isinstance(prompt.piece, wire.TokensPiece) else None
        yield base + index, self.growing[place][index].chunk(prompt, known)

    def _first_token_calls(self, place: int, prompt: GeneratePrompt) -> list[wire.Op]:
        """What must be asked to know the prompt's first token, and its text where that is
        wanted.
        """
        if isinstance(prompt.piece, wire.TokensPiece):
            self._firsts[place] = (None, prompt.piece.ids[0], None)
            return [self._ask_text(place, prompt.piece.ids[0])] if prompt.texts else []
        call = self._exchange.call()
        self._side_calls[call] = place
        return [wire.Encode(call, prompt.piece.text)]

    def _ask_text(self, place: int, token: int) -> wire.Op:
        call = self._exchange.call()
        self._side_calls[call] = place
        return wire.Decode(call, (token,), special=True)

    def _take_side_reply(self, reply: wire.Reply, place: int) -> None:
        prompt = self.prompts[place]
        if isinstance(reply, wire.TokensAre) and reply.tokens:
            self._firsts[place] = (None, reply.tokens[0], None)
            if prompt.texts:
                self._exchange.send(self._ask_text(place, reply.tokens[0]))
        elif isinstance(reply, wire.TextIs):
            self._firsts[place] = (None, self._firsts[place][1], reply.text)

    def _has_first(self, place: int) -> bool:
        """Whether the prompt's first token is known, and its text where that is wanted."""
        first = self._firsts.get(place)
        return first is not None and (first[2] is not None or not self.prompts[place].texts)


class Requests:
    """The batches under way by their callers, who can abort only their own."""

    def __init__(self) -> None:
        self._batches: dict[str, set[GenerateBatch]] = {}

    @contextmanager
    def holding(self, caller: str, batch: GenerateBatch) -> Iterator[GenerateBatch]:
        mine = self._batches.setdefault(caller, set())
        mine.add(batch)
        try:
            yield batch
        finally:
            mine.discard(batch)
            if not mine:
                self._batches.pop(caller, None)

    def abort(self, caller: str, rid: str | None) -> None:
        for batch in self._batches.get(caller, set()):
            batch.abort(rid)


class GenerateEndpoints:
    """The handlers, and the batches that they have under way."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._requests = Requests()

    async def generate(self, request: Request, given: Given[GenerateRequest]) -> Response:
        gateway = self._gateway
        read = await read_prompt(gateway, given, _last_prompt, SILENT)
        body = read.body
        gateway.check_model(body.model)
        prompts, is_batch = await read.aside(
            lambda: prompts_of(body, lambda: secrets.token_hex(16))
        )
        for prompt in prompts:
            prompt.params.constraint()
        await until_gone(request, self._check_entries(prompts))
        request.state.names = names_of(body, prompts)
        is_list = is_batch or prompts[0].results > 1
        headers = warned(read.warnings)
        if body.stream:
            stream = self._events(request, body, prompts, is_list)
            return await EventStream.begin(request, stream, gateway.settings, headers)
        answer = await until_gone(request, self._whole(request, body, prompts, is_list))
        return Response(answer, headers=headers, media_type="application/json")

    async def _check_entries(self, prompts: Sequence[GeneratePrompt]) -> None:
        """Raises HttpError where the answer may have too many log-probabilities. Texts are counted
        as tokens only where their bytes would be too many.
        """
        gateway = self._gateway
        context = gateway.info.context_len
        if not any(prompt.logprobs is not None for prompt in prompts):
            return
        if not is_beyond(sum(one.entries(context) for one in prompts)):
            return
        total = 0
        for one in prompts:
            if isinstance(one.piece, wire.TextPiece) and one.start >= 0:
                found = await gateway.link.ask(_encoding(one.piece.text))
                assert isinstance(found, wire.TokensAre)
                one = replace(one, piece=wire.TokensPiece(found.tokens))
            total += one.entries(context)
        check_entries(total, "top_logprobs_num")

    async def abort(self, request: Request, given: Given[AbortRequest]) -> Response:
        body = (await given.read(self._gateway.settings)).body
        if not body.rid and not body.abort_all:
            raise refused("Give the rid of a request, or abort_all: true.", "rid")
        self._requests.abort(request.state.caller, None if body.abort_all else body.rid)
        return Response(_encode({"success": True}), media_type="application/json")

    @contextmanager
    def _begun(
        self, request: Request, body: GenerateRequest, prompts: list[GeneratePrompt]
    ) -> Iterator[GenerateBatch]:
        gateway, caller = self._gateway, request.state.caller
        salt = gateway.salt(caller, body.extra_key)
        count = sum(prompt.results for prompt in prompts)
        with (
            gateway.admit(count),
            gateway.link.exchange() as exchange,
            self._requests.holding(
                caller, GenerateBatch(gateway, exchange, prompts, salt, body)
            ) as batch,
        ):
            yield batch

    async def _whole(
        self, request: Request, body: GenerateRequest, prompts: list[GeneratePrompt], is_list: bool
    ) -> bytes:
        with self._begun(request, body, prompts) as batch:
            found = {place: made async for place, _, made in batch.run() if made is not None}
            made = [one for place in sorted(found) for one in found[place]]
            answer = made if is_list else made[0]
            return await made_aside(lambda encode: encode(answer), batch.entries)

    async def _events(
        self,
        request: Request,
        body: GenerateRequest,
        prompts: list[GeneratePrompt],
        is_list: bool,
    ) -> AsyncGenerator[bytes, None]:
        with self._begun(request, body, prompts) as batch:
            async for place, index, made in batch.run():
                chunks = partial(_chunks, batch, place, index, made, is_list)
                entries = batch.growing[place][index].entries if made is None else batch.entries
                yield await made_aside(chunks, entries)
        yield END


def _last_prompt(body: GenerateRequest) -> tuple[tuple[wire.Piece], str | None]:
    """Of a body that is still arriving, what it ends in, and its salt. Raises HttpError."""
    prompts, _ = prompts_of(body, str)
    return (prompts[-1].piece,), body.extra_key


def _encoding(text: str) -> Callable[[int], wire.Op]:
    return lambda call: wire.Encode(call, text)


def _results(
    prompt: GeneratePrompt, done: wire.CallDone, first: Row | None, seconds: float, _: Encode
) -> list[dict[str, Any]]:
    return results(prompt, done, first, seconds)


def _chunks(
    batch: GenerateBatch,
    place: int,
    index: int,
    made: list[dict[str, Any]] | None,
    is_list: bool,
    encode: Encode,
) -> bytes:
    return b"".join(
        event({**one, "index": at} if is_list else one, encode=encode)
        for at, one in batch.chunks(place, index, made)
    )


def router(gateway: Gateway) -> GatewayRouter:
    made = GatewayRouter(gateway, "SGLang")
    endpoints = GenerateEndpoints(gateway)
    made.add_api_route(
        "/generate",
        endpoints.generate,
        methods=["POST"],
        dependencies=[made.guards.generating],
        summary="SGLang's native generation.",
        responses=described(streams=True),
    )
    made.add_api_route(
        "/generate",
        endpoints.generate,
        methods=["PUT"],
        dependencies=[made.guards.generating],
        include_in_schema=False,
    )
    made.add_api_route(
        "/abort_request",
        endpoints.abort,
        methods=["POST"],
        dependencies=[made.guards.user],
        summary="Ends requests of /generate by their rid.",
        responses=described(media=""),
    )
    return made


class GenerateStream:
    """One result while it is streamed: everything it has said so far, since SGLang's chunks are
    whole texts.
    """

    def __init__(self) -> None:
        self.text = ""
        self.num_tokens = 0
        self._logprobs: list[wire.TokenLogprob] = []
        self.entries = 0
        """Log-probabilities so far."""
        self._told = 0

    def take(self, delta: wire.Delta) -> bool:
        """Whether a chunk is worth its bytes: it has everything, so that chunks of many
        log-probabilities come only as these grow by an eighth.
        """
        self.text += delta.text
        self.num_tokens += delta.num_tokens
        self._logprobs += delta.logprobs
        self.entries += wire.count_logprobs(delta)
        if self.entries > ENTRIES_A_CHUNK and self.entries < self._told + self._told // 8:
            return False
        self._told = self.entries
        return True

    def chunk(self, prompt: GeneratePrompt, num_prompt: int | None) -> dict[str, Any]:
        """What is known now. The prompt's length is known before the end only where the prompt came
        as tokens.
        """
        meta: dict[str, Any] = {
            "id": prompt.rid,
            "finish_reason": None,
            "completion_tokens": self.num_tokens,
        }
        if num_prompt is not None:
            meta["prompt_tokens"] = num_prompt
        if prompt.logprobs is not None:
            _add_generated(meta, prompt, self._logprobs)
        return {"text": self.text, "meta_info": meta}


def results(
    prompt: GeneratePrompt, done: wire.CallDone, first: Row | None, seconds: float
) -> list[dict[str, Any]]:
    """The `n` results of one prompt. `first`: the prompt's first token, where its log-probabilities
    begin there.
    """
    count = len(done.outputs)
    made = []
    for index, output in enumerate(done.outputs):
        rid = prompt.rid if count == 1 else f"{prompt.rid}_{index}"
        meta: dict[str, Any] = {
            "id": rid,
            "finish_reason": finish_reason(output),
            "prompt_tokens": done.usage.prompt,
            "completion_tokens": len(output.tokens),
            "cached_tokens": done.usage.cached,
            "e2e_latency": seconds,
        }
        if done.left_out:
            meta["constraint_left_out"] = done.left_out
        if prompt.logprobs is not None:
            _add_logprobs(meta, prompt, done, output.logprobs, first)
        kept = output.stopped_by if prompt.params.no_stop_trim else ""
        text = output.text + (kept if isinstance(kept, str) else "")
        made.append({"text": text, "output_ids": output.tokens, "meta_info": meta})
    return made


def aborted(prompt: GeneratePrompt, said: Sequence[GenerateStream]) -> list[dict[str, Any]]:
    """The results of a prompt that `/abort_request` ended: what had been streamed."""
    finish = {
        "type": "abort",
        "message": "Aborted by /abort_request.",
        "status_code": None,
        "err_type": None,
    }
    return [
        {
            "text": one.text,
            "output_ids": (),
            "meta_info": {
                "id": prompt.rid,
                "finish_reason": finish,
                "completion_tokens": one.num_tokens,
            },
        }
        for one in said
    ]


def finish_reason(output: wire.Output) -> dict[str, Any]:
    if output.finish == "length":
        return {"type": "length", "length": len(output.tokens)}
    return {"type": "stop", "matched": output.stopped_by}


def _add_logprobs(
    meta: dict[str, Any],
    prompt: GeneratePrompt,
    done: wire.CallDone,
    generated: Sequence[wire.TokenLogprob],
    first: Row | None,
) -> None:
    scored = [] if prompt.start < 0 else [_row(one, prompt.texts) for one in done.prompt_logprobs]
    tops: list[Any] = (
        [] if prompt.start < 0 else [_top(one, prompt.texts) for one in done.prompt_logprobs]
    )
    if first is not None:
        scored.insert(0, first)
        tops.insert(0, None)
    meta["input_token_logprobs"] = scored
    if prompt.logprobs:
        meta["input_top_logprobs"] = tops
    if done.next_logprobs:
        meta["next_token_logprobs"] = _likely(done.next_logprobs, prompt.texts)
    _add_generated(meta, prompt, generated)


def _add_generated(
    meta: dict[str, Any], prompt: GeneratePrompt, generated: Sequence[wire.TokenLogprob]
) -> None:
    meta["output_token_logprobs"] = [_row(one, prompt.texts) for one in generated]
    meta["output_token_logprobs_length"] = len(generated)
    if prompt.logprobs:
        meta["output_top_logprobs"] = [_top(one, prompt.texts) for one in generated]


def _row(one: wire.TokenLogprob, with_text: bool) -> Row:
    return (one.logprob, one.token, one.text if with_text else None)


def _top(one: wire.TokenLogprob, with_text: bool) -> list[Row]:
    return _likely(one.top, with_text)


def _likely(given: Sequence[tuple[int, str, float]], with_text: bool) -> list[Row]:
    return [(logprob, token, text if with_text else None) for token, text, logprob in given]
