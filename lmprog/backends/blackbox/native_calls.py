"""Calls of tools between the two forms they have: text in a branch, fields in a service's messages.

A branch holds calls in `wire.HERMES`' form, and their results as turns of the role `tool`, in the
order of the calls. Services connect both by ids, which are made here and stay the same for the same
branch. Knows transcripts and OpenAI's names of fields; sends nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from lmprog import wire
from lmprog.backends.blackbox.answer_state import AnswerState
from lmprog.backends.blackbox.transcript import ChatPrompt, Kind, Prompt, TranscriptMessage
from lmprog.calls.call_stream import CallStream
from lmprog.calls.reading import ParsedCall
from lmprog.calls.writing import WrittenCall, written
from lmprog.errors import NotSupported, ProtocolError


def prompt_with_tools(
    state: AnswerState, op: wire.Generate, kind: Kind
) -> tuple[AnswerState, Prompt, wire.ToolOffer | None]:
    """The prompt of a request, and the tools to send with it. Raises `NotSupported` where there
    are no messages that tools could be sent with.
    """
    state, tools = _with_tools(state, op)
    return state, _told_of_calls(state.transcript.prompt(kind), tools), tools


def _with_tools(state: AnswerState, op: wire.Generate) -> tuple[AnswerState, wire.ToolOffer | None]:
    """The tools of a request: the call's own, or those that earlier answers may have called."""
    if op.tools is not None:
        return replace(state, tools=op.tools), op.tools
    if state.tools is None:
        return state, None
    return state, msgspec.structs.replace(state.tools, choice="none")


def _told_of_calls(prompt: Prompt, tools: wire.ToolOffer | None) -> Prompt:
    if tools is None:
        return prompt
    if not isinstance(prompt, ChatPrompt):
        raise NotSupported("this service takes tools with messages only; begin with s.user(...)")
    return with_calls(prompt, tools)


def with_calls(prompt: ChatPrompt, offer: wire.ToolOffer) -> ChatPrompt:
    """The prompt with the calls in its messages as calls, and results that say what they answer."""
    names = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools_of(offer)}
    found: list[TranscriptMessage] = []
    open_ids: list[str] = []
    for place, message in enumerate(prompt.messages):
        if message.role == "assistant":
            called = _called(message, names, place)
            after = prompt.messages[place + 1 : place + 1 + len(called.calls)]
            is_answered = [one.role for one in after] == ["tool"] * len(called.calls)
            message = called if is_answered else message  # services refuse calls without results
            open_ids = [call.id for call in message.calls]
        elif message.role == "tool" and open_ids:
            message = replace(message, answers=open_ids.pop(0))
        found.append(message)
    return replace(prompt, messages=tuple(found))


def _called(message: TranscriptMessage, names: Mapping[str, Any], place: int) -> TranscriptMessage:
    stream = CallStream(wire.HERMES, names)
    parts = [*stream.feed(message.content), *stream.finish()]
    content = "".join(part for part in parts if isinstance(part, str))
    calls = [part for part in parts if isinstance(part, ParsedCall)]
    named = tuple(replace(call, id=f"call_{place}_{nth}") for nth, call in enumerate(calls))
    return replace(message, content=content, calls=named) if calls else message


def tools_of(offer: wire.ToolOffer) -> list[dict[str, Any]]:
    """The functions, in OpenAI's shape."""
    found: list[dict[str, Any]] = json.loads(offer.tools)
    return found


def as_text(content: str, calls: Iterable[tuple[str, Any]]) -> str:
    """An answer as the branch holds it: its text, and its calls, each a name and its arguments as
    JSON text or as an object. Raises `ProtocolError` for arguments that are neither.
    """
    made: Sequence[WrittenCall] = [WrittenCall(name, _object(given)) for name, given in calls]
    texts = (content.rstrip() if made else content, written(wire.HERMES, made) if made else "")
    return "\n".join(text for text in texts if text)


def _object(given: Any) -> dict[str, Any]:
    try:
        found = json.loads(given or "{}") if isinstance(given, str) else given
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ProtocolError(f"the API called a tool with arguments that are no object: {given!r}")
    return found
