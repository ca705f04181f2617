"""Requests for texts that were understood: their calls under way, and their answers, whole or as
streams.

A request has one or more prompts, each a branch with one gen of `n` results; choice `prompt * n +
index` is the one that OpenAI numbers so. Prompts go out in one frame, deltas and results come back
with their numbers. A request may want the tokens of its prompts, or only the last of them. Chats
and completions are answered here; what they ask for and how an answer looks is theirs. Knows
exchanges and ops; knows no formats.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Annotated, Any, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from lmprog import wire
from lmprog.errors import LmprogError, ProtocolError
from lmprog.server.gateway.gateway import Gateway, version
from lmprog.server.http.auth import calling_key, calling_label
from lmprog.server.http.bodies import RequestBody
from lmprog.server.http.http_errors import HttpError
from lmprog.server.http.json_body import JsonBody
from lmprog.server.http.large_answers import (
    IDS_PER_ENTRY,
    asked_entries,
    check_entries,
    entries_in,
    is_beyond,
    made_aside,
)
from lmprog.server.http.limits import INT31, LIMITS, within
from lmprog.server.http.sse import EventStream, until_gone
from lmprog.server.link.exchange import Exchange
from lmprog.server.openai.shared_fields import SILENT, AgentHints, GenerationFields, Nvext

NO_EFFECT = ("strict_priority", "latency_sensitivity")
"""Hints that nothing here follows."""
_TEMPLATES = 2048
"""Tokens that a template hardly adds by itself."""


class RequestPrompt(msgspec.Struct, frozen=True):
    """What to append to a new branch, and what to generate there."""

    pieces: tuple[wire.Piece, ...]
    sampling: wire.SamplingParams
    constraint: wire.Constraint | None = None
    priority: int = 0
    expected: int | None = None
    """About how many tokens an answer will have, as the caller guesses."""
    reads: bool = False
    """Whether the prompt's own text is wanted, too."""
    copies: int = 1
    """How often the answer has what it says of the prompt."""
    repeats: bool = False
    """Whether that is also its text, or its ids."""
    includes_stop: bool = False
    """Whether a text ends with the stop text that ended it."""
    names_tokens: bool = False
    """Whether log-probabilities name their tokens by id and not by text."""
    thought: wire.ThoughtLimit | None = None
    """How long the answer may think."""
    with_ends: bool = False
    """Whether the answer says where its tokens end, so that those of thoughts can be counted."""


class AnswerPiece(msgspec.Struct, frozen=True, gc=False):
    """More text of one choice, or, where `done` is set, the end of a prompt's choices."""

    prompt: int
    index: int
    text: str
    logprobs: tuple[wire.TokenLogprob, ...] = ()
    done: wire.CallDone | None = None
    tags: tuple[int, ...] = ()
    """Where in the text special tokens begin."""


class RunningAnswers(msgspec.Struct, frozen=True):
    """What every part of an answer has."""

    id: str
    created: int
    model: str
    system_fingerprint: str


def answering(gateway: Gateway, model: str | None, prefix: str) -> RunningAnswers:
    """For a request that names `model`. Raises 404 where that is not served."""
    name = gateway.check_model(model)
    info = gateway.info
    known = f"{info.model} {info.vocab_size} {info.context_len} {info.digest} {version()}"
    return RunningAnswers(
        f"{prefix}-{os.urandom(12).hex()}", int(gateway.wall()), name, _fingerprint(known)
    )


@functools.lru_cache(maxsize=8)
def _fingerprint(known: str) -> str:
    """A name for the model and the software, as OpenAI's answers have it."""
    return "fp_" + hashlib.sha256(known.encode()).hexdigest()[:12]


class RunningRequest:
    """The calls of one request."""

    def __init__(
        self,
        exchange: Exchange,
        prompts: Sequence[RequestPrompt],
        salt: str,
        stream: bool,
        timeout: float | None,
    ):
        """Sends everything at once. Raises what the link raises."""
        self._exchange = exchange
        self._prompts = prompts
        self._places: dict[int, int] = {}
        self.texts: dict[int, str] = {}
        """The texts of prompts that asked to be read."""
        ops: list[wire.Op] = []
        for place, prompt in enumerate(prompts):
            branch = exchange.branch()
            opened = wire.Open(branch, salt, turn=calling_label.get())
            ops += [opened, wire.Append(branch, prompt.pieces)]
            if prompt.reads:
                ops.append(wire.Read(branch, self._call(place)))
            gen = wire.Generate(
                branch,
                self._call(place),
                prompt.sampling,
                prompt.constraint,
                stream=stream,
                priority=prompt.priority,
                timeout=timeout,
                thought=prompt.thought,
                expected=prompt.expected,
                with_ends=prompt.with_ends,
            )
            ops.append(gen)
        self._left = len(prompts)
        self._branch = branch
        exchange.send(*ops)

    def expect(self, following: wire.Conversation) -> None:
        """What the chat is expected to go on with is computed while the runtime has nothing else to
        do.
        """
        self._exchange.following[self._branch] = following

    def _call(self, place: int) -> int:
        number = self._exchange.call()
        self._places[number] = place
        return number

    async def pieces(self) -> AsyncIterator[AnswerPiece]:
        """Until every prompt is done. Raises what failed first."""
        while self._left:
            reply = await self._exchange.next()
            if isinstance(reply, wire.Delta):
                place = self._places[reply.call]
                logprobs = self._named(place, reply.logprobs)
                yield AnswerPiece(place, reply.index, reply.text, logprobs, None, reply.tags)
            elif isinstance(reply, wire.CallDone):
                place = self._places[reply.call]
                if self._prompts[place].includes_stop:
                    for index, output in enumerate(reply.outputs):
                        if isinstance(output.stopped_by, str):
                            yield AnswerPiece(place, index, output.stopped_by)
                yield AnswerPiece(place, 0, "", done=self._ended(place, reply))
            elif isinstance(reply, wire.TextIs):
                self.texts[self._places[reply.call]] = reply.text

    def _ended(self, place: int, done: wire.CallDone) -> wire.CallDone:
        """The result of a prompt, as the request wants it."""
        self._left -= 1
        prompt = self._prompts[place]
        if prompt.includes_stop:
            done = _with_stops(done)
        if prompt.names_tokens:
            outputs = tuple(
                replace(one, logprobs=self._named(place, one.logprobs)) for one in done.outputs
            )
            done = replace(done, outputs=outputs)
        return done

    def _named(
        self, place: int, given: tuple[wire.TokenLogprob, ...]
    ) -> tuple[wire.TokenLogprob, ...]:
        """The log-probabilities of a result, with the names of tokens that its prompt asks for."""
        if not self._prompts[place].names_tokens:
            return given
        return tuple(
            replace(
                one,
                text=f"token_id:{one.token}",
                top=tuple((token, f"token_id:{token}", value) for token, _, value in one.top),
            )
            for one in given
        )

    async def dones(self) -> list[wire.CallDone]:
        """All results, in the order of the prompts."""
        found: dict[int, wire.CallDone] = {}
        while self._left:
            reply = await self._exchange.next()
            if isinstance(reply, wire.CallDone):
                place = self._places[reply.call]
                found[place] = self._ended(place, reply)
            elif isinstance(reply, wire.TextIs):
                self.texts[self._places[reply.call]] = reply.text
        return [found[place] for place in sorted(found)]


def _with_stops(done: wire.CallDone) -> wire.CallDone:
    """Each text with the stop text that ended it."""
    outputs = tuple(
        replace(output, text=output.text + output.stopped_by)
        if isinstance(output.stopped_by, str)
        else output
        for output in done.outputs
    )
    return replace(done, outputs=outputs)


def asked_by(prompts: Sequence[RequestPrompt], context: int) -> int:
    """How many log-probabilities the answer may have at most. A text may have as many tokens as
    bytes.
    """
    total = 0
    for prompt in prompts:
        sampling = prompt.sampling
        scores = sampling.prompt_logprobs is not None
        if not scores and sampling.logprobs is None and (prompt.copies == 1 or not prompt.repeats):
            continue
        tokens = min(context, sum(map(most_tokens, prompt.pieces)))
        total += asked_entries(sampling, tokens, context, prompt.copies)
        if prompt.repeats and prompt.copies > 1:
            total += tokens * prompt.copies // IDS_PER_ENTRY
    return total


def needs_counting(prompts: Sequence[RequestPrompt], context: int) -> bool:
    """Whether only the tokens of the prompts' texts tell that the answer is not too large."""
    return is_beyond(asked_by(prompts, context)) and not all(
        isinstance(one, wire.TokensPiece) for prompt in prompts for one in prompt.pieces
    )


def most_tokens(piece: wire.Piece) -> int:
    """Of a piece of a prompt. Those of roles and templates are not known here."""
    match piece:
        case wire.TextPiece(text=text):
            return len(text.encode("utf-8", "surrogatepass")) + 1
        case wire.TokensPiece(ids=ids, rest=rest):
            return len(ids) + len(rest.encode("utf-8", "surrogatepass"))
    return INT31


@contextmanager
def running(
    gateway: Gateway,
    request: Request,
    prompts: Sequence[RequestPrompt],
    stream: bool,
    cache_salt: str | None,
) -> Iterator[RunningRequest]:
    """Lets the request in, sends its calls, and closes them at the end, however that comes."""
    salt = gateway.salt(request.scope["state"]["caller"], cache_salt)
    context = gateway.info.context_len
    check_entries(asked_by(prompts, context), "logprobs")
    results = sum([prompt.sampling.num_sequences for prompt in prompts])
    with gateway.admit(results), gateway.link.exchange() as exchange:
        yield RunningRequest(exchange, prompts, salt, stream, gateway.settings.request_timeout)


Of = TypeVar("Of", bound=msgspec.Struct)


async def read_prompt(
    gateway: Gateway,
    given: JsonBody[Of],
    asked: Callable[[Of], tuple[Sequence[wire.Piece], str | None]],
    silent: Iterable[str] = SILENT,
) -> RequestBody[Of]:
    """Reads a body. What is known of its prompt while the rest arrives is computed where nobody
    else needs the runtime, until it is known what is asked. `asked` gives the prompt's pieces and
    the salt that the body names. Raises HttpError, ClientGone.
    """
    with ExitStack() as known:

        def begun(body: Of) -> None:
            known.close()
            try:
                pieces, salt = asked(body)
                if any(map(_is_begun, pieces)):
                    exchange = known.enter_context(gateway.link.exchange())
                    branch = exchange.branch()
                    opened = wire.Open(branch, gateway.salt(given.caller, salt))
                    exchange.send(opened, wire.Append(branch, tuple(pieces), early=True))
            except (HttpError, LmprogError):  # the whole body is right, or is answered with that
                known.close()

        return await given.read(gateway.settings, silent, begun)


def _is_begun(piece: wire.Piece) -> bool:
    """Whether it ends where its text has not been said yet."""
    if isinstance(piece, wire.Conversation):
        return wire.UNSAID in piece.messages
    return isinstance(piece, wire.TextPiece) and wire.UNSAID in piece.text


def warned(warnings: Sequence[str]) -> Mapping[str, str]:
    """The `warning` header, if there is something to warn of."""
    return {"warning": ", ".join(f'299 lmprog "{text}"' for text in warnings)} if warnings else {}


class PromptFields(GenerationFields, kw_only=True):
    """What chats and completions have alike: with `truncate_prompt_tokens` only the last tokens of
    a longer prompt stay, with `return_token_ids` an answer has the tokens of prompt and result, and
    with `return_tokens_as_token_ids` log-probabilities name tokens by their ids.
    """

    truncate_prompt_tokens: Annotated[int, within("truncate_prompt_tokens")] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    nvext: Nvext | None = None

    @property
    def looks_ahead(self) -> bool:
        """Whether what the next turn begins with should be computed once this one has ended."""
        hints = None if self.nvext is None else self.nvext.agent_hints
        return hints is not None and bool(hints.speculative_prefill)

    @property
    def needs_tokens(self) -> bool:
        """Whether the prompt has to be known as tokens before it is run."""
        return self.truncate_prompt_tokens is not None or bool(self.return_token_ids)


def hinted(body: PromptFields) -> tuple[int, int | None, tuple[str, ...]]:
    """A request's priority, the expected length of an answer, and warnings. A hint's priority is
    lowered to what the caller's key may claim, and is left where the body has its own.
    """
    hints = AgentHints() if body.nvext is None else body.nvext.agent_hints or AgentHints()
    told = [f"nvext.agent_hints.{name} has no effect" for name in NO_EFFECT if getattr(hints, name)]
    priority = body.priority
    if priority is None and hints.priority is not None:
        key, limit = calling_key.get(), LIMITS["priority"]
        most = int(limit.maximum) if key is None else key.max_priority
        priority = max(int(limit.minimum), min(hints.priority, most))
        if priority < hints.priority:
            told.append(f"nvext.agent_hints.priority is lowered to {priority}")
    return priority or 0, hints.osl or None, tuple(told)


async def as_tokens(
    gateway: Gateway, prompts: Sequence[RequestPrompt], most: int | None
) -> tuple[RequestPrompt, ...]:
    """The same prompts as their tokens; of more than `most` the last ones. Raises what the runtime
    says of one.
    """
    rows: dict[int, tuple[int, ...]] = {}
    with gateway.link.exchange() as exchange:
        calls: dict[int, int] = {}
        for place, prompt in enumerate(prompts):
            branch, call = exchange.branch(), exchange.call()
            calls[call] = place
            read = wire.Read(branch, call, with_tokens=True)
            exchange.send(wire.Open(branch), wire.Append(branch, prompt.pieces), read)
        while len(rows) < len(prompts):
            reply = await exchange.next()
            if not isinstance(reply, wire.TextIs):
                raise ProtocolError("asked for tokens, the runtime answered something else")
            rows[calls[reply.call]] = reply.tokens if most is None else reply.tokens[-most:]
    return tuple(
        replace(prompt, pieces=(wire.TokensPiece(rows[place]),))
        for place, prompt in enumerate(prompts)
    )


async def counted(gateway: Gateway, prompt: RequestPrompt) -> int:
    """How many tokens the prompt has."""
    with gateway.link.exchange() as exchange:
        branch = exchange.branch()
        read = wire.Read(branch, exchange.call())
        exchange.send(wire.Open(branch), wire.Append(branch, prompt.pieces), read)
        reply = await exchange.next()
    assert isinstance(reply, wire.TextIs)
    return reply.num_tokens


def _longest(piece: wire.Piece) -> int:
    """More tokens than a piece of a prompt can have: of a conversation, the bytes of its JSON and
    what a template may add.
    """
    if isinstance(piece, wire.Conversation):
        return len(piece.messages) + len(piece.tools) + len(piece.variables) + _TEMPLATES
    return most_tokens(piece)


async def fitted(gateway: Gateway, prompt: RequestPrompt) -> tuple[RequestPrompt, bool]:
    """The same prompt with `max_tokens` that fit into the context behind it, and whether these are
    fewer: some clients always name the most that their own service allows. Its tokens are asked for
    only where they may matter.
    """
    context, most = gateway.info.context_len, prompt.sampling.max_tokens
    if most is None or most + sum(map(_longest, prompt.pieces)) <= context:
        return prompt, False
    (known,) = await as_tokens(gateway, (prompt,), None)
    left = max(1, context - len(ids_of(known)))
    sampling = replace(prompt.sampling, max_tokens=min(most, left))
    return replace(known, sampling=sampling), left < most


def ids_of(prompt: RequestPrompt) -> tuple[int, ...]:
    """The tokens of a prompt that `as_tokens` has made."""
    (piece,) = prompt.pieces
    assert isinstance(piece, wire.TokensPiece)
    return piece.ids


Started: TypeAlias = Callable[[], AbstractContextManager[RunningRequest]]
"""Sends the request's calls when it is entered, and closes them when it is left."""


class UnderstoodRequest(Protocol):
    """What a body asks for."""

    @property
    def prompts(self) -> tuple[RequestPrompt, ...]: ...

    @property
    def warnings(self) -> tuple[str, ...]: ...


async def answer_request(
    gateway: Gateway,
    request: Request,
    body: GenerationFields,
    asked: UnderstoodRequest,
    events: Callable[[Started], AsyncGenerator[bytes, None]],
    whole: Callable[[RunningRequest, Sequence[wire.CallDone]], Any],
) -> Response:
    """`events` are the stream's, `whole` is the answer without one. Raises HttpError."""
    headers = warned(asked.warnings) if asked.warnings else None
    started = partial(running, gateway, request, asked.prompts, bool(body.stream), body.cache_salt)
    if body.stream:
        return await EventStream.begin(request, events(started), gateway.settings, headers)
    with started() as run:
        dones = await until_gone(request, run.dones())
        answer = await made_aside(lambda encode: encode(whole(run, dones)), entries_in(dones))
    return Response(answer, headers=headers, media_type="application/json")
