"""Ops that have been received and not handled yet, and whose turn it is: fair between clients.

A client's ops are handled in their order. Of the clients that have ops, the one goes next whose ops
have taken the least time, so that a client that sends many or costly ops delays itself and not the
others. A client that begins to send again has no credit for the time in which it sent nothing.

Knows clients and seconds; does not know what ops mean.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from lmprog.transport import ClientId, Gone, Received


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
