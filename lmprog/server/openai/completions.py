"""`/v1/completions`: prompts in, as text or token ids; texts out. OpenAI's older form, which
evaluations speak.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Annotated, TypeGuard

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from lmprog import wire
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.gateway.routes import GatewayRouter
from lmprog.server.http.foreign_fields import unsupported
from lmprog.server.http.http_errors import refused
from lmprog.server.http.json_body import Given, described
from lmprog.server.http.large_answers import Encode, entries_in, made_aside
from lmprog.server.http.limits import LIMITS, within
from lmprog.server.http.option_fields import sampling_of
from lmprog.server.http.sse import END, event, until_gone
from lmprog.server.openai import answers
from lmprog.server.openai.output_constraint import constraint_of
from lmprog.server.openai.running_request import (
    PromptFields,
    RequestPrompt,
    RunningAnswers,
    RunningRequest,
    Started,
    answer_request,
    answering,
    as_tokens,
    hinted,
    ids_of,
    needs_counting,
    read_prompt,
)
from lmprog.server.openai.shared_fields import beams_of, check_stream

DEFAULT_MAX_TOKENS = 16


class CompletionBody(PromptFields, kw_only=True):
    prompt: str | list[str | int | list[int]]
    logprobs: Annotated[int, within("logprobs")] | None = None
    echo: bool | None = None
    best_of: Annotated[int, within("best_of")] | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None


class Completions(msgspec.Struct, frozen=True):
    """A request that was understood; `texts` are the prompts' where they are known without
    asking.
    """

    prompts: tuple[RequestPrompt, ...]
    texts: tuple[str | None, ...]
    head: RunningAnswers
    n: int
    """Results given for each prompt; of `best_of`, if that is more."""
    echo: bool
    prompt_logprobs: int | None
    """The request's field of this name."""
    wants_token_ids: bool
    wants_usage: bool
    warnings: tuple[str, ...]
    names: dict[str, str]


def router(gateway: Gateway) -> GatewayRouter:
    made = GatewayRouter(gateway, "OpenAI")

    @made.post(
        "/v1/completions",
        dependencies=[made.guards.generating],
        summary="OpenAI's text completions.",
        responses=described(answers.Completion, streams=True),
    )
    async def complete(request: Request, given: Given[CompletionBody]) -> Response:
        read = await read_prompt(
            gateway, given, lambda body: (last_prompt(gateway, body), body.cache_salt)
        )
        body = read.body
        asked = await read.aside(partial(understood, gateway, body, read.warnings))
        request.state.names = asked.names
        if body.needs_tokens or needs_counting(asked.prompts, gateway.info.context_len):
            known = as_tokens(gateway, asked.prompts, body.truncate_prompt_tokens)
            asked = replace(asked, prompts=await until_gone(request, known))
        events, whole = partial(_events, asked), partial(_whole, asked)
        return await answer_request(gateway, request, body, asked, events, whole)

    return made


def understood(
    gateway: Gateway, body: CompletionBody, warnings: tuple[str, ...] = ()
) -> Completions:
    """What a body asks for, as ops. Raises HttpError."""
    head = answering(gateway, body.model, "cmpl")
    if body.add_special_tokens is False:
        raise unsupported("add_special_tokens", "give the prompt as token ids to leave them out")
    most = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    echo = bool(body.echo)
    if echo and body.return_tokens_as_token_ids:
        raise unsupported("return_tokens_as_token_ids", "with echo, use return_token_ids")
    if most == 0 and not echo:
        raise refused(
            "max_tokens is 0; it must be at least 1, or echo true.", "max_tokens", "invalid_value"
        )
    n, best_of = _counts(body)
    made = constraint_of(body)
    check_stream(body)
    beams = beams_of(body, best_of)
    decided = {
        "max_tokens": most,
        "n": best_of if beams is None else n,
        "logprobs": 0 if best_of > n and beams is None else body.logprobs,
        "prompt_logprobs": _prompt_logprobs(body),
        "beams": beams,
    }
    sampling = sampling_of(body, "openai", decided, gateway.suggested)
    given = _prompts(body.prompt)

    def is_known(one: str | tuple[int, ...]) -> TypeGuard[str]:
        return isinstance(one, str) and body.truncate_prompt_tokens is None

    priority, expected, unheeded = hinted(body)
    prompts = tuple(
        RequestPrompt(
            pieces=_pieces(gateway, body, one),
            sampling=sampling,
            constraint=made.constraint,
            priority=priority,
            expected=expected,
            reads=echo and not is_known(one),
            includes_stop=bool(body.include_stop_str_in_output),
            names_tokens=bool(body.return_tokens_as_token_ids),
            copies=n,
            repeats=echo or bool(body.return_token_ids),
        )
        for one in given
    )
    texts = tuple(one if is_known(one) else None for one in given)
    names = {"constraint": made.field or "prompt", "input_ids": "prompt"}
    if body.looks_ahead:  # a prompt with its answer is what the cache has already
        unheeded = (*unheeded, "nvext.agent_hints.speculative_prefill has no effect")
    everything = (*warnings, *made.warnings, *unheeded)
    return Completions(
        prompts=prompts,
        texts=texts,
        head=head,
        n=n,
        echo=echo,
        prompt_logprobs=body.prompt_logprobs,
        wants_token_ids=bool(body.return_token_ids),
        wants_usage=body.wants_usage,
        warnings=everything,
        names=names,
    )


def _pieces(
    gateway: Gateway, body: CompletionBody, one: str | tuple[int, ...]
) -> tuple[wire.Piece, ...]:
    """A prompt as it is, or with a `suffix` as the model is used to fill gaps. Raises HttpError."""
    prompt = wire.TextPiece(one) if isinstance(one, str) else wire.TokensPiece(one)
    if not body.suffix:
        return (prompt,)
    if not gateway.info.infill:
        raise unsupported("suffix", "this model has no tokens that mark a gap")
    if body.echo:
        raise refused("suffix and echo do not go together; leave out one.", "echo", "conflict")
    before, between, after = (wire.TextPiece(text) for text in gateway.info.infill)
    return (before, prompt, between, wire.TextPiece(body.suffix), after)


def last_prompt(gateway: Gateway, body: CompletionBody) -> Sequence[wire.Piece]:
    """Of a body that is still arriving, what it ends in. Raises HttpError."""
    return understood(gateway, body).prompts[-1].pieces


def _counts(body: CompletionBody) -> tuple[int, int]:
    """Results to give, and to choose them from. Raises HttpError."""
    n = body.n or 1
    best_of = body.best_of or n
    if best_of < n:
        raise refused(f"best_of is {best_of}, less than n, {n}.", "best_of")
    is_drawn = not body.use_beam_search
    if is_drawn and best_of > n and (body.stream or body.logprobs is not None):
        raise refused("best_of more than n goes with neither stream nor logprobs.", "best_of")
    return n, best_of


def _prompt_logprobs(body: CompletionBody) -> int | None:
    """With echo `logprobs` are those of the prompt, too."""
    if not body.echo or body.logprobs is None:
        given: int | None = body.prompt_logprobs
        return given
    if body.prompt_logprobs not in (None, body.logprobs):
        raise refused(
            f"With echo, logprobs, {body.logprobs}, and prompt_logprobs, {body.prompt_logprobs}, "
            "must be equal; leave out prompt_logprobs.",
            "prompt_logprobs",
        )
    return body.logprobs


def _prompts(given: str | list[str | int | list[int]]) -> list[str | tuple[int, ...]]:
    """One text, several, one list of ids, or several of those."""
    if isinstance(given, str):
        return [given]
    if given and all(isinstance(one, int) for one in given):
        given = [[one for one in given if isinstance(one, int)]]
    limit, ids = LIMITS["prompt"], LIMITS["prompt[]"]
    if not limit.minimum <= len(given) <= limit.maximum:
        raise refused(
            f"prompt has {len(given):,} items; it may have {limit.words()}.",
            "prompt",
            "invalid_value",
        )
    found: list[str | tuple[int, ...]] = []
    for at, one in enumerate(given):
        if isinstance(one, int):
            raise refused(
                f"prompt[{at}] is a number among texts or lists; give all as ids, or none.",
                f"prompt[{at}]",
            )
        if isinstance(one, list):
            wrong = next((token for token in one if not ids.minimum <= token <= ids.maximum), None)
            if wrong is not None:
                raise refused(
                    f"prompt[{at}] names token {wrong}; ids go {ids.words()}.",
                    "prompt",
                    "invalid_value",
                )
        found.append(one if isinstance(one, str) else tuple(one))
    return found


def _completion(
    asked: Completions,
    choices: Sequence[answers.TextChoice],
    usage: answers.UsageBody | msgspec.UnsetType | None,
) -> answers.Completion:
    head = asked.head
    return answers.Completion(
        id=head.id,
        created=head.created,
        model=head.model,
        choices=choices,
        system_fingerprint=head.system_fingerprint,
        usage=usage,
    )


def _choices(
    asked: Completions, run: RunningRequest, place: int, done: wire.CallDone
) -> list[answers.TextChoice]:
    """Those of one prompt, the best first where there are more than wanted."""
    outputs = list(done.outputs)
    if len(outputs) > asked.n:
        outputs = sorted(outputs, key=_mean_logprob, reverse=True)[: asked.n]
    prompt = _prompt_text(asked, run, place) if asked.echo else ""
    choices = []
    for index, output in enumerate(outputs):
        logprobs = _logprobs(asked, done, output, prompt)
        reason = answers.finish_of(output)
        number = place * asked.n + index
        stopped_by = answers.stop_reason_of(output, asked.prompts[place].sampling)
        scored = answers.prompt_logprobs(done, asked.prompt_logprobs)
        choice = answers.TextChoice(
            number,
            prompt + output.text,
            reason,
            logprobs,
            stopped_by,
            scored,
            constraint_left_out=answers.left_out_of(done),
            score=answers.score_of(output),
        )
        if asked.wants_token_ids:
            ids = ids_of(asked.prompts[place])
            choice = replace(choice, token_ids=output.tokens, prompt_token_ids=ids)
        choices.append(choice)
    return choices


def _prompt_text(asked: Completions, run: RunningRequest, place: int) -> str:
    known = asked.texts[place]
    return run.texts.get(place, "") if known is None else known


def _logprobs(
    asked: Completions, done: wire.CallDone, output: wire.Output, prompt: str
) -> answers.TextLogprobs | None:
    sampling = asked.prompts[0].sampling
    if sampling.logprobs is None or sampling.n > asked.n:
        return None
    if not asked.echo:
        return answers.text_logprobs(output.logprobs)
    first = prompt[: max(0, len(prompt) - sum(len(one.text) for one in done.prompt_logprobs))]
    return answers.text_logprobs([None, *done.prompt_logprobs, *output.logprobs], first)


def _streamed(logprobs: Sequence[wire.TokenLogprob], offset: int) -> answers.TextLogprobs | None:
    return answers.text_logprobs(logprobs, offset=offset) if logprobs else None


def _mean_logprob(output: wire.Output) -> float:
    """Of a result's tokens, so that longer ones are not at a disadvantage."""
    return sum(one.logprob for one in output.logprobs) / max(1, len(output.logprobs))


def _whole(
    asked: Completions, run: RunningRequest, dones: Sequence[wire.CallDone]
) -> answers.Completion:
    choices = [choice for at, done in enumerate(dones) for choice in _choices(asked, run, at, done)]
    return _completion(asked, choices, answers.usage_of(dones))


def _silent(asked: Completions) -> msgspec.UnsetType | None:
    """The usage of chunks that have none: null where the last one has it."""
    return None if asked.wants_usage else msgspec.UNSET


def _ends(
    asked: Completions,
    run: RunningRequest,
    place: int,
    done: wire.CallDone,
    begun: frozenset[int],
    encode: Encode,
) -> bytes:
    """The last chunks of one prompt's choices, of which some have `begun`."""
    told = b""
    for choice in _choices(asked, run, place, done):
        text = "" if choice.index in begun or not asked.echo else choice.text
        logprobs = choice.logprobs if asked.echo else None
        last = replace(choice, text=text, logprobs=logprobs)
        told += event(_completion(asked, [last], _silent(asked)), encode=encode)
    return told


async def _events(asked: Completions, started: Started) -> AsyncGenerator[bytes, None]:
    """The stream: texts as they come, ends, usage. With echo each choice begins with its prompt,
    and all log-probabilities come at its end, since those of the prompt are known only then."""
    silent = _silent(asked)
    dones: list[wire.CallDone] = []
    begun: dict[int, int] = {}  # choice -> characters whose log-probabilities were sent
    with started() as run:
        async for piece in run.pieces():
            number = piece.prompt * asked.n + piece.index
            if piece.done is None:
                echoed = (
                    _prompt_text(asked, run, piece.prompt)
                    if asked.echo and number not in begun
                    else ""
                )
                logprobs = None if asked.echo else _streamed(piece.logprobs, begun.get(number, 0))
                begun[number] = begun.get(number, 0) + sum(len(one.text) for one in piece.logprobs)
                choice = answers.TextChoice(number, echoed + piece.text, None, logprobs)
                yield event(_completion(asked, [choice], silent))
            else:
                dones.append(piece.done)
                made = partial(_ends, asked, run, piece.prompt, piece.done, frozenset(begun))
                yield await made_aside(made, asked.n * entries_in([piece.done]))
        if asked.wants_usage:
            yield event(_completion(asked, [], answers.usage_of(dones)))
        yield END
