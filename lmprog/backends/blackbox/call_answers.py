"""Answers calls on a branch: from speculated text, by one request, or by several.

Maps a branch's state and an op to a new state and the wire's final reply. What the service cannot
do of a call is done here, with its answers: it is asked for one token where none is wanted, texts
are validated against constraints that it did not enforce, and the result that is kept comes first.
Knows no queues and no threads.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

import msgspec

from lmprog import wire
from lmprog.backends.blackbox.api import Api, ApiAnswer, ApiRequest, TextListener
from lmprog.backends.blackbox.response_schema import is_valid, unfenced
from lmprog.backends.blackbox.retry_policy import RetryCounters
from lmprog.backends.blackbox.speculation import (
    AnswerState,
    ReadyAnswer,
    Speculated,
    extended_sampling,
    may_speculate,
)
from lmprog.backends.blackbox.stop_strings import Certain
from lmprog.backends.blackbox.tool_call_fields import prompt_with_tools
from lmprog.backends.blackbox.transcript import ChatPrompt, Prompt
from lmprog.backends.majority import kept_first
from lmprog.errors import (
    GrammarError,
    InvalidParameter,
    LmprogError,
    NotSupported,
    RequestRejected,
    ValidationFailed,
)

Constraints: TypeAlias = Literal["enforced", "best_effort"]
"""How to treat a constraint that the service cannot enforce: reject it, or validate the text
afterwards.
"""


class CallAnswers:
    """Answers the calls of one backend."""

    def __init__(
        self,
        api: Api,
        counters: RetryCounters,
        *,
        constraints: Constraints = "enforced",
        tries: int = 3,
        concurrency: int = 64,
    ) -> None:
        """At most `concurrency` requests are in flight; further ones wait. `tries` applies to
        "best_effort".
        """
        if constraints not in ("enforced", "best_effort"):
            allowed = "'enforced' or 'best_effort'"
            raise InvalidParameter(
                f"constraints={constraints!r} is not allowed; give {allowed}",
                name="constraints",
                allowed=allowed,
            )
        if tries < 1:
            raise InvalidParameter(
                f"tries={tries} is not allowed; give 1 <= x", name="tries", value=tries
            )
        if concurrency < 1:
            message = f"concurrency={concurrency} is not allowed; give 1 <= x"
            raise InvalidParameter(message, name="concurrency", value=concurrency)
        self.api = api
        self.counters = counters
        self._constraints = constraints
        self._tries = tries
        self._room = asyncio.Semaphore(concurrency)

    # --- generations

    async def gen(
        self, state: AnswerState, op: wire.Generate, on_text: TextListener | None
    ) -> tuple[AnswerState, wire.CallDone | LmprogError]:
        """Raises `LmprogError` if the branch is unchanged. Returns one if the call failed but the
        state of the branch has changed.
        """
        _refuse_layout(op.constraint)
        if op.judge is not None:
            raise NotSupported(
                "an API is not asked to judge its results; leave the judge out, or use a backend "
                "on lmprog's runtime"
            )
        if op.sampling.max_tokens == 0:
            return await self._prefilled(state, op)
        ready = (
            None
            if state.speculated is None or op.tools is not None
            else state.speculated.answer(op.sampling, op.constraint)
        )
        if ready is not None:
            self.counters.answered_from_speculation += 1
            return self._answer_ready(state, op, ready, wire.Usage(), on_text)
        if state.speculated is not None:
            self.drop(state.speculated)
        state, prompt, tools = prompt_with_tools(state, op.tools, self.api.kind)
        spent = wire.Usage()
        if state.num_spec_tokens and tools is None and may_speculate(op.sampling, op.constraint):
            done, spent = await self._speculate(state, op, prompt, on_text)
            if done is not None:
                return done
        refused = self._refusal(prompt, state)
        if refused is not None:
            return replace(state, has_missed=True), refused
        if op.constraint is not None and not self.api.enforces(op.constraint, prompt):
            answer, is_streamed = await self._validated(op, prompt, tools), False
        else:
            is_streamed = _keeps_first(op)
            request = ApiRequest(prompt, _sampling_to_request(op), op.constraint, tools, op.heal)
            answer = await self._request(request, on_text if is_streamed else None)
        outputs = _in_kept_order(op, answer.outputs)
        if on_text is not None and not is_streamed:
            for index, output in enumerate(outputs):
                on_text(index, output.text, 1)
        reply = wire.CallDone(
            op.call,
            outputs,
            _sum(spent, answer.usage),
            answer.prompt_logprobs,
            left_out=answer.left_out,
        )
        return state.with_result(op, reply), reply

    async def _prefilled(
        self, state: AnswerState, op: wire.Generate
    ) -> tuple[AnswerState, wire.CallDone | LmprogError]:
        """A call that generates nothing. Not every service computes a prompt alone: each is asked
        for one token, without a constraint and stops, which have no text to hold. The token is not
        kept, but for the likeliest ones beside it; the usage is what the service counts.
        """
        state, prompt, tools = prompt_with_tools(state, op.tools, self.api.kind)
        refused = self._refusal(prompt, state)
        if refused is not None:
            return state, refused
        sampling = msgspec.structs.replace(
            op.sampling, max_tokens=1, min_tokens=0, n=1, stop=(), stop_regex=(), stop_token_ids=()
        )
        answer = await self._request(ApiRequest(prompt, sampling, tools=tools), None)
        scored = answer.outputs[0].logprobs
        outputs = tuple(wire.Output("", (), "length") for _ in range(op.sampling.n))
        next_logprobs = scored[0].top if scored else ()
        done = wire.CallDone(op.call, outputs, answer.usage, next_logprobs=next_logprobs)
        return state.with_result(op, done), done

    def drop(self, speculated: Speculated) -> None:
        """Counts speculated text that was discarded."""
        self.counters.speculation_dropped += bool(speculated.rest)

    async def _request(self, request: ApiRequest, on_text: TextListener | None) -> ApiAnswer:
        async with self._room:
            answer = await self.api.generate(request, on_text)
        self.counters.prompt_tokens += answer.usage.prompt
        self.counters.completion_tokens += answer.usage.generated
        return answer

    def _refusal(self, prompt: Prompt, state: AnswerState) -> NotSupported | None:
        """Why the API cannot generate at this point; None if it can."""
        if not isinstance(prompt, ChatPrompt) or not prompt.partial or self.api.can_prefill:
            return None
        hint = (
            "give it more tokens, or" if state.num_spec_tokens else "use num_api_spec_tokens=N, or"
        )
        return NotSupported(
            f"this chat API cannot go on inside a turn that was begun for it "
            f"({prompt.partial[-60:]!r}); let the generation come first in the assistant's turn, "
            "or put that text into the user's turn; for several generations in one turn, "
            f"{hint} prefill='continue' where the server knows continue_final_message"
        )

    def _answer_ready(
        self,
        state: AnswerState,
        op: wire.Generate,
        ready: ReadyAnswer,
        usage: wire.Usage,
        on_text: TextListener | None,
    ) -> tuple[AnswerState, wire.CallDone]:
        if on_text is not None and ready.text:
            on_text(0, ready.text, 1)
        output = wire.Output(ready.text, (), ready.finish, ready.stopped_by)
        reply = wire.CallDone(op.call, (output,), usage)
        return state.with_result(op, reply, ready.left), reply

    # --- speculation

    async def _speculate(
        self, state: AnswerState, op: wire.Generate, prompt: Prompt, on_text: TextListener | None
    ) -> tuple[tuple[AnswerState, wire.CallDone] | None, wire.Usage]:
        """Requests more than `op` needs. Returns the result and the usage; the result is None if
        the end of the call cannot be determined from the answer.

        A chat model that cannot continue a prefilled turn is asked for the whole turn, which must
        begin like the open one. This is tried once per turn, since a retry would give the same
        text.
        """
        whole_turn = (
            isinstance(prompt, ChatPrompt) and bool(prompt.partial) and not self.api.can_prefill
        )
        if whole_turn and (state.has_missed or state.transcript.has_result_in_turn):
            return None, wire.Usage()
        partial = prompt.partial if isinstance(prompt, ChatPrompt) and whole_turn else ""
        asked = extended_sampling(op.sampling, state.num_spec_tokens, partial)
        sent = (
            replace(prompt, partial="") if isinstance(prompt, ChatPrompt) and whole_turn else prompt
        )
        is_all_wanted = asked.max_tokens == op.sampling.max_tokens and not partial
        certain = (
            _Forward(Certain(op.sampling.stop), on_text)
            if on_text is not None and is_all_wanted
            else None
        )
        try:
            answer = await self._request(
                ApiRequest(sent, asked), None if certain is None else certain.on_text
            )
        except RequestRejected:
            if asked.logprobs is None:
                raise
            return None, wire.Usage()  # the API has no log-probabilities: send an ordinary request
        output = answer.outputs[0]
        speculated = Speculated.of(output, asked, answer.usage.generated).after(partial)
        ready = None if speculated is None else speculated.answer(op.sampling, None)
        if ready is None and speculated is not None and is_all_wanted:
            ready = ReadyAnswer(
                speculated.rest,
                output.finish,
                None,
                speculated.after(speculated.rest) or speculated,
            )
        if ready is None:
            return None, answer.usage
        if certain is not None:
            certain.finish(len(ready.text))
        return self._answer_ready(
            state, op, ready, answer.usage, on_text if certain is None else None
        ), answer.usage

    # --- constraints that the service cannot enforce

    async def _validated(
        self, op: wire.Generate, prompt: Prompt, tools: wire.ToolOffer | None
    ) -> ApiAnswer:
        """Requests without the constraint until the text satisfies it. Raises `ValidationFailed`
        with the last text.
        """
        constraint = op.constraint
        assert constraint is not None
        kind = type(constraint).__name__
        if self._constraints != "best_effort" or not can_be_checked(constraint):
            raise NotSupported(
                f"{self.api.model} cannot be confined by a {kind}; use a type or schema "
                "where it has JSON schemas, "
                "a backend on lmprog's runtime, or constraints='best_effort' (validates "
                "the text, and repeats the request)"
            )
        total = wire.Usage()
        seed = op.sampling.seed
        for count in range(self._tries):
            sampling = msgspec.structs.replace(
                _sampling_to_request(op), seed=None if seed is None else (seed + count) % 2**63
            )
            answer = await self._request(ApiRequest(prompt, sampling, tools=tools), None)
            total = _sum(total, answer.usage)
            checked = [_fitting(constraint, output) for output in answer.outputs]
            found = [output for output in checked if output is not None]
            if len(found) == len(answer.outputs):
                return ApiAnswer(tuple(found), total)
        wrong = next(
            output.text for output, fit in zip(answer.outputs, checked, strict=True) if fit is None
        )
        raise ValidationFailed(
            f"the model wrote {wrong!r}, which is not what the {kind} allows, and was asked "
            f"{self._tries} times",
            text=wrong,
        )

    # --- selections

    async def select(self, state: AnswerState, op: wire.Select) -> tuple[AnswerState, wire.Chosen]:
        """By likelihood if the service gives log-probabilities; else the model generates one of the
        choices.
        """
        state, prompt, tools = prompt_with_tools(state, None, self.api.kind)
        refused = self._refusal(prompt, state)
        if refused is not None:
            raise refused
        async with self._room:
            reply = await self.api.select(prompt, op)
        if reply is None:
            return await self._generated_choice(state, op, prompt, tools)
        self.counters.prompt_tokens += reply.usage.prompt
        self.counters.completion_tokens += reply.usage.generated
        return state.with_result(op, reply), reply

    async def _generated_choice(
        self, state: AnswerState, op: wire.Select, prompt: Prompt, tools: wire.ToolOffer | None
    ) -> tuple[AnswerState, wire.Chosen]:
        """A generation constrained to the choices. It gives no log-probabilities: scores and
        probabilities are NaN.
        """
        if op.method == "unconditional_likelihood_normalized":
            raise NotSupported(
                "this API returns no log-probabilities, which "
                "unconditional_likelihood_normalized compares; "
                "leave the method out: then the model is asked for one of the choices"
            )
        sampling = wire.SamplingParams(
            temperature=op.temperature, seed=op.seed, max_tokens=_room(op.choices)
        )
        asked = wire.Generate(op.branch, op.call, sampling, wire.Choices(op.choices))
        if self.api.enforces(wire.Choices(op.choices), prompt):
            request = ApiRequest(prompt, sampling, asked.constraint, tools)
            answer = await self._request(request, None)
        else:
            answer = await self._validated(asked, prompt, tools)
        text = answer.outputs[0].text
        if text not in op.choices:
            raise ValidationFailed(
                f"the model wrote {text!r}, which is none of {', '.join(op.choices)}", text=text
            )
        unknown = tuple(wire.ScoredChoice(math.nan, math.nan) for _ in op.choices)
        chosen = wire.Chosen(op.call, op.choices.index(text), unknown, answer.usage)
        return state.with_result(op, chosen), chosen


class _Forward:
    """Forwards streamed text as soon as it is certain to belong to the call."""

    def __init__(self, certain: Certain, on_text: TextListener) -> None:
        self._certain = certain
        self._on_text = on_text

    def on_text(self, index: int, text: str, num_tokens: int) -> None:
        self._pass(self._certain.push(text), num_tokens)

    def finish(self, length: int) -> None:
        self._pass(self._certain.rest(length), 1)

    def _pass(self, text: str, num_tokens: int) -> None:
        if text:
            self._on_text(0, text, num_tokens)


def _sum(a: wire.Usage, b: wire.Usage) -> wire.Usage:
    """The usage of two requests for one call."""
    return wire.Usage(
        prompt=a.prompt + b.prompt,
        cached=a.cached + b.cached,
        generated=a.generated + b.generated,
        forced=a.forced + b.forced,
        computed=a.computed + b.computed,
        drafted=a.drafted + b.drafted,
        accepted=a.accepted + b.accepted,
    )


def _room(choices: Sequence[str]) -> int:
    """A token limit that suffices for any choice, in JSON and with an escape for each character."""
    return 32 + max(len(choice.encode()) for choice in choices)


# --- constraints, which hold afterwards where the service does not enforce them


def _refuse_layout(constraint: wire.Constraint | None) -> None:
    """Raises `NotSupported` for a layout of JSON (whitespace, order), which no API has a field
    for.
    """
    schema = None if constraint is None else constraint.as_schema()
    if schema is not None and schema.has_layout:
        raise NotSupported(
            "whitespace and order of JSON cannot be asked of an API; leave them out, or use a "
            "backend on lmprog's runtime"
        )


def can_be_checked(constraint: wire.Constraint) -> bool:
    """Grammars cannot: the client has no parser for them."""
    return constraint.is_portable and constraint.as_grammar() is None


def _fitting(constraint: wire.Constraint, output: wire.Output) -> wire.Output | None:
    """The output if its text satisfies the constraint, or does so without surrounding whitespace or
    the fence of a block of code; else None. For choices, the output holds the matching choice, with
    that choice's own whitespace.
    """
    texts = [output.text, output.text.strip(), unfenced(output.text)]
    choices = constraint.as_choices() or ()
    texts += [choice for choice in choices if choice.strip() == texts[1]]
    for text in texts:
        if fits(constraint, text):
            return msgspec.structs.replace(output, text=text)
    return None


def fits(constraint: wire.Constraint, text: str) -> bool:
    """Whether the whole of `text` satisfies the constraint: patterns by Python's `re`, schemas by
    the library `jsonschema`.
    """
    choices, schema = constraint.as_choices(), constraint.as_schema()
    if choices is not None:
        return text in choices
    if schema is not None:
        return is_valid(schema.schema, text)
    pattern = constraint.as_pattern()
    if pattern is None:
        raise NotSupported(
            "a grammar can only be enforced by lmprog's runtime, or by a server that knows it"
        )
    try:
        return re.fullmatch(pattern, text) is not None
    except re.error as error:
        raise GrammarError(f"{pattern!r}: {error}", position=error.pos) from None


# --- which of several results the branch goes on from; a service gives all of them together


def _keeps_first(op: wire.Generate) -> bool:
    """Whether the first result is kept in any case."""
    return op.keep == "first" or op.sampling.n == 1


def _sampling_to_request(op: wire.Generate) -> wire.SamplingParams:
    """The sampling to request: with log-probabilities if the likeliest result is kept."""
    return op.sampling.scored() if op.keep == "best" and op.sampling.n > 1 else op.sampling


def _in_kept_order(op: wire.Generate, outputs: tuple[wire.Output, ...]) -> tuple[wire.Output, ...]:
    """The results, the kept one first. Raises `NotSupported` if the API did not return what the
    choice needs.
    """
    if _keeps_first(op):
        return outputs
    if op.keep != "best":
        return tuple(
            outputs[place] for place in kept_first(op, [output.text for output in outputs])
        )
    best = max(range(len(outputs)), key=lambda place: _mean(outputs[place]))
    ordered = (outputs[best], *(output for place, output in enumerate(outputs) if place != best))
    if op.sampling.logprobs is not None:
        return ordered
    return tuple(msgspec.structs.replace(output, logprobs=()) for output in ordered)


def _mean(output: wire.Output) -> float:
    if not output.logprobs and output.text:
        raise NotSupported(
            "this API returns no log-probabilities, which keep='best' compares; use keep='majority'"
        )
    return sum(token.logprob for token in output.logprobs) / max(len(output.logprobs), 1)
