"""Branches run their ops: each in its order, each as far as it can, until it waits for a promise or for its call.

Knows the ops that a branch has queued and what each of them means. It does not know where ops come from (the
interpreter) nor what a step brings to a call (delivery).
"""

from __future__ import annotations

from collections.abc import Callable

from lmprog import wire
from lmprog.errors import LmprogError, RequestRejected
from lmprog.runtime.branch import Appending, Branch, BranchState, Marking, Promise
from lmprog.runtime.calls import CallBuilder
from lmprog.runtime.chat import ChatTemplate
from lmprog.runtime.clients import Client
from lmprog.runtime.delivery import Delivery
from lmprog.runtime.endings import Endings
from lmprog.runtime.ongoing import Ongoing
from lmprog.runtime.scheduler import Scheduler
from lmprog.transport import ClientId


class Runner:
    """Carries out queued ops of the branches in `endings.ready`."""

    def __init__(
        self,
        clients: dict[ClientId, Client],
        scheduler: Scheduler,
        endings: Endings,
        delivery: Delivery,
        calls: CallBuilder,
        template: Callable[[], ChatTemplate],
        clock: Callable[[], float],
    ) -> None:
        """`clients` is the interpreter's own, which adds to it and takes from it."""
        self._clients = clients
        self._scheduler = scheduler
        self._endings = endings
        self._delivery = delivery
        self._calls = calls
        self._tokenizer = calls.tokenizer
        self._template = template
        self._clock = clock

    def run_ready(self) -> None:
        """Lets every branch that something happened to go on as far as it can."""
        while self._endings.ready:
            client_id, branch = self._endings.ready.pop()
            while branch.state is BranchState.OPEN and branch.ops and not branch.busy:
                if not self._run(client_id, branch):
                    break

    def _run(self, client_id: ClientId, branch: Branch) -> bool:
        """Carries out the branch's next op; False when it must wait for a promise."""
        op = branch.ops[0]
        if branch.cause is None and self._waits(client_id, branch, op):
            return False
        branch.ops.popleft()
        try:
            self._carry_out(client_id, branch, op)
        except LmprogError as error:
            self._endings.spoil(branch, error)
        return True

    def _waits(self, client_id: ClientId, branch: Branch, op: object) -> bool:
        """Whether `op` needs something that is not known yet; then the branch is ready again when it is."""
        if isinstance(op, Appending):
            missing = next((p for p in op.pieces if isinstance(p, Promise) and not p.known), None)
            if missing is not None:
                missing.waiting.append(branch)
                return True
        elif isinstance(op, wire.Gen):
            ongoing = self._clients[client_id].calls[op.call]
            compiling = ongoing.compiling
            if compiling is not None and not compiling.known and ongoing.error is None:
                compiling.waiting.append((client_id, branch))
                return True
        return False

    def _carry_out(self, client_id: ClientId, branch: Branch, op: object) -> None:
        client = self._clients[client_id]
        match op:
            case Appending(pieces=pieces):
                if branch.cause is None:
                    self._append(branch, pieces)
            case Marking(promise=promise):
                self._endings.keep(client_id, promise, branch.cause or branch.gained())
            case wire.Fork(children=children):
                self._calls.settle(branch)
                for number in children:
                    child = client.branches.get(number)
                    if child is not None and child.state is BranchState.UNBORN:
                        child.birth(branch)
                        self._endings.stand(child, branch.pin.node if branch.pin else None)
                        self._scheduler.stats.forks += 1
                        self._scheduler.stats.fork_shared_tokens += len(branch.tokens)
                        self._endings.ready.append((client_id, child))
            case wire.Gen(call=call) | wire.Select(call=call) | wire.Read(call=call):
                self._reach(client.calls[call])

    def _append(self, branch: Branch, pieces: tuple[object, ...]) -> None:
        for piece in pieces:
            match piece:
                case wire.Text(text=text, quoted=quoted):
                    branch.append(text, [(0, len(text))] if quoted else ())
                case wire.Tokens():
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
                        piece.messages, piece.tools, piece.plain, piece.mark, self._calls.speller.guard
                    )
                    branch.append(written.text, written.quoted)

    def _reach(self, ongoing: Ongoing) -> None:
        """The branch has come to a call: it is answered, or becomes lanes and is submitted."""
        branch = ongoing.branch
        ongoing.reached = True
        if ongoing.error is not None:  # it was ended while it waited here
            if not isinstance(ongoing.error, RequestRejected):
                self._endings.spoil(branch, ongoing.error)
            return
        try:
            if branch.cause is not None:
                raise branch.cause
            if isinstance(ongoing.op, wire.Read):
                self._read(ongoing)
            else:
                self._start(ongoing)
        except LmprogError as error:
            self._endings.fail(ongoing, error)

    def _read(self, ongoing: Ongoing) -> None:
        branch = ongoing.branch
        self._calls.check_length(branch)
        text = "".join(branch.text)
        num_tokens = len(branch.tokens_with(self._tokenizer))
        self._endings.reply(ongoing, wire.TextIs(ongoing.id, text, num_tokens), [text])

    def _start(self, ongoing: Ongoing) -> None:
        call = self._calls.build(ongoing, self._clock())
        self._scheduler.submit(call)
        ongoing.call = call
        ongoing.branch.busy = True
        self._delivery.opened(ongoing, self._clock())
