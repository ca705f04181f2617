"""A call of a branch, from its request to its last reply: its run, the program's line that asked
for it, its state, its failure, waiting for it.

Knows no types and no values; `gen` reads the reply as a value. Does not know how a call is sent
either; `scope` does that.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, cast

from lmprog import wire
from lmprog.backends.client import Client, ClientCall, LastReply, running_loop
from lmprog.errors import (
    Cancelled,
    DeadlineExceeded,
    LmprogError,
    ProgramError,
    RequestRejected,
    TokenBudgetExceeded,
    from_wire,
)
from lmprog.lang.branches.budget import Budget
from lmprog.lang.ops.expressions import GenOp, SelectOp
from lmprog.lang.streaming.feed import Feed

if TYPE_CHECKING:
    from lmprog.lang.checkpoints.checkpoint_file import RunOrigin
    from lmprog.lang.checkpoints.run_progress import RunProgress
    from lmprog.lang.streaming.listening import Listening
    from lmprog.lang.streaming.trace_events import EndCallback

_PACKAGE = Path(__file__).parents[2]
_OWN = tuple(f"{_PACKAGE / room}{os.sep}" for room in ("lang", "backends"))


@dataclass(frozen=True, slots=True)
class Site:
    """A line of the user's program."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


def here() -> Site:
    """The innermost line of the stack that is not lmprog's own frontend."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return Site(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def raise_at(site: Site, error: BaseException) -> NoReturn:
    """Raises `error` with `site` in its traceback, for errors that nobody has read where they
    belong.

    A traceback takes its lines from code objects, so `_raise` runs under the wanted file, line and
    name.
    """
    first_line = site.line - 1  # `raise` stands one line below `def`
    code = _raise.__code__.replace(
        co_filename=site.file, co_firstlineno=first_line, co_name=site.function
    )
    FunctionType(code, {})(error)
    raise AssertionError("unreachable")


def _raise(error: BaseException) -> NoReturn:
    raise error


@dataclass(slots=True)
class ContestRecord:
    """A vote or a race of calls, for a recording of the run."""

    rule: wire.ContestRule
    calls: tuple[int, ...]
    won: int | None = None
    """The call whose result was taken; None as long as that is open, or where all failed."""


class RunRecord:
    """What a run and those inside it have asked, and their progress, which is there once something
    needs it: a checkpoint, a value or a winner that is kept, a failure that the program was told.
    """

    def __init__(self, make: Callable[[RunRecord], RunProgress]) -> None:
        self.calls: list[PendingCall] = []
        self.origin: Callable[[], RunOrigin] | None = None
        """Which run it is, once it has begun."""
        self.progress: RunProgress | None = None
        self._make = make
        self._is_over = False
        self._lock = threading.Lock()

    def needed(self) -> RunProgress:
        """The progress, from now on."""
        with self._lock:
            if self.progress is None:
                self.progress = self._make(self)
                if self._is_over:
                    self.progress.end()
            return self.progress

    def end(self) -> None:
        """The run is over."""
        with self._lock:
            self._is_over = True
            if self.progress is not None:
                self.progress.end()


class RunContext:
    """One run, as seen from its calls: the client, the stream, and why the run was ended."""

    def __init__(self, client: Client, feed: Feed | None, record: RunRecord) -> None:
        self.client = client
        self.feed = feed
        self.record = record
        self.ended: LmprogError | None = None
        """Why the run was ended from outside; None while it was not."""
        self.contests: list[ContestRecord] = []
        self.is_over = False
        """Whether the program has ended: its results are read, and no longer referred to."""
        self.marks: dict[int, bool] = {}
        """The marks made of this run's results that were not read, and whether each has found its
        place: in a branch, in a variable or in what the program returned.
        """
        self.is_rehearsal = False
        """Whether the run, and every run inside it, is a rehearsal and must not ask a service."""
        self.family: object = self
        """Shared by nested runs on one client: they may refer to one another's results."""


@dataclass(frozen=True, slots=True)
class CallOrigin:
    """Where a call belongs: its run, its branch, its line in the program, and its limits."""

    run: RunContext
    branch: int
    path: tuple[int, ...]
    """Which fork of which fork the branch is; () for the program's own branch."""
    site: Site
    budget: Budget
    is_cut: bool = False
    """Whether the budget allows fewer tokens than the op."""


class AnswerWithCalls(NamedTuple):
    """A text, and the calls that came beside it."""

    content: str
    calls: tuple[wire.SentCall, ...]

    @property
    def shown(self) -> str:
        """Both as one text, where there are no fields for calls."""
        return wire.text_with_calls(self.content, self.calls)


class PendingCall:
    """One gen or select, perhaps still to come."""

    def __init__(
        self,
        op: GenOp[Any] | SelectOp,
        wanted: wire.Generate | wire.Select,
        origin: CallOrigin,
        previous: PendingCall | None,
        thought: PendingCall | None = None,
    ) -> None:
        """`wanted` is what is sent. `previous` is the branch's call before this one: when that
        failed, it is why this one did. `thought` is the call that reasoned first, if any.
        """
        self.name = op.name
        self.thought = thought
        self.origin = origin
        self.wanted = wanted
        self._op = op
        self._previous = previous
        self.key = ""
        """Which call of which branch of which run it is, for checkpoints."""
        self.said: Sequence[Any] = ()
        """The items that its branch's log has gained since the call before."""
        self.lora = ""
        self.was_answered = False
        """Whether its reply is from a checkpoint, so that it cost nothing now."""
        self._was_read = False
        self._num_waiting = 0
        self.call = ClientCall(wanted.call)
        self._listening: Listening | None = None
        if isinstance(wanted, wire.Generate) and wanted.stream:
            from lmprog.lang.streaming.listening import Listening

            self._listening = Listening(op, origin.run.feed, origin.path)
            self.call.on_delta = self._listening.take
        self._counts = origin.budget.limits_tokens
        if self._counts or self._listening is not None:
            self.call.on_last = self._ended
        if self._counts:
            origin.budget.started(self.cancel)

    @property
    def run(self) -> RunContext:
        """The run that it belongs to."""
        return self.origin.run

    @property
    def site(self) -> Site:
        """The program's line that made the call."""
        return self.origin.site

    @property
    def is_select(self) -> bool:
        return isinstance(self._op, SelectOp)

    @property
    def kind(self) -> str:
        return "select" if self.is_select else "gen"

    @property
    def is_thought(self) -> bool:
        """Whether this is the reasoning before a constrained answer."""
        return isinstance(self._op, GenOp) and self._op.is_thought

    @property
    def keeps_one(self) -> bool:
        """Of several results one was wanted, which is the first."""
        return isinstance(self._op, GenOp) and self._op.keep != "first"

    @property
    def deltas(self) -> list[str]:
        """The pieces of the (first) text so far; only when streaming."""
        return [] if self._listening is None else self._listening.deltas

    def _ended(self, outcome: LastReply | LmprogError) -> None:
        """The last reply has arrived; on the receiving thread, before anybody can read it."""
        if self._listening is not None:
            self._listening.end()
        if self._counts:
            usage = outcome.usage if isinstance(outcome, wire.CallReply) else None
            self.origin.budget.done(self.cancel, usage, cut_short=self._was_cut(outcome))

    def tell_end(self, ended: EndCallback) -> None:
        """Has `ended` called with the work or the error, before anybody can read the result."""
        before = self.call.on_last

        def last(outcome: LastReply | LmprogError) -> None:
            if before is not None:
                before(outcome)
            is_done = isinstance(outcome, wire.CallReply)
            usage = self._work(cast(Any, outcome)) if is_done else None
            ended(usage, outcome if isinstance(outcome, LmprogError) else None)

        self.call.on_last = last

    def _was_cut(self, outcome: object) -> bool:
        is_done = self.origin.is_cut and isinstance(outcome, wire.CallDone)
        return is_done and any(
            output.finish == "length" for output in cast(wire.CallDone, outcome).outputs
        )

    # --- states

    @property
    def was_read(self) -> bool:
        """Whether the program has read how it ended, or does not want to know."""
        return self._was_read

    @was_read.setter
    def was_read(self, was_read: bool) -> None:
        self._was_read = was_read
        if self.thought is not None:
            self.thought.was_read = was_read

    def done(self) -> bool:
        """Whether reading would not wait."""
        return self.call.done()

    def is_filled_in(self, run: RunContext) -> bool:
        """Whether the runtime of `run` can fill the text in: it has the call, and the text is what
        the model writes (no reasoning is to be removed).
        """
        return run.family is self.run.family and self._op.reasoning is None

    def is_pending_in(self, run: RunContext) -> bool:
        """The same of one that is still to come."""
        is_same = run.client is self.run.client and self._op.reasoning is None
        return is_same and not self.done()

    def failure(self) -> LmprogError | None:
        """Why there is no result: what failed first on the branch. None while it is pending or
        where there is one.
        """
        return None if self._own_failure() is None else self.root()._own_failure()

    def invalid(self) -> LmprogError | None:
        """Why what was written is not the value that was asked for; reads it."""
        return None

    def refused(self) -> bool:
        """Whether the call was rejected: then it never began, and its branch can go on."""
        return isinstance(self._own_failure(), RequestRejected)

    def root(self) -> PendingCall:
        """The first call of the branch that failed and was not merely refused; without one, this
        call.
        """
        first: PendingCall = self
        before = self._previous
        while before is not None:
            if before._own_failure() is not None and not before.refused():
                first = before
            before = before._previous
        return first

    def _own_failure(self) -> LmprogError | None:
        outcome = self.call.wait(0) if self.call.done() else None
        if self.origin.is_cut and self._was_cut(outcome):
            return self.origin.budget.out_of_tokens()
        if (
            self.thought is not None
            and isinstance(outcome, wire.CallDone)
            and self.thought.refused()
        ):
            return self.thought._own_failure()  # the runtime went on without it
        return outcome if isinstance(outcome, LmprogError) else None

    @property
    def usage(self) -> wire.Usage | None:
        """The work of the call; None as long as it is not done, or where it failed."""
        outcome = self.call.wait(0) if self.call.done() else None
        return self._work(outcome) if isinstance(outcome, wire.CallReply) else None

    def _work(self, reply: wire.CallReply) -> wire.Usage:
        return wire.Usage() if self.was_answered else reply.usage

    @property
    def thought_tokens(self) -> int | None:
        """How many tokens its reasoning had, as far as it was streamed."""
        return None if self._listening is None else self._listening.reasoning_tokens

    @thought_tokens.setter
    def thought_tokens(self, num_tokens: int | None) -> None:
        if self._listening is not None:  # reasoning is always streamed
            self._listening.reasoning_tokens = num_tokens

    def cancel(self) -> None:
        """Ends the call; reading it raises `Cancelled`, unless it was done already."""
        if self.thought is not None and not self.thought.done():
            self.thought.cancel()
        self.run.client.post(wire.Cancel(self.call.id))
        self.run.client.hurry()

    # --- waiting and reading

    def wait(self) -> None:
        """Blocks until the call is done, well or not. Refused where it would stop an event loop."""
        if not self.call.done():
            if running_loop() is not None:
                raise ProgramError(
                    f"{self!r} is not done, and waiting for it here would stop the event loop; "
                    "write `await` before it (for a variable: `await s.var(name)`)"
                )
            self.run.client.flush()
            self.call.wait()

    async def wait_async(self) -> None:
        """The same for an event loop. When the last task that waits is cancelled, so is the
        call.
        """
        self._num_waiting += 1
        try:
            await self.call.arrive()
        except asyncio.CancelledError:
            if self._num_waiting == 1:
                self.was_read = True
                self.cancel()
            raise
        finally:
            self._num_waiting -= 1

    def reply(self) -> wire.CallReply:
        """The last reply of a call that is done. Raises why there is none."""
        self.was_read = True
        outcome = self.call.wait(0)
        if self._own_failure() is not None:
            raise self._error()
        if not isinstance(outcome, wire.CallReply):
            raise ProgramError(f"the backend answered {self!r} with {type(outcome).__name__}")
        return outcome

    @property
    def text(self) -> str:
        """The (first) result as it stands in the branch; blocks."""
        return self.texts[0]

    @property
    def texts(self) -> list[str]:
        self.wait()
        return self._texts_of(self.reply())

    def outcome(self) -> Any:
        """What came of a call that is done, as a program has it: of several results a list."""
        return self.text

    def compared_text(self) -> str:
        """What the text has in common with others that say the same; blocks."""
        wanted = self.wanted
        constraint = wanted.constraint if isinstance(wanted, wire.Generate) else None
        return wire.compared(self.text, constraint)

    def own_text(self) -> str:
        """What this very call has put into its branch, also where it is asked for again; blocks."""
        PendingCall.wait(self)
        return self._texts_of(PendingCall.reply(self))[0]

    def left_text(self) -> str:
        """The same of a call that is done, without reading it: nothing where it failed."""
        outcome = self.call.wait(0)
        is_done = isinstance(outcome, wire.CallReply)
        return self._texts_of(cast(Any, outcome))[0] if is_done else ""

    def own_answer(self) -> AnswerWithCalls | None:
        """What this very call has put into its branch, where a service sent calls in fields beside
        it; blocks.
        """
        PendingCall.wait(self)
        outcome = self.call.wait(0)
        if not isinstance(outcome, wire.CallDone) or not outcome.outputs[0].calls:
            return None
        return AnswerWithCalls(self._contents_of(outcome)[0], outcome.outputs[0].calls)

    def _texts_of(self, reply: wire.CallReply) -> list[str]:
        """As they stand in the branch, with calls that came in fields."""
        contents = self._contents_of(reply)
        if isinstance(reply, wire.Chosen):
            return contents
        shown = zip(contents, reply.outputs, strict=True)
        return [wire.text_with_calls(content, output.calls) for content, output in shown]

    def _contents_of(self, reply: wire.CallReply) -> list[str]:
        """Without them."""
        if isinstance(reply, wire.Chosen):
            return [cast(SelectOp, self._op).choices[reply.index]]
        marks = self._op.reasoning
        return [
            output.text if marks is None else marks.split(output.text)[1]
            for output in reply.outputs
        ]

    def error_at_site(self) -> LmprogError:
        """The failure, with the program's line that made the call in its traceback."""
        try:
            raise_at(self.site, self._error())
        except LmprogError as error:
            return error

    def _error(self) -> LmprogError:
        """A fresh exception: one that is raised twice would collect two tracebacks."""
        self.was_read = True
        error = self.failure()
        if error is None:
            raise ProgramError(f"{self!r} has not failed")
        if isinstance(error, Cancelled):
            error = self.run.ended or self.origin.budget.ended or error
        fresh = from_wire(error.code, error.message, error.details())
        fresh.add_note(f"{self!r} was asked for at {self.site}")
        if error is not self.run.ended:
            failed = {self.root().key: None, self.key: None}
            if self.thought is not None and self.thought.refused():
                failed[self.thought.key] = None
            self.run.record.needed().raised(tuple(failed), fresh)
        return fresh

    def __repr__(self) -> str:
        named = repr(self.name) if self.name else f"at line {self.site.line}"
        return f"<{self.kind} {named}>"


class Held(Protocol):
    """What may still add to its branch, so that nothing else can."""

    def done(self) -> bool: ...

    def wait(self) -> None: ...


def settle_now(held: Held) -> None:
    """Called before its branch goes on: blocks until it is known that the model is not asked again.
    Raises where that would stop an event loop.
    """
    if not held.done() and running_loop() is not None:
        raise ProgramError(
            f"{held!r} may be asked for again; write `await` before it, so that this is known "
            "before its branch goes on"
        )
    held.wait()


def unread_failures(calls: Iterable[PendingCall]) -> list[Exception]:
    """What failed and was never read: of each branch the first failure, with the others of that
    branch as notes. A branch's later calls fail for the reason of the first, which is told once.
    Then what was written, and is not of the type that was asked for.
    """
    calls = list(calls)
    roots = [call.root() for call in calls if not call.was_read and call.failure() is not None]
    by_branch: dict[int, list[PendingCall]] = {}
    for root in {id(root): root for root in roots if not root.was_read}.values():
        by_branch.setdefault(root.origin.branch, []).append(root)
    found: list[Exception] = []
    for first, *others in by_branch.values():
        error = first.error_at_site()
        for other in others:
            error.add_note(f"{other!r} failed, too: {other.error_at_site()} ({other.site})")
        found.append(error)
    done_well = [call for call in calls if not call.was_read and call.failure() is None]
    return found + [wrong for call in done_well if (wrong := call.invalid()) is not None]


def raise_together(errors: Sequence[Exception]) -> None:
    """Raises what there is: nothing, one error as it is, or several as a group. Cancelled siblings
    are no causes.
    """
    if not errors:
        return
    causes = [error for error in errors if not isinstance(error, Cancelled)] or list(errors[:1])
    # a budget that is over ends many calls, and is one cause
    once = {
        error.message
        if isinstance(error, DeadlineExceeded | TokenBudgetExceeded)
        else id(error): error
        for error in reversed(causes)
    }
    causes = list(reversed(once.values()))
    if len(causes) == 1:
        raise causes[0]
    if causes:
        raise ExceptionGroup(f"{len(causes)} branches failed", causes)
