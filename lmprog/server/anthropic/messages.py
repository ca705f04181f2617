"""`/v1/messages` and its count of tokens: what a body means as a chat, and the answer as content
blocks, whole or as Anthropic's events.

Knows both bodies, and how chats reach the runtime.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from lmprog import wire
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.gateway.routes import GatewayRouter
from lmprog.server.http.foreign_fields import unsupported
from lmprog.server.http.http_errors import HttpError, Problem, refused
from lmprog.server.http.json_body import Given, described
from lmprog.server.http.limits import within
from lmprog.server.http.option_fields import AnthropicOptions, carry
from lmprog.server.http.sse import EventStream, event, until_gone
from lmprog.server.openai import answers
from lmprog.server.openai.chat_completions import ChatBody, ChatCompletions, understood
from lmprog.server.openai.messages import CalledFunction, CalledTool, ChatMessage
from lmprog.server.openai.output_constraint import NamedSchema, ResponseFormat
from lmprog.server.openai.running_request import counted, fitted, read_prompt, running, warned
from lmprog.server.openai.tools import AnswerPart, ChatTool, FunctionTool, NamedFunction, NamedTool
from lmprog.tool_calls.harmony import ThoughtText
from lmprog.tool_calls.reading import ParsedCall

SILENT = (
    "metadata",
    "service_tier",
    "betas",
    "inference_geo",
    "speed",
)
"""Known fields that cannot change an answer here: no warning is given."""
_NAMES = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "response_format.json_schema.schema": "output_config.format.schema",
}
Json = dict[str, Any]
EFFORT = "reasoning_effort"
"""A template's name for it."""
Ending: TypeAlias = Callable[[wire.CallDone, bool], Json]
"""Why an answer ended, of which the second says whether it has calls."""
_LIMITS = ("max_tokens", "model_context_window_exceeded")
_THINKING = ("adaptive", "enabled", "disabled")
_THOUGHTS = ("thinking", "redacted_thinking")


class AnthropicBlock(msgspec.Struct, frozen=True):
    """One block of a content."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: Annotated[str, within("name")] | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[AnthropicBlock] | None = None
    is_error: bool | None = None
    cache_control: dict[str, Any] | None = None


class AnthropicTurn(msgspec.Struct, frozen=True):
    role: str
    content: str | list[AnthropicBlock]


class ToolOf(msgspec.Struct, frozen=True):
    name: Annotated[str, within("name")] | None = None
    type: str | None = None
    description: Annotated[str, within("description")] | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None


class ToolChoice(msgspec.Struct, frozen=True):
    type: str
    name: Annotated[str, within("name")] | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(msgspec.Struct, frozen=True):
    type: str
    schema: dict[str, Any] | None = None


class OutputConfig(msgspec.Struct, frozen=True):
    format: OutputFormat | None = None
    effort: str | None = None


class Thinking(msgspec.Struct, frozen=True):
    type: str
    budget_tokens: Annotated[int, within("thinking_token_budget")] | None = None
    display: str | None = None


class ContextEdit(msgspec.Struct, frozen=True):
    type: str


class ContextManagement(msgspec.Struct, frozen=True):
    edits: list[ContextEdit] = []


class Countable(AnthropicOptions, kw_only=True):
    """What `/v1/messages/count_tokens` takes. Options of sampling are allowed and change nothing
    there.
    """

    messages: Annotated[list[AnthropicTurn], within("messages")]
    model: Annotated[str, within("model")] | None = None
    system: str | list[AnthropicBlock] | None = None
    tools: Annotated[list[ToolOf], within("tools")] | None = None
    tool_choice: ToolChoice | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    """Its older spelling."""
    thinking: Thinking | None = None
    context_management: ContextManagement | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None


class MessagesBody(Countable, kw_only=True):
    max_tokens: Annotated[int, within("max_completion_tokens")]
    stream: bool | None = None
    priority: Annotated[int, within("priority")] | None = None
    cache_salt: Annotated[str, within("cache_salt")] | None = None


def chat_of(body: Countable, known: Sequence[str] = (), switch: str = "") -> ChatBody:
    """The same request as a chat. `known`: the names that the model's template uses; `switch`: the
    one that turns thoughts on. Raises HttpError for blocks that are no text.
    """
    choice, parallel = _choice(body.tool_choice)
    messages = _messages(body.messages)
    goes_on = messages[-1].role == "assistant"  # Anthropic's way to begin the answer for the model
    made = ChatBody(
        messages=[*_system(body.system), *messages],
        model=body.model,
        tools=[_tool(tool, at) for at, tool in enumerate(body.tools or ()) if _is_clients(tool)],
        tool_choice=choice if body.tools else None,
        parallel_tool_calls=parallel,
        continue_final_message=goes_on or None,
        response_format=_format(body),
        chat_template_kwargs=_variables(body, switch),
        thinking_token_budget=None if body.thinking is None else body.thinking.budget_tokens,
        reasoning_effort=_effort(body) if EFFORT in known else None,
    )
    if body.thinking is not None and body.thinking.type not in _THINKING:
        raise refused(
            f"thinking.type is {body.thinking.type[:60]!r}; it must be {', '.join(_THINKING)}.",
            "thinking.type",
            "invalid_value",
        )
    _check_edits(body.context_management)
    carry(body, "anthropic", made)
    if isinstance(body, MessagesBody):
        made.stream, made.priority, made.cache_salt = body.stream, body.priority, body.cache_salt
    return made


def warnings_of(body: Countable, known: Sequence[str]) -> tuple[str, ...]:
    """What of the request has no effect on the answer. `known`: the names that the model's template
    uses.
    """
    made = []
    if _effort(body) is not None and EFFORT not in known:
        made.append("output_config.effort has no effect: this model's chat template has none")
    types = dict.fromkeys(tool.type for tool in body.tools or () if not _is_clients(tool))
    if types:
        named = " ".join(str(one)[:60] for one in types)
        made.append(f"tools of the types {named!r} are not described here; the model has none")
    if any(one and one.get("ttl") not in (None, "5m") for one in _cache_controls(body)):
        made.append("cache_control.ttl has no effect; what is likely used again stays")
    return tuple(made)


def _cache_controls(body: Countable) -> Iterator[dict[str, Any] | None]:
    yield body.cache_control
    contents = [body.system, *(turn.content for turn in body.messages)]
    blocks = list(chain.from_iterable(one for one in contents if isinstance(one, list)))
    results = chain.from_iterable(one.content for one in blocks if isinstance(one.content, list))
    yield from (tool.cache_control for tool in body.tools or ())
    yield from (block.cache_control for block in chain(blocks, results))


def _variables(body: Countable, switch: str) -> dict[str, Any] | None:
    """With the switch of thoughts, where the template has one."""
    given = body.chat_template_kwargs
    if body.thinking is None or not switch:
        return given
    return {switch: body.thinking.type != "disabled", **(given or {})}


def _effort(body: Countable) -> str | None:
    """For the model's template, which has to know it."""
    effort = None if body.output_config is None else body.output_config.effort
    return None if effort == "high" else effort  # which is Anthropic's default


def _check_edits(given: ContextManagement | None) -> None:
    """Earlier thoughts are given to the template, which says what becomes of them. Raises HttpError
    for what would change the conversation.
    """
    for at, edit in enumerate(given.edits if given is not None else ()):
        if not edit.type.startswith("clear_thinking_"):
            name = f"context_management.edits[{at}].type"
            raise unsupported(name, "shorten the conversation yourself")


def _format(body: Countable) -> ResponseFormat | None:
    """The schema of the answer. Raises HttpError for two of them, or another kind of format."""
    config = body.output_config or OutputConfig()
    found = [
        (name, given)
        for name, given in (
            ("output_config.format", config.format),
            ("output_format", body.output_format),
        )
        if given is not None
    ]
    if not found:
        return None
    name, given = found[0]
    if len(found) > 1:
        raise refused(f"Give one of {name} and {found[1][0]}.", name, "conflicting_fields")
    if given.type != "json_schema" or given.schema is None:
        raise refused(
            f"{name} has the type {given.type[:60]!r}; it must be json_schema, with a schema.",
            name,
            "invalid_value",
        )
    return ResponseFormat("json_schema", NamedSchema("answer", given.schema))


def renamed(error: HttpError) -> HttpError:
    """The chat's complaint with this dialect's names of fields."""
    problem = error.problem
    param = _NAMES.get(problem.param or "", problem.param)
    return HttpError(
        Problem(
            problem.status, problem.message, param, problem.code, problem.type, problem.retry_after
        )
    )


def _system(system: str | list[AnthropicBlock] | None) -> list[ChatMessage]:
    if system is None:
        return []
    text = system if isinstance(system, str) else _text(system, "system")
    return [ChatMessage("system", text)]


def _messages(turns: Sequence[AnthropicTurn]) -> list[ChatMessage]:
    """A user's turn may hold results of tools: these are messages of their own."""
    made: list[ChatMessage] = []
    for place, turn in enumerate(turns):
        at = f"messages[{place}]"
        if turn.role not in ("user", "assistant", "system"):
            raise refused(
                f"{at}.role is {turn.role[:60]!r}; it must be user, assistant or system.",
                f"{at}.role",
                "invalid_value",
            )
        if isinstance(turn.content, str):
            made.append(ChatMessage(turn.role, turn.content))
            continue
        texts: list[AnthropicBlock] = []
        thought = ""
        calls: list[CalledTool] = []
        for number, block in enumerate(turn.content):
            where = f"{at}.content[{number}]"
            if block.type == "tool_result" and turn.role == "user":
                given = block.content or ""
                text = given if isinstance(given, str) else _text(given, f"{where}.content")
                made.append(ChatMessage("tool", text, tool_call_id=block.tool_use_id))
            elif block.type == "tool_use" and turn.role == "assistant" and block.name is not None:
                arguments = msgspec.json.encode(block.input or {}).decode()
                calls.append(CalledTool(CalledFunction(block.name, arguments), block.id))
            elif block.type in _THOUGHTS and turn.role == "assistant":
                thought += block.thinking or ""
            else:
                texts.append(block)
        if texts or calls or not turn.content:
            text = _text(texts, f"{at}.content")
            made.append(
                ChatMessage(
                    turn.role, text, tool_calls=calls or None, reasoning_content=thought or None
                )
            )
    return made


def _text(blocks: Sequence[AnthropicBlock], at: str) -> str:
    for block in blocks:
        if block.type == "text" and block.text is not None:
            continue
        raise refused(
            f"{at} has a block of the type {block.type[:60]!r} where this server takes text only.",
            at,
            "not_supported",
        )
    return "".join(block.text or "" for block in blocks)


def _is_clients(tool: ToolOf) -> bool:
    """Whether the request describes it. Tools that Anthropic describes, or runs, are known by their
    types only.
    """
    return tool.type in (None, "custom")


def _tool(tool: ToolOf, at: int) -> ChatTool:
    if tool.name is None:
        raise refused(f"tools[{at}].name is missing.", f"tools[{at}].name", "invalid_value")
    function = FunctionTool(tool.name, tool.description, tool.input_schema, tool.strict)
    return ChatTool("function", function)


def _choice(choice: ToolChoice | None) -> tuple[str | NamedTool | None, bool | None]:
    if choice is None:
        return None, None
    parallel = (
        None if choice.disable_parallel_tool_use is None else not choice.disable_parallel_tool_use
    )
    match choice.type:
        case "auto" | "none":
            return choice.type, parallel
        case "any":
            return "required", parallel
        case "tool" if choice.name is not None:
            return NamedTool(NamedFunction(choice.name)), parallel
    raise refused(
        "tool_choice.type must be auto, any, none, or tool with a name.",
        "tool_choice.type",
        "invalid_value",
    )


def router(gateway: Gateway) -> GatewayRouter:
    made = GatewayRouter(gateway, "Anthropic")

    def read_as_chat(body: Countable, request: Request) -> ChatCompletions:
        try:
            gateway.check_model(body.model)
            gateway.check_model(body.model)
            known = gateway.info.template_variables
            asked = chat_of(body, known, gateway.info.tools.thought.switch)
            chat = understood(gateway, asked, warnings_of(body, known))
        except HttpError as error:
            raise renamed(error) from None
        request.state.names = {**chat.names, "max_tokens": "max_tokens"}
        return chat

    @made.post(
        "/v1/messages",
        dependencies=[made.guards.generating],
        summary="Anthropic's messages.",
        responses=described(streams=True),
    )
    async def messages(request: Request, given: Given[MessagesBody]) -> Response:
        read = await read_prompt(
            gateway,
            given,
            lambda body: (read_as_chat(body, request).prompt.pieces, body.cache_salt),
            SILENT,
        )
        chat = await read.aside(partial(read_as_chat, read.body, request))
        prompt, is_clipped = await until_gone(request, fitted(gateway, chat.prompt))
        chat = replace(chat, prompt=prompt)
        ends = partial(_ending, chat, at_limit=_LIMITS[is_clipped])
        headers = warned((*read.warnings, *chat.warnings))
        if read.body.stream:
            events = _events(gateway, request, chat, read.body, ends)
            return await EventStream.begin(request, events, gateway.settings, headers)
        with running(gateway, request, [chat.prompt], False, read.body.cache_salt) as run:
            (done,) = await until_gone(request, run.dones())
        whole = _whole(chat, done, _thinks(read.body), ends)
        return Response(msgspec.json.encode(whole), headers=headers, media_type="application/json")

    @made.post(
        "/v1/messages/count_tokens",
        dependencies=[made.guards.user],
        summary="How many tokens messages have.",
        responses=described(),
    )
    async def count_tokens(request: Request, given: Given[Countable]) -> Response:
        read = await given.read(gateway.settings, SILENT)
        chat = await read.aside(partial(read_as_chat, read.body, request))
        found = await until_gone(request, counted(gateway, chat.prompt))
        return Response(msgspec.json.encode({"input_tokens": found}), media_type="application/json")

    return made


def _thinks(body: MessagesBody) -> bool:
    """Whether the answer shows its thoughts."""
    asked = body.thinking
    return asked is not None and asked.type != "disabled" and asked.display != "omitted"


def _whole(chat: ChatCompletions, done: wire.CallDone, thinks: bool, ends: Ending) -> Json:
    output = done.outputs[0]
    content, calls, thought = chat.box.read(output)
    blocks: list[Json] = [{**_THOUGHT, "thinking": thought}] if thought and thinks else []
    blocks += [{"type": "text", "text": content}] if content or not calls else []
    blocks += [{**_tool_use(call), "input": json.loads(call.arguments)} for call in calls]
    return {
        **_head(chat),
        "content": blocks,
        **ends(done, bool(calls)),
        "usage": _usage(done),
    }


def _head(chat: ChatCompletions) -> Json:
    return {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": chat.head.model,
    }


def _tool_use(call: ParsedCall) -> Json:
    return {"type": "tool_use", "id": call.id, "name": call.name}


def _ending(chat: ChatCompletions, done: wire.CallDone, has_calls: bool, at_limit: str) -> Json:
    output = done.outputs[0]
    stopped_by = answers.stop_reason_of(output, chat.prompt.sampling)
    if output.finish == "length":
        return {"stop_reason": at_limit, "stop_sequence": None}
    if has_calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if isinstance(stopped_by, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": stopped_by}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def _usage(done: wire.CallDone) -> Json:
    """What the cache had counts apart, and not among the input."""
    usage, cached = done.usage, done.usage.cached
    return {
        "input_tokens": usage.prompt - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.generated,
    }


async def _events(
    gateway: Gateway,
    request: Request,
    chat: ChatCompletions,
    body: MessagesBody,
    ends: Ending,
) -> AsyncGenerator[bytes, None]:
    """The blocks as they come. The prompt's length is in the last event, since it is known then."""
    blocks, reader = _Blocks(_thinks(body)), chat.box.reader()
    with running(gateway, request, [chat.prompt], True, body.cache_salt) as run:
        nothing = {"input_tokens": 0, "output_tokens": 0}
        opened = {
            **_head(chat),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": nothing,
        }
        begun = _event("message_start", message=opened)
        async for piece in run.pieces():
            if piece.done is None:
                told, begun = begun + blocks.add(reader.feed(piece.text, piece.tags)), b""
                if told:
                    yield told
                continue
            yield (
                begun
                + blocks.add(reader.finish(piece.done.outputs[0]))
                + blocks.end()
                + _event(
                    "message_delta",
                    delta=ends(piece.done, blocks.has_calls),
                    usage=_usage(piece.done),
                )
                + _event("message_stop")
            )


_THOUGHT: Json = {"type": "thinking", "thinking": "", "signature": ""}


class _Blocks:
    """The content blocks of a stream. Thoughts are shown only where `thinks`."""

    def __init__(self, thinks: bool) -> None:
        self.has_calls = False
        self._thinks = thinks
        self._index = -1
        self._open: str | None = None
        """The type of the block that is open."""

    def add(self, parts: Sequence[AnswerPart]) -> bytes:
        return b"".join(map(self._add, parts))

    def _add(self, part: AnswerPart) -> bytes:
        match part:
            case ParsedCall():
                return self._call(part)
            case ThoughtText(text=text):
                return self._grown(_THOUGHT, "thinking", text) if self._thinks else b""
            case _:
                return self._grown({"type": "text", "text": ""}, "text", part)

    def end(self) -> bytes:
        """Closes what is open; a message has at least one block."""
        begun = self._begin({"type": "text", "text": ""}) if self._index < 0 else b""
        return begun + self._close()

    def _grown(self, block: Json, field: str, text: str) -> bytes:
        """More of a block of one type, which is begun where another one is open."""
        begun = b"" if self._open == block["type"] else self._close() + self._begin(block)
        return begun + self._delta({"type": f"{block['type']}_delta", field: text})

    def _call(self, call: ParsedCall) -> bytes:
        self.has_calls = True
        begun = self._close() + self._begin({**_tool_use(call), "input": {}})
        return (
            begun
            + self._delta({"type": "input_json_delta", "partial_json": call.arguments})
            + self._close()
        )

    def _begin(self, block: Json) -> bytes:
        self._index += 1
        self._open = block["type"]
        return _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, delta: Json) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        return _event("content_block_stop", index=self._index)


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)
