"""Chat messages into pieces of a branch: roles as the checkpoint's template writes them, contents as they are.

Calls of tools and their results are written as text, in the one form of `tools`: an assistant's calls behind its
content, results as a user's turn. Knows message shapes; what roles a model has is the runtime's to say.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from lmprog import wire
from lmprog.server.errors import HttpError, refused
from lmprog.server.limits import within
from lmprog.server.openai.tools import called, result

_ROLES = ("system", "developer", "user", "assistant", "tool")


class Part(msgspec.Struct):
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


class Message(msgspec.Struct):
    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None
    function_call: Any = None


def pieces_of(messages: list[Message], tools_text: str, goes_on: bool = False) -> tuple[wire.Piece, ...]:
    """The conversation up to where the assistant writes. `tools_text` is for the system; with `goes_on` the last
    message, an assistant's, is continued. Raises HttpError for what cannot be written."""
    turns: list[tuple[str, str]] = []
    for place, message in enumerate(messages):
        role, text = _turn(message, f"messages[{place}]")
        if role == "tool" and turns and turns[-1][0] == "tool":
            text = turns.pop()[1] + "\n" + text
        turns.append((role, text))
    if tools_text:
        if turns[0][0] == "system":
            turns[0] = ("system", f"{turns[0][1]}\n\n{tools_text}")
        else:
            turns.insert(0, ("system", tools_text))
    if goes_on and turns[-1][0] != "assistant":
        raise refused(
            f"continue_final_message is true, and the last message is the {turns[-1][0]}'s; it must be the "
            "assistant's.",
            "continue_final_message",
        )
    pieces: list[wire.Piece] = []
    for place, (role, text) in enumerate(turns):
        role = "user" if role == "tool" else role
        pieces.append(wire.RoleBegin(role))
        if text:
            pieces.append(wire.Text(text))
        if not (goes_on and place == len(turns) - 1):
            pieces.append(wire.RoleEnd(role))
    if not goes_on:
        pieces.append(wire.RoleBegin("assistant"))
    return tuple(pieces)


def _turn(message: Message, at: str) -> tuple[str, str]:
    """Role and text of one message."""
    if message.role not in _ROLES:
        raise refused(
            f"{at}.role is {message.role[:60]!r}; the roles are {', '.join(_ROLES)}.", f"{at}.role", "invalid_value"
        )
    if message.function_call is not None:
        raise refused(f"{at}.function_call is out of date; use tool_calls.", f"{at}.function_call", "not_supported")
    role = "system" if message.role == "developer" else message.role
    text = _text(message.content, at)
    if message.tool_calls:
        if role != "assistant":
            raise refused(f"{at} is the {role}'s and has tool_calls; only the assistant calls.", f"{at}.tool_calls")
        calls = "\n".join(called(call.function.name, call.function.arguments) for call in message.tool_calls)
        text = f"{text}\n{calls}" if text else calls
    elif message.content is None:
        raise refused(f"{at}.content is missing.", f"{at}.content", "invalid_value")
    return role, result(text) if role == "tool" else text


def _text(content: str | list[Part] | None, at: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(_part(part, f"{at}.content[{place}]") for place, part in enumerate(content))


def _part(part: Part, at: str) -> str:
    text = {"text": part.text, "input_text": part.text, "refusal": part.refusal}.get(part.type)
    if text is None:
        raise _no_text(part, at)
    return text


def _no_text(part: Part, at: str) -> HttpError:
    if part.type in ("text", "input_text", "refusal"):
        return refused(f"{at} has the type {part.type!r} and no text.", f"{at}.text", "invalid_value")
    return refused(f"{at} has the type {part.type[:60]!r}; this server reads text only.", f"{at}.type", "not_supported")
