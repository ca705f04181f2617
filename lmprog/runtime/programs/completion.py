"""How things end: last replies, failures, spoiled branches, kept promises, and where a branch
stands afterwards.

The one place that makes "every call gets exactly one last reply" true. Interpreter and delivery
both end calls through it; it knows the scheduler's verbs for ending a sequence and for pins, and
nothing of ops or steps.
"""

from __future__ import annotations

from lmprog import wire
from lmprog.errors import Cancelled, LmprogError, RequestRejected
from lmprog.radix import Node
from lmprog.runtime.programs.active_call import ActiveCall, failed
from lmprog.runtime.programs.branch import BranchState, Promise, RuntimeBranch
from lmprog.runtime.programs.result_selection import RunningContest
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.scheduling.sequence import Sequence, SequenceState
from lmprog.transport import ClientId

Addressed = tuple[ClientId, wire.Reply]


class CallCompletion:
    """Replies wait in `outbox`; branches that something happened to wait in `ready` until the
    interpreter runs them.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.outbox: list[Addressed] = []
        self.ready: list[tuple[ClientId, RuntimeBranch]] = []

    def say(self, client: ClientId, reply: wire.Reply) -> None:
        """A reply that ends no call."""
        self.outbox.append((client, reply))

    def take_replies(self) -> list[Addressed]:
        """Empties the outbox."""
        replies, self.outbox = self.outbox, []
        return replies

    def forget(self, client: ClientId) -> None:
        """Nothing more is said to a client that is gone."""
        self.outbox = [one for one in self.outbox if one[0] != client]

    def reply(
        self, active: ActiveCall, reply: wire.Reply, outcome: list[str] | LmprogError
    ) -> None:
        """The last reply of a call, once. `outcome`: the texts that its promises get, or why there
        are none.
        """
        assert not active.replied, "a call gets one last reply"
        active.replied = True
        self.say(active.client, reply)
        stats = self.scheduler.stats
        if isinstance(outcome, LmprogError):
            stats.calls_failed += 1
        else:
            stats.calls_done += 1
        for index, promise in enumerate(active.promises):
            self.keep(
                active.client,
                promise,
                outcome if isinstance(outcome, LmprogError) else outcome[index],
            )
        if active.call is not None:
            active.branch.busy = False
        # The call may be referred to as long as its branch is open; only its promises are needed
        # for that.
        active.call, active.ballot = None, None
        active.streams, active.outputs = [], []
        active.keeper = None
        self.ready.append((active.client, active.branch))
        if active.contest is not None:
            self._enter(active.contest, active)

    def contest(self, entrants: list[ActiveCall], rule: wire.ContestRule) -> None:
        """Of these calls one is wanted; who has ended already is entered first."""
        made = RunningContest(rule, entrants)
        for active in entrants:
            active.contest = made
        for active in entrants:
            if active.replied:
                self._enter(made, active)

    def _enter(self, contest: RunningContest[ActiveCall], active: ActiveCall) -> None:
        """Ends those that lost because this call ended; their branches stand on nothing any
        more.
        """
        for loser in contest.enter(active, active.promises[0].text):
            self.fail(loser, Cancelled("another call of its contest has won."))
            self.stand(loser.branch, None)

    def fail(self, active: ActiveCall, error: LmprogError) -> None:
        """Ends a call with `error`, wherever it is.

        Its branch is spoiled: now, or when it would have reached the call, for what comes before is
        not at fault. A call that was refused spoils nothing: nothing of it was begun, and the
        program may try another.
        """
        if active.replied:
            return
        active.error = error
        if active.call is not None:
            for sequence in active.call.sequences:
                if sequence.state is not SequenceState.ENDED:
                    self.leave(sequence)
        if active.reached and not isinstance(error, RequestRejected):
            self.spoil(active.branch, error)
        self.reply(active, failed(active.id, error), error)

    def spoil(self, branch: RuntimeBranch, error: LmprogError) -> None:
        """Later calls of the branch fail with `error`; the first cause stays."""
        if branch.cause is None:
            branch.cause = error
        if branch.state is BranchState.UNBORN:
            branch.state = BranchState.OPEN

    def keep(self, client: ClientId, promise: Promise, outcome: str | LmprogError) -> None:
        """Keeps a promise, or says why it cannot be kept; who waited for it goes on."""
        if isinstance(outcome, LmprogError):
            promise.error = outcome
        else:
            promise.text = outcome
        self.ready += [(client, branch) for branch in promise.waiting]
        promise.waiting.clear()

    def leave(
        self, sequence: Sequence, keep: int | None = None, branch: RuntimeBranch | None = None
    ) -> None:
        """Ends a sequence, of whose tokens the first `keep` stay; `branch`, if any, stands where it
        ended.
        """
        node = self.scheduler.end(sequence, keep)
        if branch is not None:
            self.stand(branch, node)
        if node is not None:
            self.scheduler.unpin(node)

    def stand(self, branch: RuntimeBranch, node: Node | None) -> None:
        """Moves the branch's soft pin to `node`."""
        pins, old = self.scheduler.pins, branch.pin
        branch.pin = None if node is None else pins.hold(node, branch.program)
        if old is not None:
            pins.release(old)
