"""Carries out the queued ops of branches, each branch's in their order, as far as they can go.

Knows what each queued op means. Does not know where ops come from (the interpreter) nor what a step
brings to a call (delivery).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from lmprog import wire
from lmprog.errors import LmprogError, NotSupported, RequestRejected, UnknownName
from lmprog.runtime.programs.active_call import ActiveCall, Run
from lmprog.runtime.programs.branch import (
    Awaited,
    BoundAppend,
    BoundFork,
    BoundGained,
    BoundPiece,
    BranchState,
    Promise,
    QueuedOp,
    RuntimeBranch,
)
from lmprog.runtime.programs.call_builder import CallBuilder
from lmprog.runtime.programs.completion import CallCompletion
from lmprog.runtime.programs.delivery import Delivery
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.text.chat_template import ChatTemplate

if TYPE_CHECKING:
    from lmprog.runtime.programs.beam_search import BeamCalls


class BranchRunner:
    """Runs one branch at a time; keeps nothing of its own."""

    def __init__(
        self,
        scheduler: Scheduler,
        completion: CallCompletion,
        delivery: Delivery,
        calls: CallBuilder,
        template: Callable[[], ChatTemplate],
    ) -> None:
        self._scheduler = scheduler
        self._stats = scheduler.stats
        self._completion = completion
        self._delivery = delivery
        self._calls = calls
        self._template = template

    def open(self, branch: RuntimeBranch, lora: str) -> None:
        """Opens an empty branch that the adapter of that name computes."""
        branch.open()
        try:
            branch.adapter = self._calls.adapters.find(lora)
        except UnknownName as error:
            self._completion.fail_branch(branch, error)

    def run(self, branch: RuntimeBranch, now: float) -> None:
        """Carries out the branch's ops until one must wait: for its call, or for what is not known
        yet. Then the branch is woken up when it may go on.
        """
        while branch.state is BranchState.OPEN and branch.queue and not branch.is_busy:
            op = branch.queue[0]
            missing = self._missing(branch, op)
            if missing is not None:
                missing.waiting.append(branch)
                return
            branch.queue.popleft()
            try:
                self._carry_out(branch, op, now)
            except LmprogError as error:
                self._completion.fail_branch(branch, error)

    def _missing(self, branch: RuntimeBranch, op: QueuedOp) -> Awaited | None:
        """What the op must wait for; a branch that has failed waits for nothing."""
        if branch.failure is not None:
            return None
        missing = op.missing()
        if missing is None and op.needs_tokens:
            return self._calls.long_texts.missing(branch, op.endings)
        return missing

    def _carry_out(self, branch: RuntimeBranch, op: QueuedOp, now: float) -> None:
        match op:
            case BoundAppend(pieces=pieces):
                if branch.failure is None:
                    self._append_all(branch, pieces)
            case BoundGained(promise=promise):
                self._completion.resolve(promise, branch.failure or branch.gained())
            case BoundFork():
                self._fork(branch, op)
            case ActiveCall():
                self._begin(op, now)

    def _fork(self, branch: RuntimeBranch, fork: BoundFork) -> None:
        if branch.failure is None:
            try:
                self._calls.tokenise_certain(branch)
            except LmprogError as error:  # the children are opened all the same, and fail with it
                self._completion.fail_branch(branch, error)
        unknown: UnknownName | None = None
        adapter = branch.adapter
        try:
            if fork.lora is not None:
                adapter = self._calls.adapters.find(fork.lora)
        except UnknownName as error:
            unknown = error
        # keys and values of another adapter are of no use to the children
        shares = adapter == branch.adapter
        for child in fork.children:
            if child.state is BranchState.PENDING:
                child.open(branch)
                child.adapter = adapter
                self._completion.move_pin(child, branch.pin.node if branch.pin and shares else None)
                self._stats.forks += 1
                self._stats.fork_shared_tokens += len(branch.tokens) if shares else 0
                if unknown is not None:
                    self._completion.fail_branch(child, unknown)
                self._completion.wake(child)

    def _append_all(self, branch: RuntimeBranch, pieces: tuple[BoundPiece, ...]) -> None:
        """Tokens given after a long text wait until that is tokenised."""
        for index, piece in enumerate(pieces):
            if index and isinstance(piece, wire.TokensPiece):
                branch.queue.appendleft(BoundAppend(pieces[index:]))
                return
            self._append(branch, piece)

    def _append(self, branch: RuntimeBranch, piece: BoundPiece) -> None:
        match piece:
            case wire.TextPiece(text=text, quoted=quoted):
                if piece.calls:
                    raise NotSupported("a runtime has no fields for calls; append them as text")
                branch.append(text, [(0, len(text))] if quoted else ())
            case wire.TokensPiece():
                self._calls.check_length(branch)
                tokens, text = self._calls.texts.tokens_of(piece)
                encoder, piece_of = self._calls.encoder, self._calls.tokenizer.token_bytes
                if piece.heals:
                    branch.heal(tokens, text, encoder, piece_of, piece.rest)
                else:
                    branch.append_tokens(tokens, text, encoder, piece.rest)
            case Promise():
                if piece.error is not None:
                    raise piece.error
                assert piece.passage is not None, "the append has waited for it"
                branch.append(piece.passage.text, piece.passage.quoted)
            case wire.RoleBegin(role=role):
                branch.begin_role(role, self._template())
            case wire.RoleEnd(role=role):
                branch.end_role(role, self._template())
            case wire.Conversation():
                guard = self._calls.texts.guard
                written = self._template().converse(
                    piece.messages, piece.tools, guard, piece.variables
                )
                branch.append(written.text, written.quoted)

    def _begin(self, call: ActiveCall, now: float) -> None:
        """The branch has come to a call: it is answered, or becomes sequences and is submitted."""
        branch = call.branch
        call.is_reached = True
        if call.error is not None:  # it was ended while it waited here
            if not isinstance(call.error, RequestRejected):
                self._completion.fail_branch(branch, call.error)
            return
        try:
            if branch.failure is not None:
                raise branch.failure
            if isinstance(call.op, wire.Read):
                self._read(call)
            else:
                self._completion.submit(call, self._run_of(call, now))
                self._delivery.deliver_forced(call, now)
        except LmprogError as error:
            self._completion.fail(call, error)

    def _run_of(self, call: ActiveCall, now: float) -> Run:
        op = call.op
        if isinstance(op, wire.Generate) and op.sampling.beams is not None:
            return self._beams.build(call, op, op.sampling.beams, now)
        return self._calls.build(call, now)

    @cached_property
    def _beams(self) -> BeamCalls:
        """Made when the first call has beams."""
        from lmprog.runtime.programs.beam_search import BeamCalls

        return BeamCalls(self._scheduler, self._calls, self._completion, self._delivery)

    def _read(self, call: ActiveCall) -> None:
        branch = call.branch
        self._calls.check_length(branch)
        text = branch.text()
        tokens = branch.tokens_with(self._calls.encoder)
        wanted = tuple(tokens) if isinstance(call.op, wire.Read) and call.op.with_tokens else ()
        self._completion.finish(call, wire.TextIs(call.id, text, len(tokens), wanted), [text])
