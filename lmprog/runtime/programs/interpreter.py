"""Runs programs: keeps each client's branches, queues their ops, turns what steps bring into
replies.

Every call gets exactly one last reply, whatever happens to it (`completion` sees to it). An op that
cannot be carried out spoils its branch; the branch's later calls fail with that cause. A client
that vanishes leaves nothing behind.

Takes ops in and hands replies out; `running` carries the ops out. It does not know who runs when,
nor where bytes come from.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping

from lmprog import wire
from lmprog.errors import Cancelled, DeadlineExceeded, LmprogError, ProtocolError
from lmprog.runtime.programs.active_call import ActiveCall, failed
from lmprog.runtime.programs.branch import Appending, BranchState, Marking, Promise, RuntimeBranch
from lmprog.runtime.programs.branch_runner import BranchRunner
from lmprog.runtime.programs.call_builder import CallBuilder
from lmprog.runtime.programs.clients import ClientState, unknown_branch
from lmprog.runtime.programs.completion import Addressed, CallCompletion
from lmprog.runtime.programs.deadlines import Deadlines
from lmprog.runtime.programs.delivery import Delivery
from lmprog.runtime.programs.snapshot import SnapshotBuilder
from lmprog.runtime.scheduling.scheduler import Progress, Scheduler
from lmprog.runtime.text.chat_template import ChatTemplate
from lmprog.transport import ClientId, Gone


class Interpreter:
    """Clients, branches and calls. `handle` takes an op, `deliver` what a step brought and gives
    all replies.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        calls: CallBuilder,
        template: Callable[[], ChatTemplate],
        welcome: wire.Welcome,
        clock: Callable[[], float],
        counters: Mapping[str, int] | None = None,
    ) -> None:
        """`counters`: what the channel counts (frames that were dropped), told with the other
        figures.
        """
        self.scheduler = scheduler
        self.clients: dict[ClientId, ClientState] = {}
        self._completion = CallCompletion(scheduler)
        self._delivery = Delivery(self._completion, calls)
        self._calls = calls
        self._runner = BranchRunner(
            self.clients, scheduler, self._completion, self._delivery, calls, template, clock
        )
        self._welcome = welcome
        self._clock = clock
        self._counters = counters or {}
        self._deadlines = Deadlines()
        self._onlooker = SnapshotBuilder(
            scheduler, calls.tokenizer, calls.namespaces, key=secrets.token_bytes(16)
        )
        self._num_programs = 0

    # --- from clients
    # --------------------------------------------------------------------------------------------

    def handle(self, client_id: ClientId, op: wire.Op | Gone) -> None:
        """Takes one op of one client. Never raises for a client's mistake."""
        if isinstance(op, Gone):
            self._forget_client(client_id)
        elif isinstance(op, wire.Hello):
            self._greet(client_id, op)
        else:
            client = self.clients.setdefault(client_id, ClientState())
            self._take(client_id, client, op)
        self._runner.run_ready()

    def _greet(self, client_id: ClientId, hello: wire.Hello) -> None:
        if hello.version != wire.PROTOCOL_VERSION:
            error = ProtocolError(
                f"the client speaks protocol {hello.version}, this runtime {wire.PROTOCOL_VERSION}; "
                "install the same version of lmprog on both sides."
            )
            self._completion.say(client_id, failed(None, error))
            return
        self.clients.setdefault(client_id, ClientState())
        self._completion.say(client_id, self._welcome)

    def _take(self, client_id: ClientId, client: ClientState, op: wire.Op) -> None:
        match op:
            case wire.Open(branch=number, salt=salt):
                if self._new_branch(client, number, salt):
                    self._num_programs += 1
                    client.branches[number].program = self._num_programs
                    client.branches[number].birth()
            case wire.Fork(branch=number, children=children):
                self._queue(client_id, client, number, op)
                for child in children:
                    self._new_branch(client, child, "")
            case wire.Append(branch=number, pieces=pieces):
                self._queue(client_id, client, number, self._bind(client_id, client, pieces))
            case wire.Generate() | wire.Select() | wire.Read():
                self._arrive(client_id, client, op)
            case wire.Close(branch=number):
                self._close(client_id, client, number)
            case wire.Cancel(call=call):
                active = client.calls.get(call)
                if active is not None:
                    self._completion.fail(active, Cancelled("the call was cancelled."))
            case wire.Contest():
                self._completion.contest(
                    [client.calls[call] for call in op.calls if call in client.calls], op.rule
                )
            case wire.Encode() | wire.Decode():
                self._spell(client_id, op)
            case wire.Describe(call=call):
                self._completion.say(client_id, wire.Described(call, self.figures()))
            case wire.Inspect():
                self._completion.say(
                    client_id, self._onlooker.look(op, self._clock(), self.figures())
                )
            case wire.Flush(call=call):
                self.scheduler.tree.clear()
                self._completion.say(client_id, wire.Described(call, self.figures()))

    def _spell(self, client_id: ClientId, op: wire.Encode | wire.Decode) -> None:
        """Answered at once, since no branch has to come to it."""
        speller = self._calls.speller
        try:
            reply = speller.encode(op) if isinstance(op, wire.Encode) else speller.decode(op)
        except LmprogError as error:
            self._completion.say(client_id, failed(op.call, error))
        else:
            self._completion.say(client_id, reply)

    def figures(self) -> dict[str, float]:
        """Counters, and the state of tree, pages and line right now."""
        scheduler = self.scheduler
        return {
            **scheduler.stats.figures(),
            **{f"channel_{name}": float(count) for name, count in self._counters.items()},
            "running": float(len(scheduler.running)),
            "waiting": float(len(scheduler.line)),
            "preempted_waiting": float(
                sum(1 for sequence in scheduler.line if sequence.admission_order)
            ),
            "programs": float(self._num_programs),
            "pages": float(scheduler.pages.num_pages),
            "pages_free": float(scheduler.pages.num_free),
            "pages_cached": float(scheduler.tree.num_cached),
            "pages_evictable": float(scheduler.tree.num_evictable),
            "pages_pinned": float(scheduler.tree.num_pinned),
            "tree_nodes": float(scheduler.tree.num_nodes),
            "open_branches": float(sum(len(client.branches) for client in self.clients.values())),
            "open_clients": float(len(self.clients)),
            "page_size": float(scheduler.config.page_size),
            "pid": float(os.getpid()),
            **(
                {}
                if self._calls.constraints is None
                else self._calls.constraints.seconds.figures("compile_seconds")
            ),
        }

    def _new_branch(self, client: ClientState, number: int, salt: str) -> bool:
        if number in client.branches:
            self._completion.spoil(
                client.branches[number], ProtocolError(f"branch {number} was opened twice.")
            )
            return False
        client.branches[number] = RuntimeBranch(number, salt)
        self.scheduler.stats.branches += 1
        return True

    def _bind(
        self, client_id: ClientId, client: ClientState, pieces: tuple[wire.Piece, ...]
    ) -> Appending:
        """References become promises when they arrive, so that later closings cannot take them
        away.
        """
        bound: list[
            wire.TextPiece
            | wire.TokensPiece
            | Promise
            | wire.RoleBegin
            | wire.RoleEnd
            | wire.Conversation
        ] = []
        for piece in pieces:
            if isinstance(piece, wire.Ref):
                bound.append(client.promise(piece))
            elif isinstance(piece, wire.Gained):
                promise = Promise()
                self._queue(client_id, client, piece.branch, Marking(promise))
                bound.append(promise)
            else:
                bound.append(piece)
        return Appending(tuple(bound))

    def _queue(
        self,
        client_id: ClientId,
        client: ClientState,
        number: int,
        op: Appending | Marking | wire.Fork,
    ) -> None:
        branch = client.branches.get(number)
        if branch is not None:
            branch.ops.append(op)
            self._completion.ready.append((client_id, branch))
        elif isinstance(op, Marking):
            op.promise.error = unknown_branch(number)

    def _arrive(
        self, client_id: ClientId, client: ClientState, op: wire.Generate | wire.Select | wire.Read
    ) -> None:
        branch = client.branches.get(op.branch)
        if branch is None or op.call in client.calls:
            error: LmprogError = unknown_branch(op.branch)
            if branch is not None:
                error = ProtocolError(f"call {op.call} was made twice.")
            self._completion.say(client_id, failed(op.call, error))
            return
        count = op.sampling.n if isinstance(op, wire.Generate) and op.keep == "first" else 1
        active = ActiveCall(client_id, op, branch, [Promise(quoted=True) for _ in range(count)])
        client.calls[op.call] = active
        self.scheduler.stats.calls += 1
        if not isinstance(op, wire.Read) and op.timeout is not None:
            self._deadlines.add(active, self._clock(), op.timeout)
        self._calls.begin_constraint(active)
        branch.ops.append(op)
        self._completion.ready.append((client_id, branch))

    def _close(self, client_id: ClientId, client: ClientState, number: int) -> None:
        branch = client.branches.pop(number, None)
        if branch is None:
            return
        error = Cancelled(f"branch {number} was closed.")
        for active in [one for one in client.calls.values() if one.branch is branch]:
            self._completion.fail(active, error)
            del client.calls[active.id]
        for op in branch.ops:
            if isinstance(op, Marking):
                self._completion.keep(client_id, op.promise, error)
            elif isinstance(op, wire.Fork):
                for child in op.children:
                    if child in client.branches:
                        self._completion.spoil(client.branches[child], error)
                        self._completion.ready.append((client_id, client.branches[child]))
        branch.ops.clear()
        branch.state = BranchState.CLOSED
        self._completion.stand(branch, None)

    def _forget_client(self, client_id: ClientId) -> None:
        client = self.clients.get(client_id)
        if client is None:
            return
        for number in list(client.branches):
            self._close(client_id, client, number)
        del self.clients[client_id]
        self._completion.forget(client_id)

    # --- what a step brought
    # -------------------------------------------------------------------------------------

    def deliver(self, progress: list[Progress], began: float) -> list[Addressed]:
        """Turns the progress of a step that began then into replies, lets branches go on; returns
        all unsent ones.
        """
        now = self._clock()
        self.scheduler.tree.tick(now)
        for one in progress:
            self._delivery.take(one, began, now)
        self._expire(now)
        self._calls.let_compile(busy=not self.scheduler.idle)
        self._completion.ready += self._calls.compiled()
        self._runner.run_ready()
        return self._completion.take_replies()

    @property
    def is_compiling(self) -> bool:
        """A branch may go on without a message or a step: when its constraint is there."""
        return self._calls.is_compiling

    @property
    def next_deadline(self) -> float | None:
        """When the earliest call runs out of time."""
        return self._deadlines.next

    def _expire(self, now: float) -> None:
        for active, seconds in self._deadlines.expired(now):
            self._completion.fail(
                active,
                DeadlineExceeded(f"the call did not end within its timeout of {seconds:.3g} s."),
            )
