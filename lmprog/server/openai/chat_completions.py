"""`/v1/chat/completions`: messages in; a message, or a stream of its parts, out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Annotated, Any, Literal

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
from lmprog.server.http.large_answers import cut_to_entries
from lmprog.server.http.limits import within
from lmprog.server.http.option_fields import sampling_of
from lmprog.server.http.sse import END, event, until_gone
from lmprog.server.openai import answers
from lmprog.server.openai.messages import CalledFunction, CalledTool, ChatMessage, pieces_of
from lmprog.server.openai.output_constraint import OutputConstraint, constraint_of
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
from lmprog.server.openai.shared_fields import (
    beams_of,
    check_stream,
)
from lmprog.server.openai.tools import AnswerPart, ChatTool, NamedTool, Toolbox, toolbox
from lmprog.tool_calls.harmony import FINAL, ThoughtText

MOST_AHEAD = 1024 * 1024
"""Characters of a chat whose next turn is computed ahead: the runtime keeps it until then."""


class AskedReasoning(msgspec.Struct, frozen=True):
    """OpenRouter's way to ask for thoughts."""

    effort: str | None = None
    max_tokens: Annotated[int, within("thinking_token_budget")] | None = None
    enabled: bool | None = None
    exclude: bool | None = None


class AskedThinking(msgspec.Struct, frozen=True):
    """DeepSeek's way."""

    type: Literal["enabled", "disabled", "auto"]


class ChatBody(PromptFields, kw_only=True):
    messages: Annotated[list[ChatMessage], within("messages")]
    max_completion_tokens: Annotated[int, within("max_completion_tokens")] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, within("top_logprobs")] | None = None
    tools: Annotated[list[ChatTool], within("tools")] | None = None
    tool_choice: str | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    reasoning: AskedReasoning | None = None
    thinking: AskedThinking | None = None
    include_reasoning: bool | None = None
    separate_reasoning: bool | None = None
    stream_reasoning: bool | None = None
    thinking_token_budget: Annotated[int, within("thinking_token_budget")] | None = None
    modalities: list[str] | None = None
    functions: Any = None
    function_call: Any = None
    audio: Any = None


class Chat(msgspec.Struct, frozen=True):
    """What has been said, and the variables of its template."""

    messages: list[ChatMessage]
    variables: dict[str, Any]

    def following(self, box: Toolbox, output: wire.Output) -> wire.Conversation:
        """It with an answer as clients send it back, and who speaks next. Raises HttpError."""
        content, calls, _ = box.read(output)
        called = [
            CalledTool(CalledFunction(call.name, call.arguments), call.id, "function")
            for call in calls
        ]
        answer = ChatMessage("assistant", content, tool_calls=called or None)
        follower = ChatMessage("user", wire.UNSAID)
        if calls:
            follower = ChatMessage("tool", wire.UNSAID, tool_call_id=calls[0].id)
        whole = [*self.messages, answer, follower]
        (conversation, *_) = pieces_of(whole, box, variables=self.variables)
        assert isinstance(conversation, wire.Conversation)
        return conversation


class ChatCompletions(msgspec.Struct, frozen=True):
    """A chat that was understood."""

    prompt: RequestPrompt
    box: Toolbox
    head: RunningAnswers
    wants_usage: bool
    wants_token_ids: bool
    warnings: tuple[str, ...]
    names: dict[str, str]
    """The request's names for what the runtime may complain of."""
    goes_on: Chat | None = None
    """Set where the next turn is to be computed ahead."""

    @property
    def prompts(self) -> tuple[RequestPrompt, ...]:
        return (self.prompt,)


def router(gateway: Gateway) -> GatewayRouter:
    made = GatewayRouter(gateway, "OpenAI")

    @made.post(
        "/v1/chat/completions",
        dependencies=[made.guards.generating],
        summary="OpenAI's chats.",
        responses=described(answers.ChatCompletion, streams=True),
    )
    async def chat_completions(request: Request, given: Given[ChatBody]) -> Response:
        read = await read_prompt(
            gateway, given, lambda body: (understood(gateway, body).prompt.pieces, body.cache_salt)
        )
        body = read.body
        chat = await read.aside(partial(understood, gateway, body, read.warnings))
        request.scope["state"]["names"] = chat.names
        if body.needs_tokens or needs_counting(chat.prompts, gateway.info.context_len):
            known = as_tokens(gateway, chat.prompts, body.truncate_prompt_tokens)
            (prompt,) = await until_gone(request, known)
            chat = replace(chat, prompt=prompt)
        events, whole = partial(_events, chat), partial(_whole, chat)
        return await answer_request(gateway, request, body, chat, events, whole)

    return made


def understood(gateway: Gateway, body: ChatBody, warnings: tuple[str, ...] = ()) -> ChatCompletions:
    """What a body asks for, as ops. Raises HttpError."""
    head = answering(gateway, body.model, "chatcmpl")
    if body.functions is not None or body.function_call is not None:
        is_first = body.functions is not None
        old, new = ("functions", "tools") if is_first else ("function_call", "tool_choice")
        raise refused(f"{old} is out of date; use {new}.", old, "not_supported")
    if body.audio is not None or body.modalities not in (None, ["text"]):
        name = "audio" if body.audio is not None else "modalities"
        raise refused(
            f"{name} asks for more than text, and this server writes text only.",
            name,
            "not_supported",
        )
    support = gateway.info.tools
    box = toolbox(body.tools, body.tool_choice, body.parallel_tool_calls, support)
    made = constraint_of(body)
    goes_on = _goes_on(body)
    is_whole = made.constraint is not None and made.constraint.is_whole
    if support.form.harmony and (goes_on or is_whole):
        box = _with_header(box)
    variables = _variables(body, support.thought)
    thinks: wire.ThoughtState = "closed"
    if support.thought.begin and not goes_on:
        thinks = support.thought.state(variables)
    box = replace(
        box, thinks=thinks, shows_thoughts=_shown(body), confines=gateway.settings.confine_calls
    )
    box, constraint = _constrained(box, made)
    pieces = pieces_of(body.messages, box, goes_on, variables)
    if goes_on and made.constraint is not None and constraint is not None:
        texts = [one for one in pieces if isinstance(one, wire.TextPiece) and one.quoted]
        constraint = wire.Continued(constraint, "".join(one.text for one in texts))
    priority, expected, unheeded = hinted(body)
    prompt = RequestPrompt(
        pieces=pieces,
        sampling=cut_to_entries(_sampling(body, box, gateway.suggested), gateway.info.context_len),
        constraint=constraint,
        priority=priority,
        expected=expected,
        includes_stop=bool(body.include_stop_str_in_output),
        names_tokens=bool(body.return_tokens_as_token_ids),
        thought=box.limit_of(_budget(body)),
        with_ends=box.may_think,
    )
    names = {"prompt": "messages", "constraint": made.field or "tools", "choices": "messages"}
    names["template_variables"] = "chat_template_kwargs"
    if body.reasoning_effort is not None and not body.chat_template_kwargs:
        names["template_variables"] = "reasoning_effort"
    if body.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    told = (*warnings, *made.warnings, *box.warnings, *unheeded)
    wants_ids = bool(body.return_token_ids)
    chat = Chat(body.messages, variables) if body.looks_ahead and not goes_on else None
    return ChatCompletions(prompt, box, head, body.wants_usage, wants_ids, told, names, chat)


def _look_ahead(chat: ChatCompletions, run: RunningRequest, done: wire.CallDone) -> None:
    """The answer is whole, and the next turn is expected."""
    if chat.goes_on is not None and len(done.outputs) == 1:
        (output,) = done.outputs
        following = chat.goes_on.following(chat.box, output)
        if output.finish != "length" and len(following.messages) <= MOST_AHEAD:
            run.expect(following)


def _constrained(box: Toolbox, made: OutputConstraint) -> tuple[Toolbox, wire.Constraint | None]:
    """Tools and a constraint of the answer together. Raises HttpError where they contradict.

    A call that must be made leaves no answer to constrain; where one may be made, the text is an
    answer under the constraint, or calls.
    """
    if made.constraint is None:
        return box, box.constraint
    if box.choice == "none":
        return box, box.confined(made.constraint)
    if made.constraint.is_whole:
        raise refused(
            f"{made.field} is a grammar of the whole text, which then cannot be a call of a tool; "
            'leave out the tools, say tool_choice "none", or give a regex or a schema.',
            "tool_choice",
            "conflict",
        )
    if box.choice == "auto":
        box = replace(box, answer=made.constraint)
    return box, box.constraint


def _with_header(box: Toolbox) -> Toolbox:
    """Of a model with channels, where the answer's header cannot be the model's to write. Raises
    HttpError.
    """
    if box.choice in ("required", "named"):
        raise refused(
            "an answer that goes on, or has a grammar, cannot be a call that must be made.",
            "tool_choice",
            "conflict",
        )
    return replace(box, written=FINAL)


def _goes_on(body: ChatBody) -> bool:
    """Whether the answer continues the last message. Raises HttpError for contradictions."""
    goes_on = bool(body.continue_final_message)
    if goes_on and body.add_generation_prompt:
        raise refused(
            "continue_final_message and add_generation_prompt cannot both be true.",
            "add_generation_prompt",
        )
    if body.add_generation_prompt is False and not goes_on:
        raise unsupported(
            "add_generation_prompt",
            "false goes with continue_final_message only; /v1/programs writes any turn",
        )
    return goes_on


def _variables(body: ChatBody, thought: wire.ThoughtForm) -> dict[str, Any]:
    """The names that are given to the model's template beside the conversation."""
    variables = dict(body.chat_template_kwargs or {})
    asked = body.reasoning or AskedReasoning()
    effort = body.reasoning_effort or asked.effort
    is_on = asked.enabled
    if body.thinking is not None and body.thinking.type != "auto":
        is_on = body.thinking.type == "enabled"
    if is_on is not None and thought.switch:
        variables.setdefault(thought.switch, is_on)
    if effort == "none":
        variables.setdefault(thought.switch or "enable_thinking", False)
    elif effort is not None:
        variables.setdefault("reasoning_effort", effort)
    return variables


def _shown(body: ChatBody) -> Literal["apart", "within", "none"]:
    """What becomes of thoughts in the answer."""
    is_excluded = body.reasoning is not None and body.reasoning.exclude
    if body.include_reasoning is False or is_excluded:
        return "none"
    return "within" if body.separate_reasoning is False else "apart"


def _budget(body: ChatBody) -> int | None:
    """The most tokens of a thought."""
    asked = None if body.reasoning is None else body.reasoning.max_tokens
    return asked if body.thinking_token_budget is None else body.thinking_token_budget


def _sampling(
    body: ChatBody, box: Toolbox, suggested: wire.SuggestedSampling
) -> wire.SamplingParams:
    most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if most == 0:
        raise refused("max_tokens is 0; it must be at least 1.", "max_tokens", "invalid_value")
    if body.top_logprobs is not None and not body.logprobs:
        raise refused("top_logprobs needs logprobs=true.", "top_logprobs")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    check_stream(body)
    beams = beams_of(body, body.n or 1)
    decided = {"max_tokens": most, "logprobs": logprobs, "beams": beams}
    made = sampling_of(body, "openai", decided, suggested)
    return replace(made, stop=(*made.stop, *box.stop)[:16]) if box.stop else made


def _whole(
    chat: ChatCompletions, run: RunningRequest, dones: Sequence[wire.CallDone]
) -> answers.ChatCompletion:
    (done,) = dones
    _look_ahead(chat, run, done)
    left_out = answers.left_out_of(done)
    choices = [_choice(chat, index, output, left_out) for index, output in enumerate(done.outputs)]
    head = chat.head
    return answers.ChatCompletion(
        id=head.id,
        created=head.created,
        model=head.model,
        choices=choices,
        usage=usage_of(chat.box, done),
        system_fingerprint=head.system_fingerprint,
        prompt_logprobs=answers.prompt_logprobs(done, chat.prompt.sampling.prompt_logprobs),
        prompt_token_ids=ids_of(chat.prompt) if chat.wants_token_ids else msgspec.UNSET,
    )


def usage_of(box: Toolbox, done: wire.CallDone) -> answers.UsageBody:
    return answers.usage_of([done], sum(map(box.thought_tokens, done.outputs)))


def _choice(
    chat: ChatCompletions, index: int, output: wire.Output, left_out: answers.LeftOut
) -> answers.ChatChoice:
    ids = output.tokens if chat.wants_token_ids else msgspec.UNSET
    content, calls, thought = chat.box.read(output)
    thoughts = thought or msgspec.UNSET
    logprobs = (
        None if chat.prompt.sampling.logprobs is None else answers.chat_logprobs(output.logprobs)
    )
    if not calls:
        message = answers.AnswerMessage(
            "assistant", content, reasoning_content=thoughts, reasoning=thoughts
        )
        finish = answers.finish_of(output)
        reason = answers.stop_reason_of(output, chat.prompt.sampling)
    else:
        made = [
            answers.AnsweredCall(answers.Function(call.arguments, call.name), call.id, "function")
            for call in calls
        ]
        message = answers.AnswerMessage(
            "assistant", content or None, None, made, thoughts, thoughts
        )
        finish = answers.finish_of(output)
        finish, reason = "tool_calls" if finish == "stop" else finish, None
    score = answers.score_of(output)
    return answers.ChatChoice(index, message, finish, logprobs, reason, ids, left_out, score)


async def _events(chat: ChatCompletions, started: Started) -> AsyncGenerator[bytes, None]:
    """The stream: roles, contents and calls as they come, ends, usage."""
    count = chat.prompt.sampling.n
    streams = [
        ChoiceStream(chat.box, chat.prompt.sampling, chat.wants_token_ids, index)
        for index in range(count)
    ]
    ids = ids_of(chat.prompt) if chat.wants_token_ids else msgspec.UNSET
    with started() as run:
        begun = False
        async for piece in run.pieces():
            if not begun:
                begun = True
                yield b"".join(_chunk(chat, [stream.opening()], ids=ids) for stream in streams)
            if piece.done is None:
                choices = streams[piece.index].add(piece.text, piece.logprobs, piece.tags)
                if choices:
                    yield _chunk(chat, choices)
                continue
            left_out = answers.left_out_of(piece.done)
            # a beam search under a constraint may find fewer texts than were asked for
            for stream, output in zip(streams, piece.done.outputs, strict=False):
                *parts, last = stream.end(output)
                score = answers.score_of(output)
                last = replace(last, constraint_left_out=left_out, score=score)
                yield b"".join(_chunk(chat, [choice]) for choice in (*parts, last))
            if chat.wants_usage:
                yield _chunk(chat, [], usage_of(chat.box, piece.done))
            _look_ahead(chat, run, piece.done)
            yield END


def _chunk(
    chat: ChatCompletions,
    choices: Sequence[answers.ChunkChoice],
    usage: answers.UsageBody | None = None,
    ids: Sequence[int] | msgspec.UnsetType = msgspec.UNSET,
) -> bytes:
    """Where usage was asked for, every chunk has the field, and the last one its value."""
    head = chat.head
    return event(
        answers.Chunk(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=choices,
            system_fingerprint=head.system_fingerprint,
            usage=usage if chat.wants_usage else msgspec.UNSET,
            prompt_token_ids=ids,
        )
    )


class ChoiceStream:
    """One choice of a stream: which parts of its text are content, and which are calls."""

    def __init__(
        self, box: Toolbox, sampling: wire.SamplingParams, wants_ids: bool, index: int
    ) -> None:
        self._index = index
        self._reader = box.reader()
        self._sampling = sampling
        self._wants_ids = wants_ids
        self._num_calls = 0
        self._id = box.id
        self._named = box.tools[0].name if box.streams_arguments else None
        """The one function that is called: all text is its arguments, which go out as they come."""

    def opening(self) -> answers.ChunkChoice:
        return answers.ChunkChoice(self._index, answers.ChatDelta(role="assistant", content=""))

    def add(
        self, text: str, logprobs: Sequence[wire.TokenLogprob] = (), tags: Sequence[int] = ()
    ) -> list[answers.ChunkChoice]:
        """More text has come, and the log-probabilities of the tokens that are whole now."""
        if self._named is None:
            choices = [self._part(part) for part in self._reader.feed(text, tags)]
        else:
            choices = [self._arguments(text)] if text else []
        if logprobs:
            last = (
                choices.pop()
                if choices
                else answers.ChunkChoice(self._index, answers.ChatDelta(content=""))
            )
            choices.append(replace(last, logprobs=answers.chat_logprobs(logprobs)))
        return choices

    def end(self, output: wire.Output) -> list[answers.ChunkChoice]:
        """Nothing more will come: what was held back, and the reason."""
        parts = self._reader.finish(output) if self._named is None else []
        choices = [self._part(part) for part in parts]
        finish = answers.finish_of(output)
        reason = "tool_calls" if self._num_calls and finish == "stop" else finish
        stop_reason = None if self._num_calls else answers.stop_reason_of(output, self._sampling)
        return [
            *choices,
            answers.ChunkChoice(
                self._index,
                answers.ChatDelta(),
                reason,
                None,
                stop_reason,
                output.tokens if self._wants_ids else msgspec.UNSET,
            ),
        ]

    def _arguments(self, text: str) -> answers.ChunkChoice:
        """More of the named function's arguments; the first part says whose they are."""
        if self._num_calls:
            call = answers.AnsweredCall(answers.Function(text), index=0)
        else:
            call = answers.AnsweredCall(
                answers.Function(text, self._named or ""), self._id, "function", index=0
            )
        self._num_calls = 1
        return answers.ChunkChoice(self._index, answers.ChatDelta(tool_calls=[call]))

    def _part(self, part: AnswerPart) -> answers.ChunkChoice:
        if isinstance(part, str):
            return answers.ChunkChoice(self._index, answers.ChatDelta(content=part))
        if isinstance(part, ThoughtText):
            delta = answers.ChatDelta(reasoning_content=part.text, reasoning=part.text)
            return answers.ChunkChoice(self._index, delta)
        call = answers.AnsweredCall(
            answers.Function(part.arguments, part.name),
            part.id,
            "function",
            index=self._num_calls,
        )
        self._num_calls += 1
        return answers.ChunkChoice(self._index, answers.ChatDelta(tool_calls=[call]))
