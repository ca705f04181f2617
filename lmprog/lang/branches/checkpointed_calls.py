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
from collections.abc import Callable, Container
from pathlib import Path

from lmprog import wire
from lmprog.backends import Backend, Remembers
from lmprog.backends.client import ClientCall, LastReply
from lmprog.errors import Cancelled, CheckpointMismatch, LmprogError
from lmprog.journal import Asking, DeadBranches, Journal, Question, deltas, needed
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


def _without_limits(call: PendingCall) -> Asking:
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
        self, wanted: Asking, kept: KeptCall | KeptFailure | None
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


class ResumedOps:
    """The ops of one run on one backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._journal = Journal(are_tokens=backend.client.welcome.vocab_size > 0)
        self._is_held = True
        """Whether nothing was asked yet."""
        self._num_again = 0
        """Calls told again. Until they are done no branch is closed: others stand on it."""
        self._to_close: list[wire.Close] = []
        self._dead = DeadBranches()
        self._lock = threading.RLock()

    def post(self, op: wire.Op) -> None:
        """An op that makes, changes or closes a branch."""
        if self._dead.take(op) and isinstance(op, wire.Append):
            return
        with self._lock:
            if self._is_held:
                self._journal.add(op)
            else:
                self._send(op)

    def failed(self, op: Asking, error: LmprogError) -> None:
        """The call had failed before."""
        self._dead.failed(op, error)

    def why_dead(self, branch: int) -> LmprogError | None:
        """Why no call of the branch can be answered; None where it can."""
        return self._dead.why(branch)

    def answered(self, op: Asking, reply: wire.CallReply) -> None:
        """The call was answered before: its branch goes on behind its result."""
        with self._lock:
            self._journal.replies[op.call] = reply
            if self._is_held:
                self._journal.add(op)
            else:
                for again in self._journal.again(op, self._told):
                    self._send(again)

    @property
    def _told(self) -> Container[int]:
        """The calls that are posted for what they leave: the backend is told their replies."""
        return self._journal.replies if isinstance(self._backend, Remembers) else ()

    def go_live(self) -> None:
        """Something is to be asked now: the branches are built."""
        with self._lock:
            if self._is_held:
                self._is_held = False
                for op in needed(self._journal.rebuilt(self._told)):
                    self._send(op)
                self._journal.ops.clear()

    def _send(self, op: wire.Op) -> None:
        client = self._backend.client
        if isinstance(op, wire.Close) and self._num_again:
            self._to_close.append(op)
        elif isinstance(op, Asking):
            assert isinstance(self._backend, Remembers), "no other is told"
            reply = self._journal.replies[op.call]
            assert isinstance(reply, wire.CallReply), "it was answered"
            self._backend.remember(op.call, reply)
            call = ClientCall(op.call)
            call.when_done(self._is_done)
            self._num_again += 1
            client.begin(op, call)
        else:
            client.post(op)

    def _is_done(self) -> None:
        with self._lock:
            self._num_again -= 1
            if self._num_again == 0:
                self._backend.client.post(*self._to_close)
                self._to_close = []
                self._backend.client.hurry()
