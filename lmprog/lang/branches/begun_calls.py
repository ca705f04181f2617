"""A call begins: it is asked, unless a checkpoint knows how it ended, and that can be kept.

What a checkpoint keeps of a call is a digest of what it asks and of what its branch said since its
call before, and the reply. Knows calls and what a run has done; branches are the cursor's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmprog import wire
from lmprog.backends.caching.kept_questions import Question, deltas
from lmprog.backends.client import LastReply
from lmprog.errors import Cancelled, CheckpointMismatch, LmprogError
from lmprog.lang.branches.gen import Gen
from lmprog.lang.branches.log import Item, flat
from lmprog.lang.branches.pending_call import PendingCall
from lmprog.lang.branches.scope import Scope
from lmprog.lang.checkpoints.checkpoint_file import KeptCall, KeptFailure
from lmprog.lang.ops.expressions import RoleBeginExpr, RoleEndExpr
from lmprog.lang.ops.sampling import with_max_tokens


@dataclass(frozen=True, slots=True)
class BegunCall:
    """One call, for a checkpoint."""

    key: str
    call: PendingCall
    wanted: wire.Generate | wire.Select
    said: Sequence[Item]
    """By its branch since its call before."""
    lora: str = ""

    def asks(self) -> str:
        """The digest. Results in the text before it are there when it is answered; "" where they
        are not, since it was no such call that was answered.
        """
        items = flat(list(self.said))
        if any(isinstance(item, PendingCall) and not item.call.done() for item in items):
            return ""
        question = Question((), "", tuple(map(_piece, items)), None, self.lora)
        return question.key(_without_limits(self.wanted, self.call), with_seed=True)

    def kept(self, outcome: object = None) -> KeptCall | None:
        """What is kept, once it is answered well; `outcome` where it is just being answered."""
        if outcome is None and self.call.call.done():
            outcome = self.call.call.wait(0)
        if not isinstance(outcome, wire.CallDone | wire.Chosen):
            return None
        return KeptCall(self.key, self.asks(), self._label, outcome, self.call.thought_tokens)

    def kept_failure(self, error: LmprogError) -> KeptFailure:
        """The same of a call that failed, whose error the program is told."""
        why = error.code, error.message, error.details()
        return KeptFailure(self.key, self.asks(), self._label, *why)

    @property
    def _label(self) -> str:
        return self.call.name or self.call.kind


def begin(
    scope: Scope,
    gen: Gen[Any],
    wanted: wire.Generate | wire.Select,
    key: str,
    said: Sequence[Item],
    lora: str,
) -> None:
    """Asks for `gen`. Raises `CheckpointMismatch` where another call was asked in its place."""
    gen.key = key
    begun = BegunCall(key, gen, wanted, said, lora)
    progress = scope.progress
    progress.asked(key, begun)
    try:
        kept = progress.call(key, begun.asks)
    except CheckpointMismatch as error:
        gen.call.finish(error)
        gen.was_read = True
        scope.ended = error  # also where the program goes on from errors
        raise
    failed = _failed_before(scope, wanted, kept)
    if failed is not None:
        scope.add_call(gen, wanted)
        gen.call.finish(failed)
        return
    assert not isinstance(kept, KeptFailure)
    if kept is None and not progress.is_lost(key):
        scope.add_call(gen, wanted)
        if progress.is_written:
            _write_when_done(scope, begun)
        scope.go_live()
        scope.client.begin(wanted, gen.call)
        return
    gen.was_answered = kept is not None
    scope.add_call(gen, wanted)
    if kept is None:
        gen.call.finish(Cancelled("others had won before the run was resumed"))
        return
    if scope.resumed is not None:
        scope.resumed.answered(wanted, kept.reply)
    on_delta = gen.call.on_delta
    if on_delta is not None:
        for delta in deltas(wanted, kept.reply):
            on_delta(delta)
    gen.thought_tokens = kept.thought_tokens
    gen.call.finish(kept.reply)


def _failed_before(
    scope: Scope, wanted: wire.Generate | wire.Select, kept: KeptCall | KeptFailure | None
) -> LmprogError | None:
    """Why the call fails now: since it had, or its branch had, which the backend does not know."""
    if scope.resumed is None or isinstance(kept, KeptCall):
        return None
    if kept is None:
        return scope.resumed.why_dead(wanted.branch)
    error = kept.error()
    scope.resumed.failed(wanted, error)
    return error


def _write_when_done(scope: Scope, begun: BegunCall) -> None:
    """Into the run's file, before the program can see the reply."""
    before = begun.call.call.on_last

    def last(outcome: LastReply | LmprogError) -> None:
        if before is not None:
            before(outcome)
        scope.progress.ended(begun.key, outcome)

    begun.call.call.on_last = last


def _piece(item: Item) -> wire.Piece:
    if isinstance(item, RoleBeginExpr):
        return wire.RoleBegin(item.role)
    if isinstance(item, RoleEndExpr):
        return wire.RoleEnd(item.role)
    return wire.TextPiece(item.left_text() if isinstance(item, PendingCall) else str(item))


def _without_limits(
    wanted: wire.Generate | wire.Select, call: PendingCall
) -> wire.Generate | wire.Select:
    """What a budget leaves it is a matter of what else runs at the time."""
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
