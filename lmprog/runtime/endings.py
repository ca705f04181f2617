"""How things end: last replies, failures, spoiled branches, kept promises, and where a branch stands afterwards.

The one place that makes "every call gets exactly one last reply" true. Interpreter and delivery both end calls
through it; it knows the scheduler's verbs for ending a lane and for pins, and nothing of ops or steps.
"""

from __future__ import annotations

from lmprog import wire
from lmprog.errors import Cancelled, LmprogError, RequestRejected
from lmprog.radix import Node
from lmprog.runtime.branch import Branch, BranchState, Promise
from lmprog.runtime.keeping import Contest
from lmprog.runtime.ongoing import Ongoing, failed
from lmprog.runtime.request import Lane, LaneState
from lmprog.runtime.scheduler import Scheduler
from lmprog.transport import ClientId

Addressed = tuple[ClientId, wire.Reply]


class Endings:
    """Replies wait in `outbox`; branches that something happened to wait in `ready` until the interpreter runs them."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.outbox: list[Addressed] = []
        self.ready: list[tuple[ClientId, Branch]] = []

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

    def reply(self, ongoing: Ongoing, reply: wire.Reply, outcome: list[str] | LmprogError) -> None:
        """The last reply of a call, once. `outcome`: the texts that its promises get, or why there are none."""
        assert not ongoing.replied, "a call gets one last reply"
        ongoing.replied = True
        self.say(ongoing.client, reply)
        stats = self.scheduler.stats
        if isinstance(outcome, LmprogError):
            stats.calls_failed += 1
        else:
            stats.calls_done += 1
        for index, promise in enumerate(ongoing.promises):
            self.keep(ongoing.client, promise, outcome if isinstance(outcome, LmprogError) else outcome[index])
        if ongoing.call is not None:
            ongoing.branch.busy = False
        # The call may be referred to as long as its branch is open; only its promises are needed for that.
        ongoing.call, ongoing.ballot = None, None
        ongoing.streams, ongoing.outputs = [], []
        ongoing.keeper = None
        self.ready.append((ongoing.client, ongoing.branch))
        if ongoing.contest is not None:
            self._enter(ongoing.contest, ongoing)

    def contest(self, entrants: list[Ongoing], rule: wire.ContestRule) -> None:
        """Of these calls one is wanted; who has ended already is entered first."""
        made = Contest(rule, entrants)
        for ongoing in entrants:
            ongoing.contest = made
        for ongoing in entrants:
            if ongoing.replied:
                self._enter(made, ongoing)

    def _enter(self, contest: Contest[Ongoing], ongoing: Ongoing) -> None:
        """Ends those that lost because this call ended; their branches stand on nothing any more."""
        for loser in contest.enter(ongoing, ongoing.promises[0].text):
            self.fail(loser, Cancelled("another call of its contest has won."))
            self.stand(loser.branch, None)

    def fail(self, ongoing: Ongoing, error: LmprogError) -> None:
        """Ends a call with `error`, wherever it is.

        Its branch is spoiled: now, or when it would have reached the call, for what comes before is not at fault. A
        call that was refused spoils nothing: nothing of it was begun, and the program may try another.
        """
        if ongoing.replied:
            return
        ongoing.error = error
        if ongoing.call is not None:
            for lane in ongoing.call.lanes:
                if lane.state is not LaneState.ENDED:
                    self.leave(lane)
        if ongoing.reached and not isinstance(error, RequestRejected):
            self.spoil(ongoing.branch, error)
        self.reply(ongoing, failed(ongoing.id, error), error)

    def spoil(self, branch: Branch, error: LmprogError) -> None:
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

    def leave(self, lane: Lane, keep: int | None = None, branch: Branch | None = None) -> None:
        """Ends a lane, of whose tokens the first `keep` stay; `branch`, if any, stands where it ended."""
        node = self.scheduler.end(lane, keep)
        if branch is not None:
            self.stand(branch, node)
        if node is not None:
            self.scheduler.unpin(node)

    def stand(self, branch: Branch, node: Node | None) -> None:
        """Moves the branch's soft pin to `node`."""
        pins, old = self.scheduler.pins, branch.pin
        branch.pin = None if node is None else pins.hold(node, branch.program)
        if old is not None:
            pins.release(old)
