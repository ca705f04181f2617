"""Calls of tools in a service's messages: fields of answers, which stay fields.

What a service sent as content is content, whatever stands in it, and goes back as content; what it
sent as calls goes back as calls, with the same ids. Results are turns of the role `tool`, in the
order of the calls. Knows transcripts and OpenAI's names of fields; sends nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from lmprog import wire
from lmprog.backends.blackbox.speculation import AnswerState
from lmprog.backends.blackbox.transcript import ChatPrompt, Kind, Prompt, TranscriptMessage
from lmprog.errors import NotSupported
from lmprog.tool_calls.describing import function_shape
from lmprog.tool_calls.reading import json_object
from lmprog.tool_calls.writing import as_json


def prompt_with_tools(
    state: AnswerState, offered: wire.ToolOffer | None, kind: Kind
) -> tuple[AnswerState, Prompt, wire.ToolOffer | None]:
    """The prompt of a request, and the tools to send with it: those that the call offers, or those
    that earlier answers may have called. Raises `NotSupported` where there
    are no messages that tools could be sent with.
    """
    tools = offered
    if offered is not None:
        state = replace(state, tools=offered)
    elif state.tools is not None:
        tools = msgspec.structs.replace(state.tools, choice="none")
    prompt = state.transcript.prompt(kind)
    if not isinstance(prompt, ChatPrompt):
        if tools is not None:
            raise NotSupported(
                "this service takes tools with messages only; begin with s.user(...)"
            )
        return state, prompt, None
    prompt = with_calls(prompt)
    return state, prompt, tools or _tools_called(prompt)


def with_calls(prompt: ChatPrompt) -> ChatPrompt:
    """The prompt with results that say what they answer. Services refuse calls without results:
    those that have none are left out, or, where none has one, are text.
    """
    found: list[TranscriptMessage] = []
    open_ids: list[str] = []
    known: set[str] = set()
    for place, message in enumerate(prompt.messages):
        if message.role == "assistant":
            message = _answered(message, _num_results(prompt.messages[place + 1 :]), place, known)
            open_ids = [call.id for call in message.calls]
        elif message.role == "tool" and open_ids:
            message = replace(message, answers=open_ids.pop(0))
        found.append(message)
    return replace(prompt, messages=tuple(found))


def _num_results(after: Sequence[TranscriptMessage]) -> int:
    """How many results follow."""
    roles = [message.role for message in after]
    return next((at for at, role in enumerate(roles) if role != "tool"), len(roles))


def _answered(
    message: TranscriptMessage, num_results: int, place: int, known: set[str]
) -> TranscriptMessage:
    """Each call with an id that no other one has: the service's own, where there is one."""
    if not num_results:
        return replace(message, content=message.shown, calls=())
    made: list[wire.SentCall] = []
    for nth, call in enumerate(message.calls[:num_results]):
        id_ = call.id if call.id and call.id not in known else f"call_{place}_{nth}"
        known.add(id_)
        made.append(wire.SentCall(call.name, _object_text(call.arguments), id_))
    return replace(message, calls=tuple(made))


def _object_text(arguments: str) -> str:
    """Services take no other arguments back than objects: what is none stands in one."""
    if not arguments.strip():
        return "{}"
    return arguments if json_object(arguments) is not None else as_json({"arguments": arguments})


def _tools_called(prompt: ChatPrompt) -> wire.ToolOffer | None:
    """The tools that the messages call, where nobody has said what they are: some services refuse
    calls of tools that they are not told of.
    """
    names = dict.fromkeys(call.name for message in prompt.messages for call in message.calls)
    if not names:
        return None
    return wire.ToolOffer(as_json([function_shape(name, None, None) for name in names]), "none")


def tools_of(offer: wire.ToolOffer) -> list[dict[str, Any]]:
    """The functions, in OpenAI's shape."""
    found: list[dict[str, Any]] = json.loads(offer.tools)
    return found
