"""The body of `/v1/messages`, and what it means as a chat. Knows both bodies; knows no
connections.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from lmprog.server.http.foreign_fields import unsupported
from lmprog.server.http.http_errors import HttpError, Problem, refused
from lmprog.server.http.limits import within
from lmprog.server.http.option_fields import AnthropicOptions, carry
from lmprog.server.openai.chat_completions import ChatBody
from lmprog.server.openai.messages import CalledFunction, CalledTool, ChatMessage
from lmprog.server.openai.output_constraint import NamedSchema, ResponseFormat
from lmprog.server.openai.tools import ChatTool, FunctionTool, NamedFunction, NamedTool

SILENT = (
    "metadata",
    "service_tier",
    "betas",
    "inference_geo",
)
"""Known fields that cannot change an answer here: no warning is given."""
_NAMES = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "response_format.json_schema.schema": "output_config.format.schema",
}


class AnthropicBlock(msgspec.Struct, frozen=True):
    """One block of a content."""

    type: str
    text: str | None = None
    id: str | None = None
    name: Annotated[str, within("name")] | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[AnthropicBlock] | None = None
    is_error: bool | None = None


class AnthropicTurn(msgspec.Struct, frozen=True):
    role: str
    content: str | list[AnthropicBlock]


class ToolOf(msgspec.Struct, frozen=True):
    name: Annotated[str, within("name")]
    type: str | None = None
    description: Annotated[str, within("description")] | None = None
    input_schema: dict[str, Any] | None = None


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
    budget_tokens: int | None = None
    display: str | None = None


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
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesBody(Countable, kw_only=True):
    max_tokens: Annotated[int, within("max_completion_tokens")]
    stream: bool | None = None
    priority: Annotated[int, within("priority")] | None = None
    cache_salt: Annotated[str, within("cache_salt")] | None = None


def chat_of(body: Countable) -> ChatBody:
    """The same request as a chat. Raises HttpError for blocks that are no text."""
    choice, parallel = _choice(body.tool_choice)
    messages = _messages(body.messages)
    goes_on = messages[-1].role == "assistant"  # Anthropic's way to begin the answer for the model
    made = ChatBody(
        messages=[*_system(body.system), *messages],
        model=body.model,
        tools=[_tool(tool, at) for at, tool in enumerate(body.tools)] if body.tools else None,
        tool_choice=choice if body.tools else None,
        parallel_tool_calls=parallel,
        continue_final_message=goes_on or None,
        response_format=_format(body),
        chat_template_kwargs=body.chat_template_kwargs,
    )
    if body.thinking is not None and body.thinking.type != "disabled":
        raise unsupported("thinking", "a text has no thinking blocks here; leave it out")
    carry(body, "anthropic", made)
    if isinstance(body, MessagesBody):
        made.stream, made.priority, made.cache_salt = body.stream, body.priority, body.cache_salt
    return made


def _format(body: Countable) -> ResponseFormat | None:
    """The schema of the answer. Raises HttpError for two of them, or another kind of format."""
    config = body.output_config or OutputConfig()
    if config.effort not in (None, "high"):  # which is Anthropic's default
        raise unsupported("output_config.effort", "use chat_template_kwargs, or leave it out")
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
        if turn.role not in ("user", "assistant"):
            raise refused(
                f"{at}.role is {turn.role[:60]!r}; it must be user or assistant.",
                f"{at}.role",
                "invalid_value",
            )
        if isinstance(turn.content, str):
            made.append(ChatMessage(turn.role, turn.content))
            continue
        texts: list[AnthropicBlock] = []
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
            else:
                texts.append(block)
        if texts or calls or not turn.content:
            made.append(
                ChatMessage(turn.role, _text(texts, f"{at}.content"), tool_calls=calls or None)
            )
    return made


def _text(blocks: Sequence[AnthropicBlock], at: str) -> str:
    for block in blocks:
        if block.type == "thinking" or (block.type == "text" and block.text is not None):
            continue
        raise refused(
            f"{at} has a block of the type {block.type[:60]!r} where this server takes text only.",
            at,
            "not_supported",
        )
    return "".join(block.text or "" for block in blocks if block.type == "text")


def _tool(tool: ToolOf, at: int) -> ChatTool:
    if tool.type not in (None, "custom"):
        raise refused(
            f"tools[{at}].type is {tool.type[:60]!r}; this server has no tools of its own.",
            f"tools[{at}].type",
            "not_supported",
        )
    return ChatTool("function", FunctionTool(tool.name, tool.description, tool.input_schema))


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
