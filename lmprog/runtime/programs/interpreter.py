"""Runs programs: keeps each client's branches, queues their ops and carries them out, and turns
what steps bring into replies.

Every call gets exactly one last reply, whatever happens to it (`CallCompletion` ends them). An op
that cannot be carried out fails its branch; the branch's later calls fail with that error. A client
that vanishes leaves nothing behind.

The interpreter takes ops in and hands replies out, and owns the queue of branches that may go on;
the branch runner carries their ops out, each branch's in their order. Does not know who runs when.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Mapping, Sized
from concurrent.futures import Executor
from functools import cache, cached_property
from operator import itemgetter
from typing import TYPE_CHECKING

from lmprog import heap, wire
from lmprog.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidParameter,
    LmprogError,
    NotSupported,
    ProtocolError,
    RequestRejected,
    UnknownName,
)
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
    closed,
    unknown_branch,
)
from lmprog.runtime.programs.call_builder import CallBuilder, CallLimits, ServedModel, judging_of
from lmprog.runtime.programs.call_constraints import (
    CallConstraints,
    begin_constraint,
    begin_stops,
)
from lmprog.runtime.programs.clients import (
    MAX_BRANCHES,
    MOST_AT_ONCE,
    NOBODY,
    ActiveCall,
    ClientState,
    HostWork,
    PrefixNews,
    ReadyBranches,
    Run,
    failed,
    in_pieces,
    payer_of,
)
from lmprog.runtime.programs.delivery import Addressed, CallCompletion, Deadlines, Delivery
from lmprog.runtime.programs.early_texts import EarlyTexts
from lmprog.runtime.programs.long_texts import LONG, LongTexts, Spelling
from lmprog.runtime.programs.snapshot import SnapshotBuilder, runtime_figures
from lmprog.runtime.scheduling.logits_requests import Progress
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.scheduling.sequence import Client, SessionTurn
from lmprog.runtime.text.text_service import TextService
from lmprog.runtime.text.tokenizer import ChunkedEncoder, Cutter
from lmprog.transport import ClientId, Gone, Received, Unreadable

if TYPE_CHECKING:
    from lmprog.runtime.programs.beam_search import BeamCalls
    from lmprog.runtime.programs.judging import Asked


class Interpreter:
    """Clients, branches and calls. `handle` takes an op, `deliver` what a step brought."""

    def __init__(
        self,
        scheduler: Scheduler,
        model: ServedModel,
        constraints: CallConstraints | None,
        clock: Callable[[], float],
        rng: random.Random,
        tokenising: Executor | None = None,
        counters: Mapping[str, int] | None = None,
    ) -> None:
        """`rng` gives seeds to calls that name none. `tokenising` is a thread for texts that cannot
        be tokenised a part at a time. `counters`: the channel's own, reported with the others.
        """
        self.scheduler = scheduler
        self.clients: dict[ClientId, ClientState] = {}
        self._ready = ReadyBranches(scheduler.shares, clock)
        self._completion = CallCompletion(scheduler, self._ready)
        self._news = PrefixNews(self._completion.send)
        self._constraints = constraints
        """None: constraints are refused."""
        self._compiling: Sized = () if constraints is None else constraints.under_way
        tokenizer, vocab_size = model.tokenizer, model.welcome.vocab_size
        limits = CallLimits(vocab_size, scheduler.longest_sequence, scheduler.check_fits)
        service = TextService(tokenizer, vocab_size, limits.longest)
        encoder = ChunkedEncoder(tokenizer, Cutter(tokenizer))
        self._texts = texts = LongTexts(encoder, service, tokenising, scheduler.shares.work, clock)
        judged: list[Asked] = []
        judging = cache(lambda: judging_of(model, texts, limits, judged))
        forcing = constraints.forcing if constraints is not None and model.is_forcing else None
        calls = CallBuilder(model, limits, texts, forcing, rng, judging)
        self._work = work = HostWork(scheduler.shares, clock)
        send, is_open = self._completion.send, self.clients.__contains__
        self._spelling = Spelling(texts, work, send, is_open)
        delivery = Delivery(scheduler, self._completion, calls, model, encoder, judging, work)
        self._delivery = delivery
        self._runner = BranchRunner(scheduler, self._completion, delivery, calls, texts, model)
        self.welcome = model.welcome
        self._clock = clock
        self._counters = counters or {}
        self._deadlines = Deadlines()
        self._early = EarlyTexts(scheduler, texts, model, delivery.move_pin_to)
        self._works: list[tuple[Sized, Callable[[], object]]] = [
            (texts.under_way, lambda: texts.turn(self._ready.wake)),
            (judged, lambda: judging().turn()),
            (work.under_way, work.turn),
        ]
        """What goes on beside steps until it is done: what of it is under way, and its turn."""
        key, active = secrets.token_bytes(16), self._completion.active
        self._snapshots = SnapshotBuilder(scheduler, tokenizer, model.namespaces, active, key=key)
        self._num_programs = 0

    # --- from clients

    def handle(self, client_id: ClientId, op: Received) -> None:
        """Takes an op, for `go_on` to carry out. Never raises for a client's mistake."""
        if isinstance(op, Gone):
            self._forget_client(client_id)
        elif isinstance(op, wire.Hello):
            self._greet(client_id, op)
        elif isinstance(op, Unreadable):
            self._refuse(client_id, op)
        else:
            if (client := self.clients.get(client_id)) is None:
                client = self.clients[client_id] = ClientState()
            self._take(client_id, client, op)

    def go_on(self) -> None:
        """Branches carry out their ops, for a bounded time, and what they wait for is compiled."""
        if self._ready.waiting:
            self._ready.turn(self._runner.run)
        if self._compiling:
            self._compile()
            self._ready.turn(self._runner.run)

    def _compile(self) -> None:
        """Constraints are compiled further, and branches go on whose constraints are there."""
        constraints = self._constraints
        assert constraints is not None, "something is compiled"
        constraints.turn(busy=not self.scheduler.idle)
        for pending in constraints.collect(self.scheduler.shares.work):
            for branch in pending.waiting:
                self._ready.wake(branch)

    def _greet(self, client_id: ClientId, hello: wire.Hello) -> None:
        if hello.version != wire.PROTOCOL_VERSION:
            error = ProtocolError(
                f"the client speaks protocol {hello.version}, this runtime "
                f"{wire.PROTOCOL_VERSION}; install the same version of lmprog on both sides."
            )
            self._completion.send(client_id, failed(None, error))
            return
        self.clients.setdefault(client_id, ClientState())
        self._completion.send(client_id, self.welcome)

    def _refuse(self, client_id: ClientId, frame: Unreadable) -> None:
        """Nothing of the frame was carried out: its calls are answered, its branches fail."""
        client = self.clients.setdefault(client_id, ClientState())
        error = InvalidParameter(
            f"An op of this message has a value that is not allowed: {frame.reason}.", name="ops"
        )
        for number in frame.calls:
            if number not in client.calls:
                self._completion.send(client_id, failed(number, error))
        for number in frame.branches:
            if (branch := client.branches.get(number)) is not None:
                self._completion.fail_branch(branch, error)

    def _take(self, client_id: ClientId, client: ClientState, op: wire.Op) -> None:
        match op:
            case wire.Open():
                payer = payer_of(client_id, op.account)
                if (branch := self._new_branch(client, op.branch, op.salt, payer)) is not None:
                    self._num_programs += 1
                    branch.program, branch.weight = self._num_programs, op.weight
                    branch.turn = None if op.turn is None else SessionTurn(op.session, op.turn)
                    self._runner.open(branch, op)
            case wire.Fork():
                self._fork(client_id, client, op)
            case wire.Append(branch=number, pieces=pieces):
                grown = client.branches.get(number)
                self._ready.queue(grown, client.bind(pieces, self._ready))
                if op.early and grown is not None:
                    self._early.grow(grown)
            case wire.Generate() | wire.Select() | wire.Read():
                self._arrive(client_id, client, op)
            case wire.Close():
                self._close(client, op)
            case wire.Cancel(call=number):
                if (call := client.calls.get(number)) is not None:
                    self._cancel(call)
            case wire.Suspend():
                self._completion.suspend(client.calls.get(op.call), is_on=op.is_on)
            case wire.Contest():
                entrants = [client.calls[call] for call in op.calls if call in client.calls]
                self._completion.start_contest(entrants, op.rule)
            case wire.SharePrefix(keys=keys):
                self._news.share(client_id, keys)
            case wire.AwaitPrefixes(call=number):
                self._news.answer(client_id, number)
            case wire.Encode() | wire.Decode():
                self._spelling.ask(client_id, op)
            case wire.Describe() | wire.Inspect() | wire.Flush():
                self._completion.send(client_id, self._answer(client_id, op))

    def _answer(
        self, client_id: ClientId, op: wire.Describe | wire.Inspect | wire.Flush
    ) -> wire.Reply:
        """The reply to a call on no branch, which is answered at once."""
        try:
            match op:
                case wire.Inspect():
                    return self._snapshots.take(client_id, op, self._clock(), self.figures())
                case wire.Flush():
                    self.scheduler.tree.clear()
                    self.scheduler.tables.scored.clear()
                    if self._constraints is not None:
                        self._constraints.flush()
                    heap.collect()
            return wire.Described(op.call, self.figures(), self._snapshots.costs(self._constraints))
        except LmprogError as error:
            return failed(op.call, error)

    def figures(self) -> dict[str, float]:
        """Counters, and the state of tree, pages and queue right now."""
        constraints = self._constraints
        return {
            **runtime_figures(self.scheduler),
            **{f"channel_{name}": float(count) for name, count in self._counters.items()},
            "programs": float(self._num_programs),
            "open_branches": float(sum(len(client.branches) for client in self.clients.values())),
            "open_clients": float(len(self.clients)),
            **({} if constraints is None else constraints.seconds.figures("compile_seconds")),
        }

    # --- branches and calls

    def _new_branch(
        self, client: ClientState, number: int, salt: str, payer: Client
    ) -> RuntimeBranch | None:
        """None where the client has too many, or it is taken: then the branch that has it fails."""
        if number in client.branches:
            error = ProtocolError(f"branch {number} was opened twice.")
            self._completion.fail_branch(client.branches[number], error)
            return None
        if len(client.branches) >= MAX_BRANCHES:
            return None
        branch = client.branches[number] = RuntimeBranch(number, salt, payer=payer)
        self.scheduler.stats.branches += 1
        return branch

    def _fork(self, client_id: ClientId, client: ClientState, op: wire.Fork) -> None:
        parent = client.branches.get(op.branch)
        whose = ("", payer_of(client_id, ""))
        if parent is not None:
            whose = parent.salt, parent.payer  # known at once
        made = [self._new_branch(client, number, *whose) for number in op.children]
        children = tuple(child for child in made if child is not None)
        if parent is not None:
            self._ready.queue(parent, BoundFork(children, op.lora))
        else:
            for child in children:
                self._completion.fail_branch(child, unknown_branch(op.branch))

    def _arrive(
        self, client_id: ClientId, client: ClientState, op: wire.Generate | wire.Select | wire.Read
    ) -> None:
        branch = client.branch_of(op)
        if isinstance(branch, LmprogError):
            self._completion.send(client_id, failed(op.call, branch))
            return
        promises = [Promise()]
        if isinstance(op, wire.Generate) and op.keep == "first":
            promises += [Promise() for _ in range(op.sampling.n - 1)]
        call = ActiveCall(client_id, op, branch, tuple(promises))
        if isinstance(op, wire.Generate):
            owner = branch.payer, branch.salt
            if op.constraint is not None:
                call.constraint = begin_constraint(self._constraints, op, *owner)
            if op.sampling.stop_regex:
                call.stops = begin_stops(self._constraints, op, *owner)
        client.add(call)
        self.scheduler.stats.calls += 1
        if not isinstance(op, wire.Read) and op.timeout is not None:
            self._deadlines.add(call, self._clock(), op.timeout)
        self._ready.queue(branch, call)

    def _close(self, client: ClientState, op: wire.Close) -> None:
        """What others want of it is carried out before; who leaves with many branches shall not
        have them all tokenised.
        """
        branch = client.branches.pop(op.branch, None)
        if branch is None:
            return
        under_way = client.take_calls(op.branch)
        if branch.is_busy or not any(queued.is_for_others for queued in branch.queue):
            self._end(branch, under_way, op)
            return
        for call in under_way:
            call.ends_with = call.ends_with or closed(branch)
        self._ready.after(branch.payer, lambda: self._end(branch, under_way, op))

    def _cancel(self, call: ActiveCall) -> None:
        error = Cancelled("the call was cancelled.")
        if call.branch.is_busy:  # with it or with an earlier one
            self._completion.fail(call, error)
        else:
            call.ends_with = call.ends_with or error
            self._ready.after(call.branch.payer, lambda: self._completion.fail(call, error))

    def _end(self, branch: RuntimeBranch, under_way: list[ActiveCall], op: wire.Close) -> None:
        if under_way or branch.queue:
            pieces = self._completion.cancel_all(branch, under_way)
            self._work.begin_at_once(branch.payer, pieces)
        branch.state = BranchState.CLOSED
        self._completion.let_go(branch, op.forget)
        if op.next is not None:
            self._early.next_turns.expect(branch, op.next)

    def _forget_client(self, client_id: ClientId) -> None:
        client = self.clients.pop(client_id, None)
        if client is None:
            return
        self._news.forget(client_id)
        self._completion.drop_client(client_id)
        for call in client.calls.values():
            call.client = NOBODY

        def close(branch: RuntimeBranch) -> None:
            self._end(branch, client.take_calls(branch.id), wire.Close(branch.id))

        branches = list(client.branches.values())
        if branches:
            self._work.begin_at_once(branches[0].payer, in_pieces(close, branches))

    # --- what a step brought

    def deliver(self, progress: list[Progress], began: float) -> list[Addressed]:
        """Turns the progress of a step that began then into replies and lets branches go on. All
        unsent replies.
        """
        now = self._clock()
        if self._early.under_way:
            self._early.deliver(progress)
        for one in progress:
            before = self._clock() if one.ended else now
            self._delivery.deliver(one, began, now)
            if one.ended:  # what is delivered of others is alike for all rows
                self.scheduler.shares.work(one.sequence.group.client, self._clock() - before)
        if self._deadlines.under_way:
            self._expire(now)
        for under_way, go_on in self._works:
            if under_way:
                go_on()
        if self._ready.waiting:
            self._ready.turn(self._runner.run)
        return self._completion.take_replies()

    def _expire(self, now: float) -> None:
        for call, seconds in self._deadlines.expired(now):
            message = f"the call did not end within its timeout of {seconds:.3g} s."
            self._completion.fail(call, DeadlineExceeded(message))

    @property
    def awaits_thread(self) -> bool:
        """A branch may go on without a message or a step: when a thread has ended its work."""
        return bool(self._compiling) or any(map(itemgetter(0), self._works))

    @property
    def is_working(self) -> bool:
        """A long text is tokenised further in the next step, or the host has other work."""
        texts, early = self._texts, self._early
        is_early = (early.grown or early.has_next) and early.is_waiting and self.scheduler.idle
        is_tokenising = bool(texts.under_way) and texts.is_busy
        return bool(is_tokenising or is_early or self._work.under_way or self._ready.waiting)

    @property
    def next_deadline(self) -> float | None:
        """When the earliest call runs out of time."""
        return self._deadlines.next


class BranchRunner:
    """Runs one branch at a time; keeps nothing of its own."""

    def __init__(
        self,
        scheduler: Scheduler,
        completion: CallCompletion,
        delivery: Delivery,
        calls: CallBuilder,
        texts: LongTexts,
        model: ServedModel,
    ) -> None:
        self._scheduler = scheduler
        self._completion = completion
        self._delivery = delivery
        self._calls = calls
        self._texts = texts
        self._model = model

    def open(self, branch: RuntimeBranch, op: wire.Open) -> None:
        """Opens an empty branch, with the model and the adapter that it asks for."""
        branch.open()
        try:
            if op.model or op.served_name:
                self._model.check(op)
            if op.lora:
                branch.adapter = self._model.adapters.find(op.lora)
        except LmprogError as error:
            self._completion.fail_branch(branch, error)

    def run(self, branch: RuntimeBranch, now: float) -> bool:
        """Carries out the branch's ops until one must wait: for its call, or for what is not known
        yet. Then the branch is woken up when it may go on. True: it may already, and others first.
        """
        num_left = MOST_AT_ONCE
        while branch.state is BranchState.OPEN and branch.queue and not branch.is_busy:
            if not num_left:
                return True
            num_left -= 1
            op = branch.queue[0]
            missing = self._missing(branch, op)
            if missing is not None:
                missing.waiting.append(branch)
                return False
            branch.queue.popleft()
            try:
                self._carry_out(branch, op, now)
            except LmprogError as error:
                self._completion.fail_branch(branch, error)
        return False

    def _missing(self, branch: RuntimeBranch, op: QueuedOp) -> Awaited | None:
        """What the op must wait for; a branch that has failed waits for nothing."""
        if branch.failure is not None:
            return None
        missing = op.missing()
        if missing is None and op.needs_tokens:
            endings = op.endings
            if endings or len(branch.pending) > LONG:
                return self._texts.missing(branch, endings)
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
                self._texts.tokenise_certain(branch)
            except LmprogError as error:  # the children are opened all the same, and fail with it
                self._completion.fail_branch(branch, error)
        unknown, adapter = None, branch.adapter
        try:
            if fork.lora is not None:
                adapter = self._model.adapters.find(fork.lora)
        except UnknownName as error:
            unknown = error
        # keys and values of another adapter are of no use to the children
        shares = adapter == branch.adapter
        if len(fork.children) > MOST_AT_ONCE:
            branch.queue.appendleft(BoundFork(fork.children[MOST_AT_ONCE:], fork.lora))
        for child in fork.children[:MOST_AT_ONCE]:
            if child.state is BranchState.PENDING:
                child.open(branch)
                child.adapter = adapter
                self._completion.move_pin(child, branch.pin.node if branch.pin and shares else None)
                self._scheduler.stats.forks += 1
                self._scheduler.stats.fork_shared_tokens += len(branch.tokens) if shares else 0
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
                self._texts.check_length(branch)
                tokens, text = self._texts.service.tokens_of(piece)
                encoder, piece_of = self._texts.encoder, self._model.tokenizer.token_bytes
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
                branch.begin_role(role, self._model.template())
            case wire.RoleEnd(role=role):
                branch.end_role(role, self._model.template())
            case wire.Conversation():
                guard = self._texts.service.guard
                written = self._model.template().converse(
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
                self._delivery.begin(call, self._run_of(call, now), now)
        except LmprogError as error:
            self._completion.fail(call, error)
        if call.ends_with is not None:
            self._completion.fail(call, call.ends_with)

    def _run_of(self, call: ActiveCall, now: float) -> Run:
        op = call.op
        if isinstance(op, wire.Generate) and op.sampling.beams is not None:
            return self._beams.build(call, op, op.sampling.beams, now)
        return self._calls.build(call, now)

    @cached_property
    def _beams(self) -> BeamCalls:
        """Made when the first call has beams."""
        from lmprog.runtime.programs.beam_search import BeamCalls

        return BeamCalls(
            self._scheduler, self._calls, self._completion, self._delivery, self._model.tokenizer
        )

    def _read(self, call: ActiveCall) -> None:
        branch = call.branch
        self._texts.check_length(branch)
        text = branch.text()
        tokens = branch.tokens_with(self._texts.encoder)
        wanted = tuple(tokens) if isinstance(call.op, wire.Read) and call.op.with_tokens else ()
        self._completion.finish(call, wire.TextIs(call.id, text, len(tokens), wanted), [text])
