"""`s.act(tools)`: the model calls tools, Python runs them, until the model has answered.

Each step is one generation with tools; the results of its calls are appended behind it. The branch
cannot go on before that is over. Knows generations and results; how tools get into a branch is
`tool_turns`'.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from lmprog.errors import InvalidParameter, StepLimitExceeded
from lmprog.lang.branches.asked_gen import Held
from lmprog.lang.branches.gen import Gen
from lmprog.lang.ops.tool_calls import ToolReply, ToolResult, ToolResults
from lmprog.lang.ops.tool_functions import ToolFunction, ToolSet, checked_tools
from lmprog.lang.streaming.feed import Called, Feed

Until: TypeAlias = "str | ToolFunction | Callable[[ToolReply], bool] | None"
"""What ends it: a tool, given as it is or by its name, that ran without an error; or a function of
the answer that gives True. An answer without calls ends it in any case.
"""
MAX_STEPS = 1000


@dataclass(frozen=True, slots=True)
class Acted:
    """What came of it."""

    text: str
    """The text of the last answer."""
    value: Any
    """What the tool of `until` gave; without one, the text."""
    results: tuple[ToolResult, ...] = ()
    """What all calls gave, in their order."""


@dataclass(frozen=True, slots=True)
class ActPlan:
    """With which tools, until when, at most how often."""

    tools: ToolSet
    last_tool: str | None
    is_last: Callable[[ToolReply], bool] | None
    steps: int
    is_concurrent: bool

    @classmethod
    def of(cls, tools: object, until: Until, steps: int, is_concurrent: bool) -> ActPlan:
        """Raises `InvalidParameter`."""
        if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= MAX_STEPS:
            allowed = f"1 <= x <= {MAX_STEPS}"
            message = f"steps={steps!r} is not allowed; give {allowed}"
            raise InvalidParameter(message, name="steps", value=repr(steps), allowed=allowed)
        known = checked_tools(tools)
        names = [tool.name for tool in known]
        last = until if isinstance(until, str) else None
        if last is None:
            last = next((tool.name for tool in known if tool.function is until), None)
        is_known = last in names if last is not None else until is None or callable(until)
        if not is_known:
            allowed = f"one of the tools ({', '.join(names)}), or a function of the answer"
            message = f"until={until!r} is not allowed; give {allowed}"
            raise InvalidParameter(message, name="until", value=repr(until), allowed=allowed)
        is_last = until if last is None and callable(until) else None
        return cls(ToolSet(known, last is not None), last, is_last, steps, is_concurrent)


class ActingBranch(Protocol):
    """The branch on which it happens."""

    @property
    def feed(self) -> Feed | None: ...

    @property
    def is_rehearsal(self) -> bool: ...

    @property
    def path(self) -> tuple[int, ...]: ...

    def generate(self, tools: ToolSet) -> Gen[ToolReply]: ...

    def take(self, results: ToolResults) -> None: ...

    def with_kept_results(self, reply: ToolReply) -> ToolReply: ...

    def hold(self, held: Held | None) -> None: ...


class Acting:
    """Begun, and perhaps still going on: `await` it, or read `.value`, which blocks, for what came
    of it.
    """

    def __init__(self, branch: ActingBranch, plan: ActPlan, name: str | None) -> None:
        self._branch = branch
        self._plan = plan
        self._name = name
        self._results: list[ToolResult] = []
        self._num_steps = 0
        self._done: Acted | None = None
        self._failed: Exception | None = None
        self._doing = threading.RLock()
        self._turn: asyncio.Lock | None = None
        self._asked = self._ask()

    @property
    def value(self) -> Acted:
        """Blocks. Raises what failed, and `StepLimitExceeded` where it did not come to an end."""
        self.wait()
        return self._read()

    def __await__(self) -> Generator[Any, None, Acted]:
        yield from self.wait_async().__await__()
        return self._read()

    def done(self) -> bool:
        return self._done is not None or self._failed is not None

    def wait(self) -> None:
        """Blocks until it is over, well or not. The tools run in this thread."""
        with self._doing:
            try:
                while not self.done():
                    reply = self._asked.value
                    results = ToolResults(())
                    if not self._branch.is_rehearsal:
                        tried = self._branch.with_kept_results(reply)
                        results = tried.run(concurrent=self._plan.is_concurrent)
                    self._take(reply, results)
            except Exception as error:
                self._failed = error
                raise

    async def wait_async(self) -> None:
        """The same for an event loop."""
        if self._turn is None:
            self._turn = asyncio.Lock()
        async with self._turn:
            try:
                while not self.done():
                    reply = await self._asked
                    results = ToolResults(())
                    if not self._branch.is_rehearsal:
                        tried = self._branch.with_kept_results(reply)
                        results = await tried.arun(concurrent=self._plan.is_concurrent)
                    self._take(reply, results)
            except Exception as error:
                self._failed = error
                raise

    # --- a task of the run: it ends before the run does

    def finish(self) -> Sequence[Exception]:
        """What fails now is raised; what had failed before was raised where it was waited for."""
        self.wait()
        return ()

    async def finish_async(self) -> Sequence[Exception]:
        await self.wait_async()
        return ()

    async def abandon(self) -> None:
        """Nothing runs while nobody waits."""

    def stop(self) -> None:
        """Nothing waits for a thread."""

    # --- steps

    def _ask(self) -> Gen[ToolReply]:
        self._branch.hold(None)
        self._num_steps += 1
        asked = self._branch.generate(self._plan.tools)
        self._branch.hold(self)
        return asked

    def _take(self, reply: ToolReply, results: ToolResults) -> None:
        self._branch.hold(None)
        self._branch.take(results)
        self._results += results.results
        self._tell(results)
        last = self._last_of(results)
        if last is not None or self._ends_with(reply):
            value = reply.text if last is None else last.value
            self._done = Acted(reply.text, value, tuple(self._results))
        elif self._num_steps == self._plan.steps:
            raise StepLimitExceeded(
                f"the model still calls tools after {self._plan.steps} steps; give more steps, or "
                "an end that it reaches",
                steps=self._plan.steps,
            )
        else:
            self._asked = self._ask()

    def _last_of(self, results: ToolResults) -> ToolResult | None:
        """The result of the tool that ends it."""
        wanted = [one for one in results.results if one.call.name == self._plan.last_tool]
        return next((one for one in wanted if one.error is None), None)

    def _ends_with(self, reply: ToolReply) -> bool:
        plan = self._plan
        return not reply.calls or (plan.is_last is not None and bool(plan.is_last(reply)))

    def _tell(self, results: ToolResults) -> None:
        feed = self._branch.feed
        if feed is None:
            return
        for result in results.results:
            call = result.call
            feed.add(Called(self._name, call.name, call.arguments, result.text, self._branch.path))

    def _read(self) -> Acted:
        if self._failed is not None:
            raise self._failed
        assert self._done is not None, "it is over"
        return self._done

    def __repr__(self) -> str:
        names = ", ".join(tool.name for tool in self._plan.tools.tools)
        return f"<act with {names}>"
