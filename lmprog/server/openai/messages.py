"""Chat messages into a conversation that the checkpoint's template writes.

Of a conversation with tools a template writes what it can (`wire.ToolSupport`): the descriptions of
the tools, the calls of earlier turns, the role `tool`. The rest is text: descriptions in the system
text, calls behind the assistant's content in the model's form, results as a user's turn. Knows
message shapes; what roles a model has is the runtime's to say.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec

from lmprog import wire
from lmprog.server.http.http_errors import HttpError, refused
from lmprog.server.http.limits import within
from lmprog.server.openai.tools import Toolbox, shortened
from lmprog.tool_calls.describing import result_text
from lmprog.tool_calls.writing import WrittenCall, written

_MOST_BRACKETS = 512  # more could nest deeper than JSON can be written again
_RESULT = "result"
"""For the time being, the role of a tool's answer that the user is to give."""
_ROLES = ("system", "developer", "user", "assistant", "tool")


class ContentPart(msgspec.Struct):
    """One part of a content; only text is taken."""

    type: str
    text: str | None = None
    refusal: str | None = None


class CalledFunction(msgspec.Struct):
    name: Annotated[str, within("name")]
    arguments: str = "{}"


class CalledTool(msgspec.Struct):
    function: CalledFunction
    id: str | None = None
    type: str | None = None


class ChatMessage(msgspec.Struct):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None
    function_call: Any = None
    reasoning_content: str | None = None
    """What was thought before an earlier answer; the template says what becomes of it."""


def pieces_of(
    messages: list[ChatMessage],
    box: Toolbox,
    goes_on: bool = False,
    variables: dict[str, Any] | None = None,
) -> tuple[wire.Piece, ...]:
    """The conversation up to where the assistant writes; with `goes_on` the last message, the
    assistant's, is where it goes on. Raises HttpError for what cannot be written."""
    turns = [
        _turn(message, f"messages[{place}]", box.support) for place, message in enumerate(messages)
    ]
    last = ""
    if goes_on:
        final = turns.pop()
        if final["role"] != "assistant":
            raise refused(
                f"continue_final_message is true, and the last message is the {final['role']}'s; "
                "it must be the assistant's.",
                "continue_final_message",
            )
        last = final["content"]
    conversation = wire.Conversation(
        _json(_merged(turns, box.text)),
        _json(box.shown_tools) if box.shown_tools else "",
        _json(variables) if variables else "",
    )
    more = (
        wire.TextPiece(box.written),
        wire.TextPiece(last, quoted=True),
        wire.TextPiece(box.opening),
    )
    return (conversation, *(text for text in more if text.text))


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _merged(turns: list[dict[str, Any]], tools_text: str) -> list[dict[str, Any]]:
    """With results that are text as one turn of the user's, and `tools_text` in the system's."""
    made: list[dict[str, Any]] = []
    for turn in turns:
        if turn["role"] == _RESULT and made and made[-1]["role"] == _RESULT:
            made[-1] = {**turn, "content": f"{made[-1]['content']}\n{turn['content']}"}
        else:
            made.append(turn)
    made = [{**turn, "role": "user"} if turn["role"] == _RESULT else turn for turn in made]
    if tools_text:
        if made and made[0]["role"] == "system":
            made[0] = {**made[0], "content": f"{made[0]['content']}\n\n{tools_text}"}
        else:
            made.insert(0, {"role": "system", "content": tools_text})
    return made


def _turn(message: ChatMessage, at: str, support: wire.ToolSupport) -> dict[str, Any]:
    """One message as the template expects it. Raises HttpError."""
    role, text = _role_and_text(message, at)
    made: dict[str, Any] = {"role": role, "content": text}
    if message.tool_calls and support.writes_calls:
        made["tool_calls"] = [_native_call(call, support) for call in message.tool_calls]
    elif message.tool_calls:
        calls = [
            WrittenCall(call.function.name, _as_object(call), shortened(call.id or ""))
            for call in message.tool_calls
        ]
        texts = (text, written(support.form, calls))
        made["content"] = "\n".join(filter(None, texts))
    if message.reasoning_content and role == "assistant":
        made |= _thought(message.reasoning_content, text, bool(message.tool_calls), support)
    if role == "tool" and not support.takes_results:
        return {"role": _RESULT, "content": result_text(text)}
    if message.tool_call_id is not None:
        made["tool_call_id"] = _id(message.tool_call_id, support)
    if message.name is not None:
        made["name"] = message.name
    return made


def _thought(thought: str, text: str, has_calls: bool, support: wire.ToolSupport) -> dict[str, Any]:
    """By the names that templates have for it. Those of models with channels write one text before
    a call, and refuse two.
    """
    if not support.form.harmony:
        return {"reasoning_content": thought}
    return {} if has_calls and text else {"thinking": thought}


def _native_call(call: CalledTool, support: wire.ToolSupport) -> dict[str, Any]:
    text = call.function.arguments or "{}"
    arguments = text if support.arguments_as_text else _arguments(call)
    function = {"name": call.function.name, "arguments": arguments}
    return {"type": "function", "id": _id(call.id or "", support), "function": function}


def _id(id_: str, support: wire.ToolSupport) -> str:
    return shortened(id_) if support.short_ids else id_


def _as_object(call: CalledTool) -> dict[str, Any]:
    found = _arguments(call)
    return found if isinstance(found, dict) else {"arguments": found}


def _arguments(call: CalledTool) -> Any:
    """As an object, which is what templates write as JSON; as the text that it is where it is
    none.
    """
    text = call.function.arguments or "{}"
    if text.count("{") + text.count("[") > _MOST_BRACKETS:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _role_and_text(message: ChatMessage, at: str) -> tuple[str, str]:
    """Of one message. Raises HttpError where it has none."""
    if message.role not in _ROLES:
        raise refused(
            f"{at}.role is {message.role[:60]!r}; the roles are {', '.join(_ROLES)}.",
            f"{at}.role",
            "invalid_value",
        )
    if message.function_call is not None:
        raise refused(
            f"{at}.function_call is out of date; use tool_calls.",
            f"{at}.function_call",
            "not_supported",
        )
    role = "system" if message.role == "developer" else message.role
    if message.tool_calls and role != "assistant":
        raise refused(
            f"{at} is the {role}'s and has tool_calls; only the assistant calls.",
            f"{at}.tool_calls",
        )
    if message.content is None and role != "assistant":
        raise refused(f"{at}.content is missing.", f"{at}.content", "invalid_value")
    return role, _text(message.content, at)


def _text(content: str | list[ContentPart] | None, at: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(_part(part, f"{at}.content[{place}]") for place, part in enumerate(content))


def _part(part: ContentPart, at: str) -> str:
    text = {"text": part.text, "input_text": part.text, "refusal": part.refusal}.get(part.type)
    if text is None:
        raise _no_text(part, at)
    return text


def _no_text(part: ContentPart, at: str) -> HttpError:
    if part.type in ("text", "input_text", "refusal"):
        return refused(
            f"{at} has the type {part.type!r} and no text.", f"{at}.text", "invalid_value"
        )
    return refused(
        f"{at} has the type {part.type[:60]!r}; this server reads text only.",
        f"{at}.type",
        "not_supported",
    )
