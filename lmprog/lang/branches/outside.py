"""What a program learns from outside of the model, once: functions, tools, somebody who is asked.

What they give is kept with the run, so that a resumed run has it from there: nothing is done twice.
Knows keys and values; knows no calls.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from lmprog.errors import ProgramError
from lmprog.lang.branches.scope import Scope
from lmprog.lang.checkpoints.run_progress import Answer
from lmprog.lang.ops.tool_calls import ToolCall, ToolReply
from lmprog.lang.ops.tool_functions import Tool


class AskingBranch(Protocol):
    """A branch on which something outside is asked."""

    num_values: int

    @property
    def scope(self) -> Scope: ...

    @property
    def key(self) -> str: ...


def next_key(branch: AskingBranch) -> str:
    """The key of what is asked next on the branch."""
    branch.num_values += 1
    return f"{branch.key}!{branch.num_values - 1}"


def once(branch: AskingBranch, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` as one that is called now, or was called before the run stopped. What it gives
    must be what JSON has, and is given as JSON has it. A coroutine function stays one.
    """
    key, asks = next_key(branch), f"once: {_name(function)}"
    progress = branch.scope.record.needed()
    known = progress.value(key, asks)

    def keep(value: object) -> Any:
        try:
            as_json = json.loads(json.dumps(value))
        except (TypeError, ValueError) as error:
            raise ProgramError(
                f"s.once({_name(function)}) gave {type(value).__name__}, which JSON does not have "
                f"({error}); give texts, numbers, lists and dicts"
            ) from None
        progress.keep_value(key, asks, as_json)
        return as_json

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def done_once(*args: Any, **kwargs: Any) -> Any:
            return keep(await function(*args, **kwargs)) if known is None else known.value

        return done_once
    return lambda *args, **kwargs: keep(function(*args, **kwargs)) if known is None else known.value


def pause(branch: AskingBranch, question: str) -> Any:
    """The answer to `question`. Raises `Paused` where there is none yet."""
    if branch.scope.is_rehearsal:
        return f"⟨{question}⟩"
    return branch.scope.record.needed().pause(next_key(branch), question)


def with_kept_results(branch: AskingBranch, reply: ToolReply) -> ToolReply:
    """The answer, with tools that are not run where a checkpoint has what they gave. What JSON does
    not have, and errors, are not kept: these tools are run again.
    """
    return replace(reply, calls=tuple(_kept_call(branch, call) for call in reply.calls))


def _kept_call(branch: AskingBranch, call: ToolCall) -> ToolCall:
    key, asks = next_key(branch), f"tool: {call.name}"
    tool = call.tool
    if tool is None or call.problem is not None:
        return call  # nothing is run
    progress, function = branch.scope.record.needed(), tool.function
    known = progress.value(key, asks)

    def keep(value: Any) -> Any:
        # else the model is shown it as text, and it is not there after a stop
        with contextlib.suppress(TypeError, ValueError):
            progress.keep_value(key, asks, json.loads(json.dumps(value)))
        return value

    if known is not None:
        return _with_function(call, tool, _gives(known, is_async=tool.is_async))
    if tool.is_async:

        @functools.wraps(function)
        async def kept_later(**arguments: Any) -> Any:
            return keep(await function(**arguments))

        return _with_function(call, tool, kept_later)
    return _with_function(call, tool, lambda **arguments: keep(function(**arguments)))


def _with_function(call: ToolCall, tool: Tool, function: Callable[..., Any]) -> ToolCall:
    return replace(call, tool=replace(tool, function=function))


def _gives(known: Answer, *, is_async: bool) -> Callable[..., Any]:
    async def gives_later(**arguments: Any) -> Any:
        return known.value

    return gives_later if is_async else lambda **arguments: known.value


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))
