"""What a model says when it has tools: a text with calls in it, read as values, and what the called
functions gave.

Knows tools and forms of calls; knows no branches. Functions run here, in this thread, or on this
event loop, which plain functions do not block.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION
from dataclasses import dataclass, field, replace
from typing import Any

from lmprog import wire
from lmprog.errors import (
    Cancelled,
    CheckpointMismatch,
    DeadlineExceeded,
    LmprogError,
    Paused,
    RuntimeGone,
    TokenBudgetExceeded,
    ValidationFailed,
)
from lmprog.lang.ops import threads
from lmprog.lang.ops.tool_functions import Tool, ToolSet
from lmprog.lang.ops.type_values import as_json_data
from lmprog.tool_calls.harmony import HarmonyStream, ThoughtText
from lmprog.tool_calls.reading import MALFORMED, ParsedCall, json_object
from lmprog.tool_calls.stream import CallStream
from lmprog.tool_calls.thoughts import Marks, ThoughtStream
from lmprog.tool_calls.writing import WrittenCall, written

MAX_CONCURRENT = 32
"""Threads for the calls of one answer."""
_ENDS_THE_RUN = (
    Cancelled, CheckpointMismatch, DeadlineExceeded, Paused, RuntimeGone, TokenBudgetExceeded,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call: the tool's name, and its arguments as values of the parameters' types."""

    name: str
    arguments: dict[str, Any]
    tool: Tool | None = field(repr=False)
    """None where there is none of this name."""
    problem: str | None = None
    """What is wrong with the call; then there are no arguments, and no tool is run."""

    def run(self) -> ToolResult:
        """Calls the function; blocks. What it raises is the result."""
        if self.problem is not None or self.tool is None:
            return self._refused()
        try:
            found = self.tool.function(**self.arguments)
            if inspect.iscoroutine(found):
                found = asyncio.run(found)
        except _ENDS_THE_RUN:
            raise
        except Exception as error:  # noqa: BLE001  (the border of a foreign function: it is shown)
            return ToolResult(self, None, error)
        return ToolResult(self, found)

    async def arun(self) -> ToolResult:
        """The same for an event loop: a plain function runs in a thread."""
        if self.problem is not None or self.tool is None:
            return self._refused()
        try:
            if self.tool.is_async:
                found = await self.tool.function(**self.arguments)
            else:
                function = functools.partial(self.tool.function, **self.arguments)
                found = await threads.call("lmprog-tool", function)
        except _ENDS_THE_RUN:
            raise
        except Exception as error:  # noqa: BLE001  (the border of a foreign function: it is shown)
            return ToolResult(self, None, error)
        return ToolResult(self, found)

    def _refused(self) -> ToolResult:
        return ToolResult(self, None, ValidationFailed(self.problem or "", text=""))


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call gave."""

    call: ToolCall
    value: Any
    error: Exception | None = None

    @property
    def text(self) -> str:
        """What the model is shown."""
        error = self.error
        if error is not None:
            kind = "" if isinstance(error, ValidationFailed) else f"{type(error).__name__}: "
            message = error.message if isinstance(error, LmprogError) else str(error)
            return f"Error: {kind}{message}".strip().removesuffix(":")
        if isinstance(self.value, str):
            return self.value
        try:
            return json.dumps(as_json_data(self.value), ensure_ascii=False)
        except (TypeError, ValueError):
            return str(self.value)


@dataclass(frozen=True, slots=True)
class ToolResults:
    """The results of one answer's calls, in their order: appended to a branch they are what the
    model is told.
    """

    results: tuple[ToolResult, ...]


@dataclass(frozen=True, slots=True)
class ToolReply:
    """An answer of a model that has tools: its text, and its calls."""

    text: str
    calls: tuple[ToolCall, ...] = ()

    def run(self, *, concurrent: bool = False) -> ToolResults:
        """Runs the calls, one after the other or `concurrent`ly; blocks."""
        if not concurrent or len(self.calls) < 2:
            return ToolResults(tuple(call.run() for call in self.calls))
        started = threads.start_all(
            "lmprog-tool", [one.run for one in self.calls], MAX_CONCURRENT, all_or_none=True
        )
        try:
            threads.wait(started, FIRST_EXCEPTION)
        finally:
            threads.cancel(started)  # where none ends the run, all have ended
        threads.wait(started)
        for one in started:
            if not one.cancelled():
                one.result()  # raises what ends the run
        return ToolResults(tuple(one.result() for one in started))

    async def arun(self, *, concurrent: bool = False) -> ToolResults:
        """The same for an event loop."""
        if not concurrent:
            return ToolResults(tuple([await call.arun() for call in self.calls]))
        return ToolResults(tuple(await asyncio.gather(*(call.arun() for call in self.calls))))


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """Tools in the form in which one model calls them: the type of such a generation."""

    tools: ToolSet
    support: wire.ToolSupport
    is_native: bool = False
    """The service has fields for calls: nothing in a text is one."""
    state: wire.ThoughtState = "closed"
    """How the text before it leaves it to think."""
    is_held: bool = False
    """A constraint lets nothing but calls of these tools begin as they do."""

    @property
    def form(self) -> wire.CallForm:
        return self.support.form

    def stream(self) -> CallStream | HarmonyStream | ThoughtStream | None:
        """A reader of a text that comes in pieces; None where all of it is text."""
        if self.is_native:
            return None
        tools = {shape.name: shape.parameters for shape in self.tools.shapes}
        # under such a constraint, it does not matter in which tokens calls are spelled
        is_held = self.is_held
        tags = () if is_held or self.tools.is_required else self.support.tags
        if self.form.harmony:
            return HarmonyStream(tools, tells_wrong=True, special=tags, is_held=is_held)
        stream = CallStream(self.form, tools, "", tells_wrong=True, special=tags, is_held=is_held)
        if self.state == "closed":
            return stream
        thought = self.support.thought
        return ThoughtStream(Marks(thought.begin, thought.end, self.state == "open"), stream)

    def reply(self, text: str, output: wire.Output) -> ToolReply:
        """A whole answer as a value: `text`, which is the end of the output's, and the calls in it
        or, from a service, in fields.
        """
        stream = self.stream()
        if stream is None:
            return ToolReply(text, self._calls(self._sent(output)))
        parts = [*stream.feed(text, _tags_of_end(output, text)), *stream.finish(output)]
        content = "".join(part for part in parts if isinstance(part, str))
        return ToolReply(content, self._calls(parts))

    def is_cut(self, output: wire.Output) -> bool:
        """Whether an answer that the token limit ended has the beginning of a call."""
        stream = self.stream()
        if stream is None:
            return any(
                call.problem or json_object(call.arguments or "{}") is None
                for call in self._sent(output)
            )
        stream.feed(output.text, output.tags)
        stream.finish(output)
        return stream.is_cut

    def _sent(self, output: wire.Output) -> list[ParsedCall]:
        """The calls in fields. A limit that came before the arguments of the last one leaves them
        empty, which would be all defaults.
        """
        sent = [ParsedCall(call.name, call.arguments, call.id) for call in output.calls]
        takes = {shape.name for shape in self.tools.shapes if shape.parameters.get("properties")}
        if output.finish == "length" and sent and sent[-1].name in takes:
            last = sent[-1]
            if not json_object(last.arguments or "{}"):
                sent[-1] = replace(last, problem=MALFORMED)
        return sent

    def _calls(self, parts: Sequence[str | ParsedCall | ThoughtText]) -> tuple[ToolCall, ...]:
        calls = tuple(self._call(part) for part in parts if isinstance(part, ParsedCall))
        return calls if self.tools.is_parallel else calls[:1]

    def _call(self, parsed: ParsedCall) -> ToolCall:
        names = [tool.name for tool in self.tools.tools]
        if parsed.problem:
            return ToolCall(parsed.name, {}, None, parsed.problem)
        if parsed.name not in names:
            problem = f"unknown tool {parsed.name!r}; available: {', '.join(names)}"
            return ToolCall(parsed.name, {}, None, problem)
        tool = self.tools.named(parsed.name)
        try:
            return ToolCall(parsed.name, tool.arguments_of(parsed.arguments), tool)
        except ValidationFailed as error:
            return ToolCall(parsed.name, {}, tool, error.message)

    def text_of(self, name: str, arguments: dict[str, Any]) -> str:
        """A call as the model writes it."""
        return written(self.form, [WrittenCall(name, arguments, "a1b2c3d4e")])


def _tags_of_end(output: wire.Output, text: str) -> list[int]:
    """Where special tokens begin in the end of an output's text."""
    begin = len(output.text) - len(text)
    return [at - begin for at in output.tags if at >= begin]
