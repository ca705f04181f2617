"""The calls of a run that has a progress: asked, or answered as a checkpoint has it, and kept.

What a checkpoint keeps of a call is a digest of what it asks and of what its branch said since its
call before, and the reply. As long as all that the program asks is known, nothing is sent. With the
first call that is not, the branches that are still open are built: text as it is, results as what
they left (`wire.own_pieces`), so that all of it is one prefill and nothing is computed twice;
services and caches are told how their calls were answered instead. A branch on which a call had
failed is not built: what is asked of it fails for the same reason. A run without a progress does
not meet this module.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from lmprog import wire
from lmprog.backends import Backend, Remembers
from lmprog.backends.caching.kept_replies import Question, deltas
from lmprog.backends.client import ClientCall, LastReply
from lmprog.errors import Cancelled, CheckpointMismatch, LmprogError, RequestRejected
from lmprog.lang.branches.log import Item, flat
from lmprog.lang.branches.pending_call import PendingCall, RunContext, RunRecord
from lmprog.lang.checkpoints.checkpoint_file import CheckpointFile, KeptCall, KeptFailure, RunOrigin
from lmprog.lang.checkpoints.run_progress import Answer, RunProgress
from lmprog.lang.ops.expressions import RoleBeginExpr, RoleEndExpr
from lmprog.lang.ops.sampling import with_max_tokens


class BegunCall:
    """One call, as a checkpoint keeps it."""

    def __init__(self, call: PendingCall) -> None:
        self.call = call
        self.key = call.key

    def asks(self) -> str:
        """The digest. Results in the text before it are there when it is answered; "" where they
        are not, since it was no such call that was answered.
        """
        call = self.call
        items = flat(list(call.said))
        if any(isinstance(item, PendingCall) and not item.call.done() for item in items):
            return ""
        question = Question((), "", tuple(map(_piece, items)), None, call.lora)
        return question.key(_without_limits(call), with_seed=True)

    def kept(self, outcome: object = None) -> KeptCall | None:
        """What is kept, once it is answered well; `outcome` where it is just being answered."""
        if outcome is None and self.call.call.done():
            outcome = self.call.call.wait(0)
        if not isinstance(outcome, wire.CallReply):
            return None
        return KeptCall(self.key, self.asks(), self._label, outcome, self.call.thought_tokens)

    def kept_failure(self, error: LmprogError) -> KeptFailure:
        """The same of a call that failed, whose error the program is told."""
        why = error.code, error.message, error.details()
        return KeptFailure(self.key, self.asks(), self._label, *why)

    @property
    def _label(self) -> str:
        return self.call.name or self.call.kind


def _piece(item: Item) -> wire.Piece:
    if isinstance(item, RoleBeginExpr):
        return wire.RoleBegin(item.role)
    if isinstance(item, RoleEndExpr):
        return wire.RoleEnd(item.role)
    return wire.TextPiece(item.left_text() if isinstance(item, PendingCall) else str(item))


def _without_limits(call: PendingCall) -> wire.Generate | wire.Select:
    """Without the limits that a budget sets: these depend on what else runs at the time."""
    wanted = call.wanted
    if isinstance(wanted, wire.Select) or not call.origin.budget.limits_tokens:
        return wanted
    return wire.Generate(
        wanted.branch,
        wanted.call,
        with_max_tokens(wanted.sampling, None),
        wanted.constraint,
        heal=wanted.heal,
        keep=wanted.keep,
        judge=wanted.judge,
        tools=wanted.tools,
    )


class AskedCalls:
    """A run with those inside it, as their progress sees them."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record

    @property
    def origin(self) -> Callable[[], RunOrigin] | None:
        return self._record.origin

    def sources(self, first: int) -> list[BegunCall]:
        return [BegunCall(call) for call in self._record.calls[first:]]


def progress_of(record: RunRecord, path: Path | None, answer: Answer | None) -> RunProgress:
    """The progress of a run, which is written to the file `path`, if there is one, and goes on
    from what that has. Raises `ProgramError` for an answer that nobody waits for.
    """
    file = None if path is None else CheckpointFile(path)
    try:
        return RunProgress(AskedCalls(record), file, None if file is None else answer)
    except BaseException:
        if file is not None:
            file.close()
        raise


class CheckpointedCalls:
    """Those of one run on one backend."""

    def __init__(self, run: RunContext, backend: Backend, progress: RunProgress) -> None:
        self._run = run
        self._progress = progress
        self._resumed = ResumedOps(backend) if progress.known is not None else None
        """What is sent in place of ops as long as the run asks nothing new."""

    def post(self, op: wire.Op) -> None:
        """An op that makes, changes or closes a branch."""
        if self._resumed is None:
            self._run.client.post(op)
        else:
            self._resumed.post(op)

    def go_live(self) -> None:
        """Something is asked of the backend."""
        if self._resumed is not None:
            self._resumed.go_live()

    def begin(self, call: PendingCall, add: Callable[[], None]) -> None:
        """Asks for it, or ends it as it had ended; `add` tells of it before. Raises
        `CheckpointMismatch` where another call was asked in its place.
        """
        begun, wanted = BegunCall(call), call.wanted
        self._progress.asked()
        try:
            kept = self._progress.call(call.key, begun.asks)
        except CheckpointMismatch as error:
            call.call.finish(error)
            call.was_read = True
            self._run.ended = error  # also where the program goes on from errors
            raise
        failed = self._failed_before(wanted, kept)
        call.was_answered = isinstance(kept, KeptCall)
        add()
        if failed is not None:
            call.call.finish(failed)
        elif isinstance(kept, KeptCall):
            self._answer(call, kept)
        elif self._progress.is_lost(call.key):
            call.call.finish(Cancelled("others had won before the run was resumed"))
        else:
            if self._progress.is_written:
                self._write_when_done(begun)
            self.go_live()
            self._run.client.begin(wanted, call.call)

    def _failed_before(
        self, wanted: wire.Generate | wire.Select, kept: KeptCall | KeptFailure | None
    ) -> LmprogError | None:
        """Why the call fails now: since it had, or its branch had, which the backend does not
        know.
        """
        if self._resumed is None or isinstance(kept, KeptCall):
            return None
        if kept is None:
            return self._resumed.why_dead(wanted.branch)
        error = kept.error()
        self._resumed.failed(wanted, error)
        return error

    def _answer(self, call: PendingCall, kept: KeptCall) -> None:
        if self._resumed is not None:
            self._resumed.answered(call.wanted, kept.reply)
        on_delta = call.call.on_delta
        if on_delta is not None:
            for delta in deltas(call.wanted, kept.reply):
                on_delta(delta)
        call.thought_tokens = kept.thought_tokens
        call.call.finish(kept.reply)

    def _write_when_done(self, begun: BegunCall) -> None:
        """Into the run's file, before the program can see the reply."""
        before = begun.call.call.on_last

        def last(outcome: LastReply | LmprogError) -> None:
            if before is not None:
                before(outcome)
            self._progress.ended(begun, outcome)

        begun.call.call.on_last = last


@dataclass(frozen=True, slots=True)
class ToldAgain:
    """A call that is posted for what it leaves in its branch: the backend is told its reply."""

    op: wire.Generate | wire.Select
    reply: wire.CallReply


Posted: TypeAlias = wire.Op | ToldAgain


class ResumedOps:
    """The ops of one run on one backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._held: list[Posted] | None = []
        self._num_again = 0
        """Calls told again. Until they are done no branch is closed: others stand on it."""
        self._to_close: list[wire.Close] = []
        self._dead: dict[int, LmprogError] = {}
        """By branch: why no call of it can be answered."""
        self._failed: dict[int, LmprogError] = {}
        """By call: why it has no text that could be referred to."""
        self._lock = threading.RLock()

    def post(self, op: wire.Op) -> None:
        """An op that makes, changes or closes a branch."""
        if isinstance(op, wire.Append):
            why = next(filter(None, map(self._why_missing, op.pieces)), None)
            if why is not None:
                self._dead.setdefault(op.branch, why)
                return
        elif isinstance(op, wire.Fork) and op.branch in self._dead:
            self._dead.update(dict.fromkeys(op.children, self._dead[op.branch]))
        self._take(op)

    def _why_missing(self, piece: wire.Piece) -> LmprogError | None:
        """Why the text that a piece refers to will not come; None where it may."""
        if isinstance(piece, wire.Ref):
            return self._failed.get(piece.call)
        return self._dead.get(piece.branch) if isinstance(piece, wire.Gained) else None

    def failed(self, op: wire.Generate | wire.Select, error: LmprogError) -> None:
        """The call had failed before. Where it was only refused, its branch goes on."""
        self._failed[op.call] = error
        if not isinstance(error, RequestRejected):
            self._dead[op.branch] = error

    def why_dead(self, branch: int) -> LmprogError | None:
        """Why no call of the branch can be answered; None where it can."""
        return self._dead.get(branch)

    def answered(self, op: wire.Generate | wire.Select, reply: wire.CallReply) -> None:
        """The call was answered before: its branch goes on behind its result."""
        if isinstance(self._backend, Remembers):
            self._take(ToldAgain(op, reply))
        elif self._backend.client.welcome.vocab_size > 0:
            self._take(wire.Append(op.branch, wire.own_pieces(op, reply)))
        else:  # branches are texts, as the double's are
            self._take(wire.Append(op.branch, (wire.letters(wire.result_texts(op, reply)[0]),)))

    def go_live(self) -> None:
        """Something is to be asked now: the branches are built."""
        with self._lock:
            held, self._held = self._held, None
            for step in needed(held or []):
                self._send(step)

    def _take(self, step: Posted) -> None:
        with self._lock:
            if self._held is None:
                self._send(step)
            else:
                self._held.append(step)

    def _send(self, step: Posted) -> None:
        client = self._backend.client
        if isinstance(step, wire.Close) and self._num_again:
            self._to_close.append(step)
        elif not isinstance(step, ToldAgain):
            client.post(step)
        else:
            assert isinstance(self._backend, Remembers), "no other is told"
            self._backend.remember(step.op.call, step.reply)
            call = ClientCall(step.op.call)
            call.when_done(self._is_done)
            self._num_again += 1
            client.begin(step.op, call)

    def _is_done(self) -> None:
        with self._lock:
            self._num_again -= 1
            if self._num_again == 0:
                self._backend.client.post(*self._to_close)
                self._to_close = []
                self._backend.client.hurry()


def needed(steps: list[Posted]) -> list[Posted]:
    """The steps without those that only concern branches which are closed again."""
    closed = {step.branch for step in steps if isinstance(step, wire.Close)}
    wanted = {step.branch for step in steps if isinstance(step, wire.Open)} - closed
    wanted |= {
        child for step in steps if isinstance(step, wire.Fork) for child in step.children
    } - closed
    kept: list[Posted] = []
    for step in reversed(steps):  # who needs a branch comes after what is needed of it
        if isinstance(step, wire.Fork):
            children = tuple(child for child in step.children if child in wanted)
            if children:
                wanted.add(step.branch)
                kept.append(wire.Fork(step.branch, children, step.lora))
        elif isinstance(step, wire.Append) and step.branch in wanted:
            wanted |= {piece.branch for piece in step.pieces if isinstance(piece, wire.Gained)}
            kept.append(step)
        elif isinstance(step, wire.Close) or _branch_of(step) in wanted:
            kept.append(step)
    kept.reverse()
    return [step for step in kept if _branch_of(step) in wanted]


def _branch_of(step: Posted) -> int | None:
    return step.op.branch if isinstance(step, ToldAgain) else getattr(step, "branch", None)
