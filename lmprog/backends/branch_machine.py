"""Runs the ops of branches outside of a runtime: for services, for the scripted double, for a
cache.

It does what the runtime's interpreter does, and fails with the same errors: ops of one branch run
in order and those of others do not wait for them, references wait for their values, every call
gets exactly one final reply, and a call that failed fails its branch unless it was refused. Who
answers a call is what differs: an `Answerer`. Knows no tokens, no clock and no threads: its owner
sees to it that one thread at a time is in here.
"""

from __future__ import annotations

import heapq
import queue
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeAlias, TypeVar

from lmprog import wire
from lmprog.backends.branch_text import BranchPiece, gained
from lmprog.errors import (
    Cancelled,
    LmprogError,
    ProtocolError,
    RequestRejected,
    RuntimeGone,
    UnknownName,
)


class HeldText(Protocol):
    """What a branch holds: its pieces, and whatever an answerer keeps beside them. A value."""

    @property
    def pieces(self) -> tuple[BranchPiece, ...]: ...


Text = TypeVar("Text", bound=HeldText)
BranchOp: TypeAlias = wire.Generate | wire.Select | wire.Read
BranchReply: TypeAlias = wire.CallDone | wire.Chosen | wire.TextIs


@dataclass(eq=False, slots=True)
class LaterPieces:
    """Pieces that will be known later: a call's result, or what a branch has gained; or the error
    because of which there are none. In the queue of a branch: it says then what it has gained.
    """

    pieces: tuple[BranchPiece, ...] | None = None
    error: LmprogError | None = None
    waiting: list[int] = field(default_factory=list)
    """The branches that go on then."""

    @property
    def is_known(self) -> bool:
        return self.pieces is not None or self.error is not None


@dataclass(frozen=True, slots=True)
class QueuedAppend:
    """An append whose references have become promises."""

    pieces: tuple[BranchPiece | LaterPieces, ...]

    def missing(self) -> LaterPieces | None:
        """What it must wait for."""
        later = (piece for piece in self.pieces if isinstance(piece, LaterPieces))
        return next((one for one in later if not one.is_known), None)


@dataclass(frozen=True, slots=True)
class QueuedFork(Generic[Text]):
    children: tuple[TextBranch[Text], ...]


@dataclass(eq=False, slots=True)
class BranchCall(Generic[Text]):
    """A gen, select or read of a branch, from its arrival until the branch is closed."""

    op: BranchOp
    branch: TextBranch[Text]
    results: tuple[LaterPieces, ...]
    """What references to it stand for."""
    is_reached: bool = False
    """Whether its branch has come to it."""
    is_over: bool = False
    """Whether its final reply was sent."""
    error: LmprogError | None = None
    """The one that it was ended with, perhaps before the branch came to it."""


Step: TypeAlias = "QueuedAppend | LaterPieces | QueuedFork[Text] | BranchCall[Text]"


@dataclass(eq=False, slots=True)
class TextBranch(Generic[Text]):
    """A branch, and the ops that it has not come to."""

    number: int
    salt: str = ""
    lora: str = ""
    is_begun: bool = False
    """False until the fork that makes it was carried out."""
    text: Text = field(init=False)
    """From its beginning on; a branch that has failed may have none."""
    base: int = 0
    """How many of its pieces it was forked with."""
    queue: deque[Step[Text]] = field(default_factory=deque)
    calls: list[BranchCall[Text]] = field(default_factory=list)
    running: BranchCall[Text] | None = None
    """The generation or selection that it waits for."""
    failure: LmprogError | None = None
    """Why every later call of it fails."""
    is_closed: bool = False


class Answerer(Protocol[Text]):
    """Who answers the calls of a machine."""

    def begin(self, branch: TextBranch[Text], parent: TextBranch[Text] | None) -> Text:
        """What `branch` holds at first: opened, or as a fork of `parent`. Raises `LmprogError`
        where it cannot be had: then it has failed.
        """
        ...

    def append(self, text: Text, pieces: Sequence[BranchPiece]) -> Text:
        """`text` with `pieces`. Raises `LmprogError` where the branch fails."""
        ...

    def answer(self, call: BranchCall[Text]) -> None:
        """The branch has come to the call. `BranchMachine.finish` is called, now or later."""
        ...

    def cancel(self, call: BranchCall[Text]) -> None:
        """The call was ended while it was being answered; its answer is of no use."""
        ...

    def other(self, op: wire.Op) -> None:
        """An op that is about no branch."""
        ...


class BranchMachine(Generic[Text]):
    """The branches and calls of one client."""

    def __init__(self, answerer: Answerer[Text], reply: Callable[[wire.Reply], None]) -> None:
        self.branches: dict[int, TextBranch[Text]] = {}
        self._calls: dict[int, BranchCall[Text]] = {}
        """Of branches that are open."""
        self._answerer = answerer
        self._reply = reply
        self._ready: list[tuple[int, int]] = []
        """A heap of branches that may go on, behind the round in which they do: in each round, in
        the order of their numbers, so that what is asked first does not depend on who woke whom.
        """
        self._at = (0, 0)
        """The round and the branch that run now."""
        self._is_running = False

    def take(self, ops: Iterable[wire.Op]) -> None:
        """Carries out the ops, as far as they need not wait."""
        for op in ops:
            if isinstance(op, wire.Close | wire.Cancel):
                self._run()  # what comes before it, as far as possible
            self._take(op)
        self._run()

    def finish(
        self, call: BranchCall[Text], outcome: BranchReply | LmprogError, text: Text | None = None
    ) -> None:
        """The call was answered, after which its branch holds `text` (None: what it held)."""
        if call.is_over:
            return
        branch = call.branch
        if branch.running is call:
            branch.running = None
        if text is not None:
            branch.text = text
        if isinstance(outcome, LmprogError) and not isinstance(outcome, RequestRejected):
            self._fail_branch(branch, outcome)
        self._conclude(call, outcome)
        self._run()

    def end(self, number: int, why: LmprogError) -> None:
        """Ends the call of that number, wherever it is, unless it is over."""
        call = self._calls.get(number)
        if call is not None:
            self._end(call, why)
            self._run()

    def fail(self, call: int, error: LmprogError) -> None:
        """The final reply of a call that is on no branch."""
        self._reply(wire.Failed(call, error.code, error.message, error.details()))

    # --- ops

    def _take(self, op: wire.Op) -> None:
        if isinstance(op, wire.Open):
            opened = self._new_branch(op.branch, op.salt, op.lora)
            if opened is not None:
                self._begin(opened, None)
        elif isinstance(op, wire.Fork):
            self._fork(op)
        elif isinstance(op, wire.Append):
            self._queue(self.branches.get(op.branch), self._bound(op.pieces))
        elif isinstance(op, BranchOp):
            self._arrive(op)
        elif isinstance(op, wire.Cancel):
            self.end(op.call, Cancelled("the call was cancelled."))
        elif isinstance(op, wire.Close):
            self._close(op.branch)
        elif not isinstance(op, wire.Suspend):  # whose reader is slow gets more at a time
            self._answerer.other(op)

    def _new_branch(self, number: int, salt: str, lora: str) -> TextBranch[Text] | None:
        """None where the number is taken; then the branch that has it fails."""
        taken = self.branches.get(number)
        if taken is not None:
            self._fail_branch(taken, ProtocolError(f"branch {number} was opened twice."))
            return None
        branch = self.branches[number] = TextBranch(number, salt, lora)
        return branch

    def _fork(self, op: wire.Fork) -> None:
        parent = self.branches.get(op.branch)
        salt, inherited = ("", "") if parent is None else (parent.salt, parent.lora)
        lora = inherited if op.lora is None else op.lora
        made = [self._new_branch(number, salt, lora) for number in op.children]
        children = tuple(child for child in made if child is not None)
        if parent is not None:
            self._queue(parent, QueuedFork(children))
        else:
            for child in children:
                self._fail_branch(child, _not_open(op.branch))

    def _queue(self, branch: TextBranch[Text] | None, step: Step[Text]) -> None:
        """Ops on a branch that is not open are dropped: every call on it is refused."""
        if branch is not None:
            branch.queue.append(step)
            self._wake(branch.number)

    def _bound(self, pieces: Iterable[wire.Piece]) -> QueuedAppend:
        """References become promises on arrival, so that later closings take nothing away."""
        bound: list[BranchPiece | LaterPieces] = []
        for piece in pieces:
            if isinstance(piece, wire.Ref):
                bound.append(self._result(piece))
            elif isinstance(piece, wire.Gained):
                other = self.branches.get(piece.branch)
                later = LaterPieces(error=_not_open(piece.branch) if other is None else None)
                self._queue(other, later)
                bound.append(later)
            else:
                bound.append(piece)
        return QueuedAppend(tuple(bound))

    def _result(self, ref: wire.Ref) -> LaterPieces:
        call = self._calls.get(ref.call)
        if call is not None and ref.index < len(call.results):
            return call.results[ref.index]
        about = f"text refers to call {ref.call}, which is not known."
        return LaterPieces(error=UnknownName(about, name=str(ref.call)))

    def _arrive(self, op: BranchOp) -> None:
        branch = self.branches.get(op.branch)
        if branch is None:
            self.fail(op.call, _not_open(op.branch))
        elif op.call in self._calls:
            self.fail(op.call, ProtocolError(f"call {op.call} was made twice."))
        else:
            num_results = 1
            if isinstance(op, wire.Generate) and op.keep == "first":
                num_results = op.sampling.n
            results = tuple(LaterPieces() for _ in range(num_results))
            call = BranchCall(op, branch, results)
            self._calls[op.call] = call
            branch.calls.append(call)
            self._queue(branch, call)

    def _close(self, number: int) -> None:
        branch = self.branches.pop(number, None)
        if branch is None:
            return
        branch.is_closed = True
        closed = Cancelled(f"branch {number} was closed.")
        for call in branch.calls:
            del self._calls[call.op.call]
            self._end(call, closed)
        for step in branch.queue:
            if isinstance(step, LaterPieces):
                self._resolve(step, closed)
            elif isinstance(step, QueuedFork):
                for child in step.children:
                    if not child.is_begun:
                        self._fail_branch(child, closed)
        branch.queue.clear()

    # --- branches

    def _wake(self, number: int) -> None:
        """The branch may go on: in this round, if it is not over for it."""
        its_round, now = self._at
        heapq.heappush(self._ready, (its_round + (number <= now), number))

    def _run(self) -> None:
        """Runs every branch as far as possible. Does nothing while it is done already."""
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._ready:
                self._at = heapq.heappop(self._ready)
                branch = self.branches.get(self._at[1])
                if branch is not None:
                    self._advance(branch)
        finally:
            self._is_running, self._at = False, (0, 0)

    def _advance(self, branch: TextBranch[Text]) -> None:
        """Carries out its ops until one must wait; a branch that has failed waits for nothing."""
        while branch.is_begun and branch.running is None and branch.queue:
            step = branch.queue[0]
            if isinstance(step, QueuedAppend) and branch.failure is None:
                missing = step.missing()
                if missing is not None:
                    missing.waiting.append(branch.number)
                    return
            branch.queue.popleft()
            if isinstance(step, QueuedAppend):
                self._append(branch, step)
            elif isinstance(step, LaterPieces):
                failure = branch.failure
                self._resolve(step, failure or gained(branch.text.pieces, branch.base))
            elif isinstance(step, QueuedFork):
                for child in step.children:
                    if not child.is_begun and not child.is_closed:
                        self._begin(child, branch)
            else:
                self._come_to(step)

    def _append(self, branch: TextBranch[Text], step: QueuedAppend) -> None:
        if branch.failure is not None:
            return
        pieces: list[BranchPiece] = []
        try:
            for piece in step.pieces:
                if not isinstance(piece, LaterPieces):
                    pieces.append(piece)
                elif piece.error is not None:
                    raise piece.error
                else:
                    pieces += piece.pieces or ()
            branch.text = self._answerer.append(branch.text, pieces)
        except LmprogError as error:
            self._fail_branch(branch, error)

    def _begin(self, branch: TextBranch[Text], parent: TextBranch[Text] | None) -> None:
        branch.is_begun = True
        if parent is not None and parent.failure is not None:
            self._fail_branch(branch, parent.failure)
            return
        try:
            branch.text = self._answerer.begin(branch, parent)
        except LmprogError as error:
            self._fail_branch(branch, error)
            return
        branch.base = 0 if parent is None else len(branch.text.pieces)
        self._wake(branch.number)

    def _fail_branch(self, branch: TextBranch[Text], error: LmprogError) -> None:
        """Later calls of the branch fail with `error`; the first failure counts."""
        branch.is_begun = True
        branch.failure = branch.failure or error.with_traceback(None)
        self._wake(branch.number)

    # --- calls

    def _come_to(self, call: BranchCall[Text]) -> None:
        branch = call.branch
        call.is_reached = True
        if call.error is not None:  # it was ended while it waited here
            if not isinstance(call.error, RequestRejected):
                self._fail_branch(branch, call.error)
        elif branch.failure is not None:
            self._conclude(call, branch.failure)
        else:
            if not isinstance(call.op, wire.Read):  # the branch goes on, whenever it is told
                branch.running = call
            self._answerer.answer(call)

    def _end(self, call: BranchCall[Text], why: LmprogError) -> None:
        is_read = isinstance(call.op, wire.Read) and call.is_reached  # it is as good as answered
        if call.is_over or is_read:
            return
        call.error = why
        self._conclude(call, why)
        if call.branch.running is call:
            call.branch.running = None
            if not isinstance(why, RequestRejected):
                self._fail_branch(call.branch, why)
            self._answerer.cancel(call)

    def _conclude(self, call: BranchCall[Text], outcome: BranchReply | LmprogError) -> None:
        """Sends the final reply of the call; those who refer to it go on."""
        call.is_over = True
        texts: tuple[str, ...] = ()
        if isinstance(outcome, LmprogError):
            self.fail(call.op.call, outcome)
        else:
            self._reply(outcome)
            texts = wire.result_texts(call.op, outcome)
        for index, later in enumerate(call.results):
            if isinstance(outcome, LmprogError):
                self._resolve(later, outcome)
            elif index < len(texts):
                self._resolve(later, (wire.letters(texts[index]),))
            else:
                about = f"call {call.op.call} has {len(texts)} results."
                self._resolve(later, UnknownName(about, name=str(index)))
        self._wake(call.branch.number)

    def _resolve(self, later: LaterPieces, outcome: tuple[BranchPiece, ...] | LmprogError) -> None:
        if isinstance(outcome, LmprogError):
            later.error = outcome
        else:
            later.pieces = outcome
        for number in later.waiting:
            self._wake(number)
        later.waiting.clear()


def _not_open(number: int) -> UnknownName:
    return UnknownName(f"branch {number} is not open.", name=str(number))


class ReplyQueue:
    """Replies on their way to a client that takes them, in a thread of its own."""

    def __init__(self) -> None:
        self._replies: queue.SimpleQueue[wire.Reply | None] = queue.SimpleQueue()
        self._why = ""

    def put(self, reply: wire.Reply) -> None:
        self._replies.put(reply)

    def end(self, why: str) -> None:
        """No more replies will come: behind those that are there, `RuntimeGone` is raised."""
        self._why = self._why or why
        self._replies.put(None)

    def take(self, timeout: float) -> list[wire.Reply]:
        """The next one; none where none came within `timeout` seconds."""
        try:
            reply = self._replies.get(timeout=timeout)
        except queue.Empty:
            return []
        if reply is None:
            self._replies.put(None)
            raise RuntimeGone(self._why)
        return [reply]
