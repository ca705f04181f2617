"""Results of calls: `Gen[T]`, awaitable and blocking, typed, usable in later text before it is
known.

A `Gen` is made when a branch asks for a generation or a selection. Reading it (`await gen`,
`gen.value`) gives the value or raises why there is none, every time it is read. Put into later text
while it is pending it becomes a reference that the runtime fills in. This module does not know how
a call is made; `lmprog.lang.branches.cursor` does that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from lmprog import wire
from lmprog.errors import (
    Cancelled,
    LmprogError,
    ProgramError,
    RequestRejected,
    ValidationFailed,
    from_wire,
)
from lmprog.lang.branches.references import Mark
from lmprog.lang.branches.site import Site, raise_at
from lmprog.lang.client import ClientCall, LastReply, running_loop
from lmprog.lang.ops.expressions import GenOp, SelectOp
from lmprog.lang.ops.meta import Meta, Selected
from lmprog.lang.ops.typed import value_of
from lmprog.lang.programs import scope as scopes
from lmprog.lang.programs.budget import Budget
from lmprog.lang.programs.scope import Scope
from lmprog.lang.streaming.listening import Listening, marks_of_op

T = TypeVar("T")


class Gen(Generic[T]):
    """The result of one `gen` or `select`, perhaps still to come."""

    def __init__(
        self,
        scope: Scope,
        op: GenOp[T] | SelectOp,
        site: Site,
        before: Gen[Any] | None,
        budget: Budget,
    ) -> None:
        """`before` is the branch's call before this one: when that failed, it is why this one
        did.
        """
        self.name = op.name
        self.site = site
        self.thought: Gen[str] | None = None
        self._was_read = False
        self._listening = Listening(op, scope.feed)
        self._scope = scope
        self._op = op
        self._before = before
        self._call: ClientCall | None = None
        self._values: list[T] | None = None
        self._waiting = 0
        self._budget = budget
        self._is_cut = False  # the budget allowed less than the op's own max_tokens

    # --- for the branch that makes it
    # ---------------------------------------------------------------------------

    def bind(self, call: ClientCall) -> None:
        """The call whose last reply this is."""
        self._call = call
        if marks_of_op(self._op) is not None:
            call.on_last = lambda outcome: self._listening.end()

    def limit(self, *, is_cut: bool) -> None:
        """From now on the budget knows of this call. With `is_cut` it may generate less than the op
        says.
        """
        self._is_cut = is_cut
        cancel, budget, before = self.cancel, self._budget, self.call.on_last
        budget.started(cancel)

        def ended(outcome: LastReply | LmprogError) -> None:
            usage = outcome.usage if isinstance(outcome, wire.CallDone | wire.Chosen) else None
            if before is not None:
                before(outcome)
            budget.done(cancel, usage, cut_short=self._was_cut(outcome))

        self.call.on_last = ended

    def _was_cut(self, outcome: object) -> bool:
        is_done = self._is_cut and isinstance(outcome, wire.CallDone)
        return is_done and any(
            output.finish == "length" for output in cast(wire.CallDone, outcome).outputs
        )

    def follow(self, thought: Gen[str]) -> None:
        """It was thought about first, by a call of its own; where that failed, this did."""
        self.thought = thought

    def hear(self, delta: wire.Delta) -> None:
        """More text of the running generation; on the receiving thread."""
        self._listening.hear(delta)

    @property
    def deltas(self) -> list[str]:
        """What has come of the (first) text, in order; only when streaming."""
        return self._listening.deltas

    def show(self) -> None:
        """Tells a streaming run that this is done; on the receiving thread."""
        feed = self._scope.feed
        if feed is None or (isinstance(self._op, GenOp) and self._op.is_thought):
            return
        if self.failure() is None:
            try:
                feed.value(self.call.id, self.name, self._read()[0])
            except ValidationFailed:
                feed.changed()  # raised where the program reads it
            self.was_read = False
        else:
            feed.changed()

    @property
    def is_select(self) -> bool:
        return isinstance(self._op, SelectOp)

    def can_be_marked(self, scope: Scope) -> bool:
        """Whether the runtime of `scope` can fill it in: it is pending there, and is what the model
        will write.
        """
        return (
            self._scope.client is scope.client
            and not self.call.done()
            and marks_of_op(self._op) is None
        )

    @property
    def keeps_one(self) -> bool:
        """Of several results one was wanted, which is the first."""
        return isinstance(self._op, GenOp) and self._op.keep != "first"

    @property
    def was_read(self) -> bool:
        """Whether somebody has been told how it ended, or does not want to know."""
        return self._was_read

    @was_read.setter
    def was_read(self, told: bool) -> None:
        self._was_read = told
        if self.thought is not None:
            self.thought.was_read = told

    @property
    def scope(self) -> Scope:
        """The run that it belongs to."""
        return self._scope

    def mark(self, index: int = 0) -> Mark:
        """A pointer to this result for text that is appended later."""
        self._scope.marked[self.call.id] = self
        return Mark(self.call.id, index)

    # --- states
    # -------------------------------------------------------------------------------------------------

    @property
    def call(self) -> ClientCall:
        if self._call is None:
            raise ProgramError("this generation was never sent")
        return self._call

    def done(self) -> bool:
        """Whether reading would not wait."""
        return self.call.done()

    def failure(self) -> LmprogError | None:
        """Why there is no result: what broke the branch first. None while it is pending or where
        there is one.
        """
        return None if self._own_failure() is None else self.root()._own_failure()

    def refused(self) -> bool:
        """Whether the call was rejected: then nothing of it was begun, and its branch can go on."""
        return isinstance(self._own_failure(), RequestRejected)

    def root(self) -> Gen[Any]:
        """The first call of the branch that failed (and was not merely refused): no later one can
        do better.
        """
        first, before = self, self._before
        while before is not None:
            if before._own_failure() is not None and not before.refused():
                first = before
            before = before._before
        return first

    def _own_failure(self) -> LmprogError | None:
        outcome = self.call.wait(0) if self.call.done() else None
        if self._was_cut(outcome):
            return self._budget.out_of_tokens()
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
        return outcome.usage if isinstance(outcome, wire.CallDone | wire.Chosen) else None

    def cancel(self) -> None:
        """Ends the call; reading it raises `Cancelled`, unless it was done already."""
        if self.thought is not None and not self.thought.done():
            self.thought.cancel()
        self._scope.client.post(wire.Cancel(self.call.id))
        self._scope.client.hurry()

    # --- reading
    # ------------------------------------------------------------------------------------------------

    @property
    def value(self) -> T:
        """The (first) result; blocks. Raises why there is none."""
        self.wait()
        return self._read()[0]

    @property
    def values(self) -> list[T]:
        """All `n` results; blocks. The branch goes on from the first."""
        self.wait()
        return list(self._read())

    @property
    def text(self) -> str:
        """The (first) result as it stands in the branch; blocks."""
        return self.texts[0]

    @property
    def texts(self) -> list[str]:
        self.wait()
        reply = self._reply()
        if isinstance(reply, wire.Chosen):
            return [cast(SelectOp, self._op).choices[reply.index]]
        marks = marks_of_op(self._op)
        return [
            output.text if marks is None else marks.split(output.text)[1]
            for output in reply.outputs
        ]

    @property
    def reasoning(self) -> str | None:
        """What the model thought before its (first) answer; blocks. None unless that was to be told
        apart.
        """
        self.wait()
        reply, marks = self._reply(), marks_of_op(self._op)
        if self.thought is not None:
            return self.thought.reasoning
        return (
            None
            if marks is None or isinstance(reply, wire.Chosen)
            else marks.split(reply.outputs[0].text)[0]
        )

    @property
    def meta(self) -> Meta:
        """Tokens, finish reason, work, log-probabilities of the (first) result; blocks."""
        return self.metas[0]

    @property
    def metas(self) -> list[Meta]:
        """The same for all `n` results. The work is that of the whole call in each of them."""
        self.wait()
        reply = self._reply()
        if isinstance(reply, wire.Chosen):
            return [Meta((), "select", None, reply.usage)]
        thought = (self if self.thought is None else self.thought)._listening.reasoning_tokens
        return [
            Meta(
                *(
                    output.tokens,
                    output.finish,
                    output.stopped_by,
                    reply.usage,
                    output.logprobs,
                    reply.prompt_logprobs,
                ),
                reasoning_tokens=thought if index == 0 else None,
            )
            for index, output in enumerate(reply.outputs)
        ]

    def wait(self) -> None:
        """Blocks until the call is done, well or not. Refused where it would stop an event loop."""
        if not self.call.done():
            if running_loop() is not None:
                raise ProgramError(
                    f"{self!r} is not done, and waiting for it here would stop the event loop; "
                    "write `await` before it (for a variable: `await s.var(name)`)"
                )
            self._scope.client.flush()
            self.call.wait()

    async def wait_async(self) -> None:
        """The same for an event loop. When the last task that waits is cancelled, so is the
        call.
        """
        self._waiting += 1
        try:
            await self.call.arrive()
        except asyncio.CancelledError:
            if self._waiting == 1:
                self.was_read = True
                self.cancel()
            raise
        finally:
            self._waiting -= 1

    def __await__(self) -> Generator[Any, None, T]:
        yield from self.wait_async().__await__()
        return self._read()[0]

    def error_at_site(self) -> LmprogError:
        """The failure, with the program's line that asked for the call in its traceback."""
        try:
            raise_at(self.site, self._error())
        except LmprogError as error:
            return error

    def _reply(self) -> wire.CallDone | wire.Chosen:
        self.was_read = True
        outcome = self.call.wait(0)
        if self._own_failure() is not None:
            raise self._error()
        if not isinstance(outcome, wire.CallDone | wire.Chosen):
            raise ProgramError(f"the backend answered {self!r} with {type(outcome).__name__}")
        return outcome

    def _error(self) -> LmprogError:
        """A fresh exception: one that is raised twice would collect two tracebacks."""
        self.was_read = True
        error = self.failure()
        if error is None:
            raise ProgramError(f"{self!r} has not failed")
        if isinstance(error, Cancelled):
            error = self._scope.ended or self._budget.ended or error
        fresh = from_wire(error.code, error.message, error.details())
        fresh.add_note(f"{self!r} was asked for at {self.site}")
        return fresh

    def _read(self) -> list[T]:
        if self._values is None:
            reply = self._reply()
            if isinstance(reply, wire.Chosen):
                found: list[Any] = [Selected.of(reply, cast(SelectOp, self._op).choices)]
            else:
                tp = cast("GenOp[T]", self._op).tp
                found = [value_of(tp, text) for text in self.texts]
            self._values = found
        self.was_read = True
        return self._values

    # --- inside text
    # --------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        """The text. Inside a program, and as long as it is pending, a mark that stays lazy when it
        is appended.
        """
        if scopes.current.get() is not None and self.can_be_marked(self._scope):
            return str(self.mark())
        return self.text

    def __format__(self, spec: str) -> str:
        return format(self.value, spec) if spec else str(self)

    def __repr__(self) -> str:
        kind = "select" if self.is_select else "gen"
        return f"<{kind} {self.name!r}>" if self.name else f"<{kind} at line {self.site.line}>"

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(
            f"{self!r} is a pending result, not a sequence; read its .value, or await it"
        )

    def __bool__(self) -> bool:
        raise TypeError(
            f"{self!r} is a pending result and neither true nor false; read its .value, or await it"
        )

    if (
        not TYPE_CHECKING
    ):  # type checkers refuse such a comparison by themselves, unless they see this

        def __eq__(self, other: object) -> bool:
            if isinstance(other, Gen):
                return self is other
            raise TypeError(
                f"{self!r} is a pending result and equal to no value; read its .value, or await it"
            )

        __hash__ = object.__hash__
