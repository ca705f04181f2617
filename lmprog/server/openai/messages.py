"""Chat messages into a conversation that the checkpoint's template writes.

Where tools are used it is sent twice: as a template that teaches the form of `tools` by itself
expects it, and plain, for all others: calls as text behind the assistant's content, results as a
user's turn. The runtime, which has the template, takes the one that fits. Knows message shapes;
what roles a model has is the runtime's to say.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec

from lmprog import wire
from lmprog.server.http.http_errors import HttpError, refused
from lmprog.server.http.limits import within
from lmprog.server.openai.tool_calls import BEGIN as MARK
from lmprog.server.openai.tool_calls import called, result
from lmprog.server.openai.tools import Toolbox

_MOST_BRACKETS = 512  # more could nest deeper than JSON can be written again
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


def pieces_of(
    messages: list[ChatMessage],
    box: Toolbox,
    goes_on: bool = False,
    variables: dict[str, Any] | None = None,
) -> tuple[wire.Piece, ...]:
    """The conversation up to where the assistant writes; with `goes_on` the last message, the
    assistant's, is where it goes on. Raises HttpError for what cannot be written."""
    turns = [_turn(message, f"messages[{place}]") for place, message in enumerate(messages)]
    last = ""
    if goes_on:
        role, last = turns.pop()
        if role != "assistant":
            raise refused(
                f"continue_final_message is true, and the last message is the {role}'s; it must be "
                "the assistant's.",
                "continue_final_message",
            )
        messages = messages[:-1]
    named = json.dumps(variables) if variables else ""
    plain = json.dumps(_plain(turns, box.text))
    uses_tools = bool(box.text) or any(
        message.role == "tool" or message.tool_calls for message in messages
    )
    if not uses_tools:
        conversation = wire.Conversation(plain, variables=named)
    else:
        native = json.dumps(
            [
                _native(message, role_and_text)
                for message, role_and_text in zip(messages, turns, strict=True)
            ]
        )
        conversation = wire.Conversation(native, json.dumps(box.shown_tools), plain, MARK, named)
    more = (wire.TextPiece(last, quoted=True), wire.TextPiece(box.opening))
    return (conversation, *(text for text in more if text.text))


def _plain(turns: list[tuple[str, str]], tools_text: str) -> list[dict[str, str]]:
    """For templates that know no tools: results are the user's, and the system text lists the
    tools.
    """
    made: list[tuple[str, str]] = []
    for role, text in turns:
        if role == "tool" and made and made[-1][0] == "tool":
            text = made.pop()[1] + "\n" + text
        made.append((role, text))
    if tools_text:
        if made and made[0][0] == "system":
            made[0] = ("system", f"{made[0][1]}\n\n{tools_text}")
        else:
            made.insert(0, ("system", tools_text))
    return [{"role": "user" if role == "tool" else role, "content": text} for role, text in made]


def _native(message: ChatMessage, turn: tuple[str, str]) -> dict[str, Any]:
    """As templates that know tools expect it."""
    role, _ = turn
    made: dict[str, Any] = {"role": role, "content": _text(message.content, "")}
    if message.tool_calls:
        made["tool_calls"] = [
            {
                "type": "function",
                "id": call.id or "",
                "function": {"name": call.function.name, "arguments": _arguments(call)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        made["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        made["name"] = message.name
    return made


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


def _turn(message: ChatMessage, at: str) -> tuple[str, str]:
    """Role and text of one message."""
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
    text = _text(message.content, at)
    if message.tool_calls:
        if role != "assistant":
            raise refused(
                f"{at} is the {role}'s and has tool_calls; only the assistant calls.",
                f"{at}.tool_calls",
            )
        calls = "\n".join(
            called(call.function.name, call.function.arguments) for call in message.tool_calls
        )
        text = f"{text}\n{calls}" if text else calls
    elif message.content is None:
        raise refused(f"{at}.content is missing.", f"{at}.content", "invalid_value")
    return role, result(text) if role == "tool" else text


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
