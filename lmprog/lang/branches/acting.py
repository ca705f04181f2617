"""`s.act(tools)`: the model calls tools, Python runs them, until the model has answered.

Each step is one generation with tools; the results of its calls are appended behind it. The branch
cannot go on before that is over.

A service with fields for calls takes tools beside its messages. Everywhere else they are text: the
descriptions stand at the beginning of the branch, or before what it has not sent yet, and calls
have the form of the checkpoint's own template.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from lmprog import wire
from lmprog.errors import StepLimitExceeded, not_allowed
from lmprog.lang.branches.gen import Gen
from lmprog.lang.branches.pending_call import Held, RunContext
from lmprog.lang.ops.expressions import GenOp, RoleBeginExpr, RoleEndExpr
from lmprog.lang.ops.tool_calls import OfferedTools, ToolReply, ToolResult, ToolResults
from lmprog.lang.ops.tool_functions import Tool, ToolFunction, ToolSet, checked_tools
from lmprog.lang.streaming.feed import Called, Feed
from lmprog.tool_calls.constraining import calls_constraint, free_or_calls
from lmprog.tool_calls.describing import result_text, tools_text
from lmprog.tool_calls.thoughts import after_thought
from lmprog.tool_calls.writing import as_json

Until: TypeAlias = "str | ToolFunction | Callable[[ToolReply], bool] | None"
"""What ends an act: a tool, given as it is or by its name, that ran without an error; or a function
of the answer that gives True. An answer without calls ends it in any case.
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
            raise not_allowed("steps", steps, f"1 <= x <= {MAX_STEPS}")
        known = checked_tools(tools)
        names = [tool.name for tool in known]
        last = until if isinstance(until, str) else None
        if last is None:
            last = next((tool.name for tool in known if tool.function is until), None)
        is_known = last in names if last is not None else until is None or callable(until)
        if not is_known:
            raise not_allowed(
                "until",
                until,
                f"one of the tools ({', '.join(names)}), or a function of the answer",
            )
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

    def __getattr__(self, name: str) -> Any:
        if name in Acted.__slots__:
            raise AttributeError(f"what came of it is there once it is over: act(...).value.{name}")
        raise AttributeError(f"what `act` gives has no attribute {name!r}")

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
        """Raises what fails from now on; an earlier failure was raised where it was waited for."""
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


class CallingBranch(Protocol):
    """A branch on which tools may be called."""

    shown_tools: frozenset[str]

    @property
    def scope(self) -> RunContext: ...

    def has_roles(self) -> bool: ...

    def begins_turn(self) -> bool: ...

    def write_early(self, text: str) -> None: ...


def is_native(branch: CallingBranch) -> bool:
    """Services take tools with messages only."""
    return branch.scope.client.welcome.tools.is_native and branch.has_roles()


def offered(branch: CallingBranch, op: GenOp[Any]) -> GenOp[Any]:
    """The op as it is asked for on this branch's backend; shows the tools where they are text."""
    tools, welcome = op.tools, branch.scope.client.welcome
    if tools is None:
        return op
    form = welcome.tools.form
    is_free = op.reasoning is None and branch.begins_turn()
    thinks = welcome.tools.thought
    state = thinks.state({}) if is_free else "closed"
    if is_native(branch):
        op = replace(op, tp=OfferedTools(tools, welcome.tools, is_native=True, state=state))
        choice: wire.ToolChoice = "required" if tools.is_required else "auto"
        offer = wire.ToolOffer(as_json(tools.described), choice, tools.is_parallel)
        return replace(op, offer=offer)
    show(branch, tools.tools)
    constraint: wire.Constraint | None = None
    if tools.is_required:
        constraint = calls_constraint(form, tools.shapes, tools.is_parallel)
        constraint = after_thought(thinks, state, constraint, may_be_cut=False)
    elif welcome.vocab_size:  # without tokens nothing is constrained
        constraint = free_or_calls(form, tools.shapes, tools.is_parallel)
        constraint = after_thought(thinks, state, constraint, may_be_cut=True)
    is_held = constraint is not None and bool(welcome.vocab_size)
    asked = OfferedTools(tools, welcome.tools, state=state, is_held=is_held)
    return replace(op, tp=asked, constraint=constraint)


def show(branch: CallingBranch, tools: tuple[Tool, ...]) -> None:
    """Describes those of the tools that this branch has not been told of."""
    if is_native(branch):
        return
    new = {as_json(tool.described): tool.described for tool in tools}
    shown = [about for key, about in new.items() if key not in branch.shown_tools]
    if shown:
        branch.shown_tools |= frozenset(new)
        branch.write_early(tools_text(shown, branch.scope.client.welcome.tools.form))


def result_parts(branch: CallingBranch, results: ToolResults) -> list[object]:
    """What the branch is told: turns of the role `tool` where there are any, else one of the
    user's, else text.
    """
    texts = [result.text for result in results.results]
    if not texts:
        return []
    opens = is_native(branch) or branch.scope.client.welcome.tools.opens_results
    if branch.has_roles() and opens:
        turns = [(RoleBeginExpr("tool"), text, RoleEndExpr("tool")) for text in texts]
        return [part for turn in turns for part in turn]
    told = "\n".join(map(result_text, texts))
    if branch.has_roles():
        return [RoleBeginExpr("user"), told, RoleEndExpr("user")]
    return [f"\n{told}\n"]
