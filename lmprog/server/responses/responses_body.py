"""The body of `/v1/responses`, and what it means as a chat.

Tools that the client runs are served: functions, also in namespaces, free texts (`custom`) and
`local_shell`. The model sees each as a function, and `ServedTools` says what a call of it is in
this dialect. Tools that OpenAI runs are not shown to the model. Knows both bodies; knows no
connections and no store.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from lmprog.server.http.foreign_fields import unsupported
from lmprog.server.http.http_errors import HttpError, Problem, refused
from lmprog.server.http.limits import within
from lmprog.server.http.option_fields import ResponsesOptions, carry
from lmprog.server.openai.chat_completions import AskedReasoning, ChatBody
from lmprog.server.openai.messages import CalledFunction, CalledTool, ChatMessage
from lmprog.server.openai.output_constraint import NamedSchema, ResponseFormat
from lmprog.server.openai.tools import (
    AllowedTools,
    ChatTool,
    FunctionTool,
    NamedFunction,
    NamedTool,
)
from lmprog.tool_calls.reading import ParsedCall

Json = dict[str, Any]

SILENT = (
    "user",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "client_metadata",
    "stream_options",
)
"""Known fields that cannot change an answer here: no warning is given."""
LOGPROBS = "message.output_text.logprobs"
INCLUDABLE = (
    LOGPROBS,
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
"""What `include` may name. All but the first belong to items that no response here has."""
_NAMES = {
    "messages": "input",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
}
Meta16 = Annotated[dict[str, Annotated[str, Meta(max_length=512)]], Meta(max_length=16)]


class ResponsePart(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None
    refusal: str | None = None


class ResponseItem(msgspec.Struct, frozen=True):
    """One item of the input: a message, a call of a tool, or what it gave."""

    type: str = "message"
    role: str | None = None
    content: str | list[ResponsePart] | None = None
    call_id: Annotated[str, Meta(max_length=128)] | None = None
    name: Annotated[str, within("name")] | None = None
    namespace: Annotated[str, within("name")] | None = None
    arguments: str | None = None
    input: str | None = None
    """Of a free text."""
    action: dict[str, Any] | None = None
    """Of `local_shell`."""
    output: str | list[ResponsePart] | None = None


class FlatTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """Functions stand flat here, not under `function`."""

    type: str
    name: Annotated[str, within("name")] | None = None
    description: Annotated[str, within("description")] | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: dict[str, Any] | None = None
    """Of a free text."""
    tools: list[FlatTool] | None = None
    """Of a namespace."""


class FlatChoice(msgspec.Struct, frozen=True):
    """One tool, or the tools that may be called."""

    type: str
    name: Annotated[str, within("name")] | None = None
    namespace: Annotated[str, within("name")] | None = None
    mode: str = "auto"
    tools: list[FlatTool] | None = None


class Reasoning(msgspec.Struct, frozen=True):
    """OpenAI's fields, and `max_tokens` and `enabled` as in OpenRouter's chats."""

    effort: str | None = None
    max_tokens: Annotated[int, within("thinking_token_budget")] | None = None
    enabled: bool | None = None
    summary: str | None = None
    generate_summary: str | None = None


class TextFormat(msgspec.Struct, frozen=True):
    type: str
    name: Annotated[str, within("name")] | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None
    schemas: dict[str, dict[str, Any] | bool] | None = None


class TextOptions(msgspec.Struct, frozen=True):
    format: TextFormat | None = None
    verbosity: str | None = None


class ResponsesBody(ResponsesOptions, kw_only=True):
    """What means something here; `None` always means that the field was not given."""

    input: str | Annotated[list[ResponseItem], within("messages")]
    model: Annotated[str, within("model")] | None = None
    instructions: str | None = None
    previous_response_id: Annotated[str, Meta(max_length=128)] | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    metadata: Meta16 | None = None
    top_logprobs: Annotated[int, within("top_logprobs")] | None = None
    include: list[str] | None = None
    reasoning: Reasoning | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    text: TextOptions | None = None
    tools: Annotated[list[FlatTool], within("tools")] | None = None
    tool_choice: str | FlatChoice | None = None
    parallel_tool_calls: bool | None = None

    priority: Annotated[int, within("priority")] | None = None
    cache_salt: Annotated[str, within("cache_salt")] | None = None

    @property
    def keeps(self) -> bool:
        """Whether the response can be asked for again."""
        return self.store is not False


LOCAL_SHELL = "local_shell"
_FREE_TEXT: Json = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
_COMMAND = FunctionTool(
    LOCAL_SHELL,
    "Runs a command on the user's machine and returns its output.",
    {
        "type": "object",
        "properties": {
            "command": {"type": "array", "items": {"type": "string"}},
            "working_directory": {"type": "string"},
            "timeout_ms": {"type": "integer"},
        },
        "required": ["command"],
        "additionalProperties": False,
    },
)


@dataclass(frozen=True, slots=True)
class ServedTool:
    """A tool that the client runs: the function that the model sees, and what calls of it are."""

    function: FunctionTool
    type: str
    name: str = ""
    namespace: str | None = None


class ServedTools:
    """The tools of a request. Those that nobody here can run are named in `warnings`."""

    def __init__(self, tools: Sequence[FlatTool] | None) -> None:
        """Raises HttpError for a tool without a name."""
        left_out: dict[str, None] = {}
        found: list[ServedTool] = []
        for at, tool in enumerate(tools or ()):
            made = list(_served(tool, f"tools[{at}]"))
            found += made
            if not made:
                left_out[tool.type[:60]] = None
        self.shown = [ChatTool("function", one.function) for one in found] if tools else None
        self._tools = {one.function.name: one for one in found}
        self.warnings = (
            (f"tools of the types {' '.join(left_out)!r} run elsewhere; the model has none here",)
            if left_out
            else ()
        )

    def called(self, call: ParsedCall) -> Json:
        """The item of a call, without its id and status."""
        tool = self._tools.get(call.name)
        if tool is not None and tool.type == LOCAL_SHELL:
            action = {"type": "exec", "env": {}, **_fields(call.arguments)}
            return {"type": "local_shell_call", "call_id": call.id, "action": action}
        name = call.name if tool is None else tool.name
        item: Json = {"type": "function_call", "call_id": call.id, "name": name}
        if tool is not None and tool.namespace is not None:
            item["namespace"] = tool.namespace
        if tool is not None and tool.type == "custom":
            text = _fields(call.arguments).get("input")
            given = text if isinstance(text, str) else call.arguments
            return {**item, "type": "custom_tool_call", "input": given}
        return {**item, "arguments": call.arguments}


def _served(tool: FlatTool, at: str) -> Iterator[ServedTool]:
    """None for a tool that the client does not run. Raises HttpError for one without a name."""
    if tool.type == LOCAL_SHELL:
        yield ServedTool(_COMMAND, LOCAL_SHELL)
        return
    if tool.type not in ("function", "custom", "namespace"):
        return
    name = _needed(tool.name, f"{at}.name")
    if tool.type == "namespace":
        for place, inner in enumerate(tool.tools or ()):
            where = f"{at}.tools[{place}]"
            for one in _served(inner, where) if inner.type != "namespace" else ():
                full = msgspec.structs.replace(one.function, name=_full_name(name, one.name))
                yield ServedTool(full, one.type, one.name, name)
    elif tool.type == "custom":
        texts = [tool.description, _described(tool.format)]
        described = "\n\n".join(text for text in texts if text)
        yield ServedTool(FunctionTool(name, described, _FREE_TEXT), "custom", name)
    else:
        function = FunctionTool(name, tool.description, tool.parameters, tool.strict)
        yield ServedTool(function, "function", name)


def _described(form: Mapping[str, Any] | None) -> str:
    """The grammar of a free text, for the model; it is not enforced."""
    if form is None or form.get("type") != "grammar":
        return ""
    return f"The input has this grammar ({form.get('syntax')}):\n{form.get('definition')}"


def _full_name(namespace: str | None, name: str) -> str:
    """What the model calls it."""
    return name if not namespace else f"{namespace.removesuffix('__')}__{name}"


def _fields(arguments: str) -> Json:
    """Of arguments that are an object; the model may have written something else."""
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def chat_of(body: ResponsesBody, messages: Sequence[ChatMessage], tools: ServedTools) -> ChatBody:
    """The same request as a chat. `messages` is the whole conversation, without the
    instructions.
    """
    system = [ChatMessage("system", body.instructions)] if body.instructions is not None else []
    unknown = next((name for name in body.include or () if name not in INCLUDABLE), None)
    if unknown is not None:
        raise refused(
            f"include names {unknown[:60]!r}; valid: {', '.join(INCLUDABLE)}.",
            "include",
            "invalid_value",
        )
    if body.text is not None and body.text.verbosity not in (None, "medium"):
        raise unsupported("text.verbosity", "say in a message how long the answer is to be")
    wants_logprobs = LOGPROBS in (body.include or ()) or bool(body.top_logprobs)
    asked = body.reasoning or Reasoning()
    chat = ChatBody(
        messages=[*system, *messages],
        model=body.model,
        stream=body.stream,
        priority=body.priority,
        cache_salt=body.cache_salt,
        logprobs=wants_logprobs or None,
        top_logprobs=(body.top_logprobs or 0) if wants_logprobs else None,
        response_format=_format(body.text.format)
        if body.text is not None and body.text.format is not None
        else None,
        tools=tools.shown,
        tool_choice=_choice(body.tool_choice),
        chat_template_kwargs=body.chat_template_kwargs,
        reasoning_effort=asked.effort,
        reasoning=AskedReasoning(max_tokens=asked.max_tokens, enabled=asked.enabled),
        parallel_tool_calls=body.parallel_tool_calls,
    )
    carry(body, "responses", chat)
    return chat


def renamed(error: HttpError) -> HttpError:
    """The chat's complaint with this dialect's names of fields."""
    problem = error.problem
    param, message = problem.param, problem.message
    for ours, theirs in _NAMES.items():
        if param is not None and param.startswith(ours):
            param = theirs
            if message.startswith(ours):
                message = theirs + message[len(ours) :]
            break
    return HttpError(
        Problem(problem.status, message, param, problem.code, problem.type, problem.retry_after)
    )


def messages_of(given: str | Sequence[ResponseItem]) -> list[ChatMessage]:
    """The input as chat messages; calls of one turn stand in one message. Raises HttpError."""
    if isinstance(given, str):
        return [ChatMessage("user", given)]
    made: list[ChatMessage] = []
    for place, item in enumerate(given):
        at = f"input[{place}]"
        match item.type:
            case "message":
                if item.role is None:
                    raise refused(f"{at}.role is missing.", f"{at}.role", "invalid_value")
                made.append(ChatMessage(item.role, _text(item.content, f"{at}.content")))
            case "function_call" | "custom_tool_call" | "local_shell_call":
                call = _earlier_call(item, at)
                if made and made[-1].role == "assistant":
                    last = made[-1]
                    made[-1] = msgspec.structs.replace(
                        last, tool_calls=[*(last.tool_calls or ()), call]
                    )
                else:
                    made.append(ChatMessage("assistant", None, tool_calls=[call]))
            case "function_call_output" | "custom_tool_call_output" | "local_shell_call_output":
                made.append(
                    ChatMessage(
                        "tool", _text(item.output, f"{at}.output"), tool_call_id=item.call_id
                    )
                )
            case "reasoning" | "web_search_call" | "image_generation_call" | "tool_search_call":
                continue  # of another model, and nothing that a chat can repeat
            case other:
                raise refused(
                    f"{at}.type is {other[:60]!r}; this server takes message, and function_call, "
                    "custom_tool_call and local_shell_call with their outputs.",
                    f"{at}.type",
                    "not_supported",
                )
    if not made:
        raise refused("input has no message.", "input", "invalid_value")
    return made


def items_of(message: ChatMessage) -> Iterator[Json]:
    """The items of a message, without ids; calls of any tool as those of functions."""
    text = message.content or ""
    if message.role == "tool":
        yield {
            "type": "function_call_output",
            "call_id": message.tool_call_id,
            "output": text,
            "status": "completed",
        }
        return
    if text or not message.tool_calls:
        kind = "output_text" if message.role == "assistant" else "input_text"
        part = {"type": kind, "text": text, **({"annotations": []} if kind[0] == "o" else {})}
        said = {"role": message.role, "status": "completed", "content": [part]}
        yield {"type": "message", **said}
    for call in message.tool_calls or ():
        function = {"name": call.function.name, "arguments": call.function.arguments}
        yield {"type": "function_call", "call_id": call.id, **function, "status": "completed"}


def _earlier_call(item: ResponseItem, at: str) -> CalledTool:
    """A call in the input, as the function that the model saw."""
    if item.type == "local_shell_call":
        asked = item.action or {}
        kept = {name: value for name, value in asked.items() if name != "type" and value}
        function = CalledFunction(LOCAL_SHELL, json.dumps(kept))
    else:
        is_free = item.type == "custom_tool_call"
        arguments = json.dumps({"input": item.input or ""}) if is_free else item.arguments or "{}"
        name = _full_name(item.namespace, _needed(item.name, f"{at}.name"))
        function = CalledFunction(name, arguments)
    return CalledTool(function, item.call_id)


def _text(content: str | list[ResponsePart] | None, at: str) -> str:
    if content is None:
        raise refused(f"{at} is missing.", at, "invalid_value")
    if isinstance(content, str):
        return content
    texts = []
    for place, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in ("input_text", "output_text", "text", "refusal") or text is None:
            raise refused(
                f"{at}[{place}] has the type {part.type[:60]!r}; this server reads text only.",
                f"{at}[{place}]",
                "not_supported",
            )
        texts.append(text)
    return "".join(texts)


def _needed(value: str | None, at: str) -> str:
    if value is None:
        raise refused(f"{at} is missing.", at, "invalid_value")
    return value


def _format(given: TextFormat) -> ResponseFormat:
    if given.type != "json_schema":
        return ResponseFormat(given.type)
    name = given.name or "response"
    named = NamedSchema(name, given.schema, given.strict, schemas=given.schemas)
    return ResponseFormat(given.type, named)


def _choice(choice: str | FlatChoice | None) -> str | NamedTool | None:
    if not isinstance(choice, FlatChoice):
        return choice
    if choice.type == "allowed_tools":
        names = [tool.name or tool.type for tool in choice.tools or ()]
        tools = [NamedTool(NamedFunction(name)) for name in names]
        return NamedTool(type=choice.type, allowed_tools=AllowedTools(choice.mode, tools))
    if choice.type == LOCAL_SHELL:
        return NamedTool(NamedFunction(LOCAL_SHELL))
    if choice.type not in ("function", "custom") or choice.name is None:
        raise refused(
            "tool_choice must be a text, or name a tool that the client runs.",
            "tool_choice",
            "invalid_value",
        )
    return NamedTool(NamedFunction(_full_name(choice.namespace, choice.name)))
