"""The clients of a runtime: what each one has open, what waits to be handled, what they tell each
other.

A client's ops are handled in their order. Of the clients that have ops, the one goes next whose ops
have taken the least time, so that a client that sends many or costly ops delays itself and not the
others. A client that begins to send again has no credit for the time in which it sent nothing.

Clients tell each other of the programs that they send here: fleets, mostly, which lead programs to
where their prefixes are. Keys are passed on, whatever they stand for.

Knows clients, their numbers and seconds; does not know what ops mean, and runs nothing.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from lmprog import wire
from lmprog.errors import Overloaded, UnknownName
from lmprog.runtime.programs.active_call import ActiveCall
from lmprog.runtime.programs.branch import Promise, RuntimeBranch
from lmprog.transport import ClientId, Gone, Received

MAX_BRANCHES = 65_536
"""Open branches of one client."""
MAX_CALLS = 65_536
"""Calls of one client on open branches, done or not."""
MOST_UNTOLD = 4096
"""Programs that are kept for a client that does not ask; the oldest go first."""


@dataclass(eq=False, slots=True)
class _ClientOps:
    client: ClientId
    ops: deque[tuple[int, Received]] = field(default_factory=deque)
    """With their numbers in the order of arrival."""
    spent: float = 0.0
    """Seconds that its ops have taken; raised to what others had spent when it began to send."""
    is_queued: bool = False
    is_gone: bool = False
    """Its last message says that it is gone."""


class Inbox:
    """Waiting ops by client. After each `next` comes a `done`."""

    def __init__(self) -> None:
        self._clients: dict[ClientId, _ClientOps] = {}
        self._heap: list[tuple[float, int, _ClientOps]] = []
        self._num_arrived = 0
        self._least_spent = 0.0
        """What the client of the last op had spent before it: none that waited had spent less."""
        self.num_ops = 0

    def add(self, messages: Iterable[tuple[ClientId, Received]]) -> None:
        """Of a client that is gone only that is kept: nobody waits for its other ops."""
        for client, message in messages:
            one = self._clients.get(client)
            if one is None:
                one = self._clients[client] = _ClientOps(client)
            if isinstance(message, Gone):
                self.num_ops -= len(one.ops)
                one.ops.clear()
            one.is_gone = isinstance(message, Gone)
            self._num_arrived += 1
            self.num_ops += 1
            one.ops.append((self._num_arrived, message))
            if not one.is_queued:
                one.spent = max(one.spent, self._least_spent)
                self._queue(one)

    def next(self) -> tuple[ClientId, Received] | None:
        """The next op and its client; None where no op waits."""
        if not self._heap:
            return None
        one = heapq.heappop(self._heap)[2]
        self.num_ops -= 1
        self._least_spent = one.spent
        return one.client, one.ops.popleft()[1]

    def done(self, client: ClientId, seconds: float) -> None:
        """The op that `next` gave for `client` took that long."""
        one = self._clients[client]
        one.spent += seconds
        one.is_queued = False
        if one.ops:
            self._queue(one)
        elif one.is_gone:
            del self._clients[client]

    def _queue(self, one: _ClientOps) -> None:
        one.is_queued = True
        heapq.heappush(self._heap, (one.spent, one.ops[0][0], one))


@dataclass(slots=True)
class ClientState:
    """What one client has open. A call is known as long as its branch is open: under way, or done
    and still to be referred to.
    """

    branches: dict[int, RuntimeBranch] = field(default_factory=dict)
    calls: dict[int, ActiveCall] = field(default_factory=dict)
    _calls_of: dict[int, list[ActiveCall]] = field(default_factory=dict)
    """By the number of their branch."""

    def add(self, call: ActiveCall) -> None:
        """A call on an open branch."""
        self.calls[call.id] = call
        self._calls_of.setdefault(call.branch.id, []).append(call)

    def take_calls(self, branch: int) -> list[ActiveCall]:
        """Takes out all calls of a branch, done or not."""
        taken = self._calls_of.pop(branch, [])
        for call in taken:
            del self.calls[call.id]
        return taken

    def missing_branch(self, number: int) -> UnknownName | Overloaded:
        """Why there is no branch of that number: it is not open, or there was no room for it."""
        if len(self.branches) < MAX_BRANCHES:
            return unknown_branch(number)
        return Overloaded(
            f"branch {number} is not open, and this client has {len(self.branches):,} open "
            f"branches of at most {MAX_BRANCHES:,}; close some, or use several clients.",
            retry_after=1.0,
        )

    def promise(self, ref: wire.Ref) -> Promise:
        """The text that `ref` refers to; one with an error where there is no such call or
        result.
        """
        call = self.calls.get(ref.call)
        if call is None or ref.index >= len(call.promises):
            error = UnknownName(
                f"text refers to call {ref.call}, which is not known.", name=str(ref.call)
            )
            return Promise(error=error)
        return call.promises[ref.index]


def unknown_branch(number: int) -> UnknownName:
    """The error for a branch that is not open."""
    return UnknownName(f"branch {number} is not open.", name=str(number))


class PrefixNews:
    """`send` hands a reply to a client."""

    def __init__(self, send: Callable[[ClientId, wire.Reply], None]) -> None:
        self._send = send
        self._untold: dict[ClientId, deque[tuple[int, ...]]] = {}
        """Of clients that have ever asked."""
        self._waiting: dict[ClientId, int] = {}
        """Their calls that wait for the next program."""

    def share(self, client: ClientId, keys: tuple[int, ...]) -> None:
        """A program that the client has sent: for all others that have ever asked."""
        for other, untold in self._untold.items():
            if other == client:
                continue
            untold.append(keys)
            call = self._waiting.pop(other, None)
            if call is not None:
                self.answer(other, call)

    def answer(self, client: ClientId, call: int) -> None:
        """Tells what the client does not know yet, now or with the next program."""
        untold = self._untold.setdefault(client, deque(maxlen=MOST_UNTOLD))
        if not untold:
            self._waiting[client] = call
            return
        self._send(client, wire.PrefixesAre(call, tuple(untold)))
        untold.clear()

    def forget(self, client: ClientId) -> None:
        """The client is gone."""
        self._untold.pop(client, None)
        self._waiting.pop(client, None)
