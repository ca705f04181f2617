"""Branches run their ops: each in its order, each as far as it can, until it waits for a promise or
for its call.

Knows the ops that a branch has queued and what each of them means. It does not know where ops come
from (the interpreter) nor what a step brings to a call (delivery).
"""

from __future__ import annotations

from collections.abc import Callable

from lmprog import wire
from lmprog.errors import LmprogError, RequestRejected
from lmprog.runtime.programs.active_call import ActiveCall
from lmprog.runtime.programs.branch import Appending, BranchState, Marking, Promise, RuntimeBranch
from lmprog.runtime.programs.call_builder import CallBuilder
from lmprog.runtime.programs.clients import ClientState
from lmprog.runtime.programs.completion import CallCompletion
from lmprog.runtime.programs.delivery import Delivery
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.text.chat_template import ChatTemplate
from lmprog.transport import ClientId


class BranchRunner:
    """Carries out queued ops of the branches in `completion.ready`."""

    def __init__(
        self,
        clients: dict[ClientId, ClientState],
        scheduler: Scheduler,
        completion: CallCompletion,
        delivery: Delivery,
        calls: CallBuilder,
        template: Callable[[], ChatTemplate],
        clock: Callable[[], float],
    ) -> None:
        """`clients` is the interpreter's own, which adds to it and takes from it."""
        self._clients = clients
        self._scheduler = scheduler
        self._completion = completion
        self._delivery = delivery
        self._calls = calls
        self._tokenizer = calls.tokenizer
        self._template = template
        self._clock = clock

    def run_ready(self) -> None:
        """Lets every branch that something happened to go on as far as it can."""
        while self._completion.ready:
            client_id, branch = self._completion.ready.pop()
            while branch.state is BranchState.OPEN and branch.ops and not branch.busy:
                if not self._run(client_id, branch):
                    break

    def _run(self, client_id: ClientId, branch: RuntimeBranch) -> bool:
        """Carries out the branch's next op; False when it must wait for a promise."""
        op = branch.ops[0]
        if branch.cause is None and self._waits(client_id, branch, op):
            return False
        branch.ops.popleft()
        try:
            self._carry_out(client_id, branch, op)
        except LmprogError as error:
            self._completion.spoil(branch, error)
        return True

    def _waits(self, client_id: ClientId, branch: RuntimeBranch, op: object) -> bool:
        """Whether `op` needs something that is not known yet; then the branch is ready again when
        it is.
        """
        if isinstance(op, Appending):
            missing = next((p for p in op.pieces if isinstance(p, Promise) and not p.known), None)
            if missing is not None:
                missing.waiting.append(branch)
                return True
        elif isinstance(op, wire.Generate):
            active = self._clients[client_id].calls[op.call]
            compiling = active.compiling
            if compiling is not None and not compiling.known and active.error is None:
                compiling.waiting.append((client_id, branch))
                return True
        return False

    def _carry_out(self, client_id: ClientId, branch: RuntimeBranch, op: object) -> None:
        client = self._clients[client_id]
        match op:
            case Appending(pieces=pieces):
                if branch.cause is None:
                    self._append(branch, pieces)
            case Marking(promise=promise):
                self._completion.keep(client_id, promise, branch.cause or branch.gained())
            case wire.Fork(children=children):
                self._calls.settle(branch)
                for number in children:
                    child = client.branches.get(number)
                    if child is not None and child.state is BranchState.UNBORN:
                        child.birth(branch)
                        self._completion.stand(child, branch.pin.node if branch.pin else None)
                        self._scheduler.stats.forks += 1
                        self._scheduler.stats.fork_shared_tokens += len(branch.tokens)
                        self._completion.ready.append((client_id, child))
            case wire.Generate(call=call) | wire.Select(call=call) | wire.Read(call=call):
                self._reach(client.calls[call])

    def _append(self, branch: RuntimeBranch, pieces: tuple[object, ...]) -> None:
        for piece in pieces:
            match piece:
                case wire.TextPiece(text=text, quoted=quoted):
                    branch.append(text, [(0, len(text))] if quoted else ())
                case wire.TokensPiece():
                    self._calls.check_length(branch)
                    branch.append_tokens(*self._calls.speller.given(piece), self._tokenizer)
                case Promise(text=kept, error=error):
                    if error is not None:
                        raise error
                    branch.append(kept or "", [(0, len(kept or ""))] if piece.quoted else ())
                case wire.RoleBegin(role=role):
                    branch.begin_role(role, self._template())
                case wire.RoleEnd(role=role):
                    branch.end_role(role, self._template())
                case wire.Conversation():
                    written = self._template().converse(
                        piece.messages,
                        piece.tools,
                        piece.plain,
                        piece.mark,
                        self._calls.speller.guard,
                    )
                    branch.append(written.text, written.quoted)

    def _reach(self, active: ActiveCall) -> None:
        """The branch has come to a call: it is answered, or becomes sequences and is submitted."""
        branch = active.branch
        active.reached = True
        if active.error is not None:  # it was ended while it waited here
            if not isinstance(active.error, RequestRejected):
                self._completion.spoil(branch, active.error)
            return
        try:
            if branch.cause is not None:
                raise branch.cause
            if isinstance(active.op, wire.Read):
                self._read(active)
            else:
                self._start(active)
        except LmprogError as error:
            self._completion.fail(active, error)

    def _read(self, active: ActiveCall) -> None:
        branch = active.branch
        self._calls.check_length(branch)
        text = "".join(branch.text)
        num_tokens = len(branch.tokens_with(self._tokenizer))
        self._completion.reply(active, wire.TextIs(active.id, text, num_tokens), [text])

    def _start(self, active: ActiveCall) -> None:
        call = self._calls.build(active, self._clock())
        self._scheduler.submit(call)
        active.call = call
        active.branch.busy = True
        self._delivery.opened(active, self._clock())
