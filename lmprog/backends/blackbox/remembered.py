"""A branch after a call whose answer is known: as if the service had given it now."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import msgspec

from lmprog import wire
from lmprog.backends.blackbox.answer_state import AnswerState
from lmprog.backends.blackbox.transcript import Kind

KnownReply: TypeAlias = wire.CallDone | wire.Chosen


def remembered(
    state: AnswerState, op: wire.Generate | wire.Select, reply: KnownReply, kind: Kind
) -> tuple[AnswerState, KnownReply]:
    """The branch's state behind the call, and the reply as one to it."""
    reply = msgspec.structs.replace(reply, call=op.call)
    if isinstance(op, wire.Select) and isinstance(reply, wire.Chosen):
        return state.with_result(op.choices[reply.index]), reply
    assert isinstance(op, wire.Generate)
    assert isinstance(reply, wire.CallDone)
    if op.sampling.max_tokens == 0:
        return state.with_prompt_computed(reply.outputs[0], kind), reply
    if op.tools is not None:
        state = replace(state, tools=op.tools)
    return state.with_result(reply.outputs[0].text, output=reply.outputs[0]), reply
