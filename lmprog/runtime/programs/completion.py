"""Completes calls: exactly one last reply each, and the state in which their branches are left.
Also knows which calls run out of time, and when.

The only module that ends calls; interpreter and delivery end them through it. Knows the scheduler's
verbs for ending a sequence and for pins; does not know ops or steps, and has no clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from lmprog import wire
from lmprog.errors import Cancelled, LmprogError, RequestRejected, UnknownName
from lmprog.radix import Node
from lmprog.runtime.programs.active_call import (
    ActiveCall,
    GenerateRun,
    Run,
    SelectRun,
    failed,
)
from lmprog.runtime.programs.branch import BranchState, Promise, RuntimeBranch, letters
from lmprog.runtime.programs.result_selection import RunningContest
from lmprog.runtime.scheduling import sequence as sequences
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.text.special_tokens import Passage
from lmprog.transport import ClientId

Addressed = tuple[ClientId, wire.Reply]


class CallCompletion:
    """Owns the outbox of replies, and knows which call each group in the scheduler belongs to."""

    def __init__(self, scheduler: Scheduler, wake: Callable[[RuntimeBranch], None]) -> None:
        self._scheduler = scheduler
        self.wake = wake
        """Called with each branch that may go on."""
        self._outbox: list[Addressed] = []
        self.active: dict[sequences.SequenceGroup, ActiveCall] = {}
        """The call of each group in the scheduler."""

    def send(self, client: ClientId, reply: wire.Reply) -> None:
        """A reply that completes no call of a branch."""
        self._outbox.append((client, reply))

    def take_replies(self) -> list[Addressed]:
        """Empties the outbox."""
        replies, self._outbox = self._outbox, []
        return replies

    def drop_client(self, client: ClientId) -> None:
        """Drops the unsent replies of a client that is gone."""
        self._outbox = [one for one in self._outbox if one[0] != client]

    # --- calls

    def submit(self, call: ActiveCall, run: Run) -> None:
        """Hands a built call to the scheduler; calls of others may lose their places to it. Raises
        `Overloaded`; then nothing was done.
        """
        displaced = self._scheduler.submit(run.group)
        self.active[run.group] = call
        call.run = run
        call.branch.is_busy = True
        for group in displaced:
            self.fail(self.active[group], self._scheduler.waiting.full())

    def continue_with(self, call: ActiveCall, group: sequences.SequenceGroup) -> None:
        """A gen whose sequences have ended goes on with those of `group`. Raises `Overloaded`."""
        assert call.run is not None, "only a submitted call goes on"
        self._scheduler.submit(group)
        group.sequences[:0] = call.run.group.sequences
        del self.active[call.run.group]
        self.active[group] = call
        call.run.group = group

    def finish(self, call: ActiveCall, reply: wire.Reply, texts: Sequence[str]) -> None:
        """Completes a call with its result; `texts` are what its promises resolve to."""
        self._scheduler.stats.calls_done += 1
        self._complete(call, reply, texts)

    def fail(self, call: ActiveCall, error: LmprogError) -> None:
        """Completes a call with `error`, wherever it is; nothing happens where it is done already.

        Its branch fails too: now, or when it would have come to the call, since what precedes is
        not at fault. A call that was refused leaves its branch usable: nothing of it was begun, and
        the program may try another.
        """
        if call.is_done:
            return
        call.error = error.with_traceback(None)  # else what it keeps would keep the frames as well
        if call.run is not None:
            for sequence in call.run.group.sequences:
                if sequence.state is not sequences.SequenceState.ENDED:
                    self.end_sequence(sequence)
            if not isinstance(call.run, GenerateRun | SelectRun):
                call.run.let_go()
        if call.is_reached and not isinstance(error, RequestRejected):
            self.fail_branch(call.branch, error)
        self._scheduler.stats.calls_failed += 1
        self._complete(call, failed(call.id, error), error)

    def _complete(
        self, call: ActiveCall, reply: wire.Reply, outcome: Sequence[str] | LmprogError
    ) -> None:
        assert not call.is_done, "a call gets one last reply"
        call.is_done = True
        for pending in call.compiled:
            pending.let_go()
        self.send(call.client, reply)
        for index, promise in enumerate(call.promises):
            if isinstance(outcome, LmprogError):
                self.resolve(promise, outcome)
            elif index < len(outcome):
                self.resolve(promise, outcome[index])
            else:  # a constraint may allow fewer texts than were asked for
                error = UnknownName(f"call {call.id} has {len(outcome)} results.", name=str(index))
                self.resolve(promise, error)
        if call.run is not None:
            del self.active[call.run.group]
            call.branch.is_busy = False
            call.run = None
        self.wake(call.branch)
        if call.contest is not None:
            self._enter(call.contest, call)

    def resolve(self, promise: Promise, outcome: str | Passage | LmprogError) -> None:
        """Gives a promise a result, a branch's text or its error; the branches that waited for it
        go on.
        """
        if isinstance(outcome, LmprogError):
            promise.error = outcome
        else:
            promise.passage = letters(outcome) if isinstance(outcome, str) else outcome
        for branch in promise.waiting:
            self.wake(branch)
        promise.waiting.clear()

    # --- contests

    def start_contest(self, entrants: list[ActiveCall], rule: wire.ContestRule) -> None:
        """One of these calls is wanted; those that have ended already are entered first."""
        contest = RunningContest(rule, entrants)
        for call in entrants:
            call.contest = contest
        for call in entrants:
            if call.is_done:
                self._enter(contest, call)

    def _enter(self, contest: RunningContest[ActiveCall], call: ActiveCall) -> None:
        """Ends the calls that lost because `call` ended; their branches give up their pins."""
        won = call.promises[0].passage
        constraint = call.op.constraint if isinstance(call.op, wire.Generate) else None
        text = None if won is None else wire.compared(won.text, constraint)
        for loser in contest.enter(call, text):
            self.fail(loser, Cancelled("another call of its contest has won."))
            self.move_pin(loser.branch, None)

    # --- branches

    def fail_branch(self, branch: RuntimeBranch, error: LmprogError) -> None:
        """Later calls of the branch fail with `error`; the first failure counts. It keeps no
        frames: it is raised again for each of these calls, and would keep those too.
        """
        if branch.failure is None:
            branch.failure = error.with_traceback(None)
        if branch.state is BranchState.PENDING:
            branch.state = BranchState.OPEN
        self.wake(branch)

    def end_sequence(
        self,
        sequence: sequences.Sequence,
        keep: int | None = None,
        branch: RuntimeBranch | None = None,
    ) -> None:
        """Ends a sequence, of whose tokens the first `keep` (None: all) stay cached.

        The pin of `branch`, if one is given, moves to where the sequence ended.
        """
        node = self._scheduler.end(sequence, keep)
        if branch is not None:
            self.move_pin(branch, node)
        if node is not None:
            self._scheduler.unpin(node)

    def let_go(self, branch: RuntimeBranch, forget: bool) -> None:
        """Gives up the branch's pin, and with `forget` what only it stood on."""
        pin = branch.pin
        self.move_pin(branch, None)
        if pin is not None and forget:
            self._scheduler.forget(pin.node, branch.fork_len)

    def move_pin(self, branch: RuntimeBranch, node: Node | None) -> None:
        """Moves the branch's soft pin to `node`; None gives it up."""
        pins, old = self._scheduler.pins, branch.pin
        branch.pin = None if node is None else pins.pin(node, branch.program)
        if old is not None:
            pins.unpin(old)


class Deadlines:
    """Calls by the moment at which their time is up."""

    def __init__(self) -> None:
        self.under_way: list[tuple[float, int, ActiveCall, float]] = []
        """A heap."""
        self._num_added = 0
        self._sweep_above = 64

    def add(self, call: ActiveCall, now: float, seconds: float) -> None:
        """`call` has `seconds` from `now` on."""
        self._num_added += 1
        heapq.heappush(self.under_way, (now + seconds, self._num_added, call, seconds))
        if len(self.under_way) > self._sweep_above:
            self.under_way = [entry for entry in self.under_way if not entry[2].is_done]
            heapq.heapify(self.under_way)
            self._sweep_above = max(64, 2 * len(self.under_way))

    @property
    def next(self) -> float | None:
        """When the next call runs out of time; None where no call has a deadline."""
        while self.under_way and self.under_way[0][2].is_done:
            heapq.heappop(self.under_way)
        return self.under_way[0][0] if self.under_way else None

    def expired(self, now: float) -> list[tuple[ActiveCall, float]]:
        """Takes out the calls whose time is up, each with the seconds it had."""
        found = []
        while self.under_way and self.under_way[0][0] <= now:
            _, _, call, seconds = heapq.heappop(self.under_way)
            if not call.is_done:
                found.append((call, seconds))
        return found
