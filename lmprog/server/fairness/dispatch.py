"""Sends calls of several keys to the runtime in fair order, no more at once than it computes.

The runtime gets at most `window` results; the rest waits here, in a weighted fair queue by key
(start-time fair queueing), where long lists of choices cost more than one result. However much
others have there, a key may have its part of the window, by the weights of those that have or want
anything: whose rows and memory these get is the scheduler's matter, and who waits here would wait
for whole calls to end. Large requests are sent in pieces, so that none of them holds up another key
for long. What costs nothing is sent in its order, too. Knows ops and their costs; knows no
connection.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from lmprog import wire
from lmprog.errors import LmprogError

Item = TypeVar("Item")
PIECE = 16
"""What one piece costs, if it holds more than one call."""
CHOICE_CHARACTERS = 400
"""Characters of a selection's choices that cost as much as a result: some hundred tokens."""
_SHORTEST_TIMEOUT = 0.001


class FairQueue(Generic[Item]):
    """Items of flows. Items of one flow leave in their order."""

    def __init__(self) -> None:
        self.flows: dict[Hashable, deque[tuple[float, int, Item]]] = {}
        """What waits of each, with its start tag and its number in the order of arrival."""
        self._order = itertools.count()
        self._now = 0.0  # virtual time: the start tag of the last item that left
        self._ends: dict[Hashable, float] = {}

    def __len__(self) -> int:
        return sum(map(len, self.flows.values()))

    def __iter__(self) -> Iterator[Item]:
        """All items, in no order."""
        return (item for flow in self.flows.values() for _, _, item in flow)

    def push(self, flow: Hashable, weight: float, cost: float, item: Item) -> None:
        start = max(self._now, self._ends.get(flow, 0.0))
        self._ends[flow] = start + cost / weight
        self.flows.setdefault(flow, deque()).append((start, next(self._order), item))

    def first(self, may_leave: Callable[[Hashable], bool]) -> Hashable:
        """The flow of the next item, of those that may; None where there is none."""
        flows = filter(may_leave, self.flows)
        return min(flows, key=lambda flow: self.flows[flow][0][:2], default=None)

    def pop(self, flow: Hashable) -> Item:
        """The first item of a flow. Raises KeyError where there is none."""
        items = self.flows[flow]
        start, _, item = items.popleft()
        if not items:
            del self.flows[flow]
        self._now = max(self._now, start)
        if len(self._ends) > 2 * len(self.flows) + 64:
            self._ends = {one: end for one, end in self._ends.items() if end > self._now}
        return item


class Flow(Protocol):
    """Whose ops they are: those of one `name` share a queue."""

    @property
    def name(self) -> str: ...

    @property
    def weight(self) -> float: ...


class Outlet(Protocol):
    """Where the pieces of one request go."""

    def send_now(self, ops: Sequence[wire.Op]) -> None: ...

    def fail(self, error: Exception) -> None: ...


@dataclass(frozen=True, slots=True)
class Piece:
    outlet: Outlet
    flow: Flow
    ops: tuple[wire.Op, ...]
    cost: int
    queued_at: float


class Dispatcher:
    """Belongs to the event loop's thread."""

    def __init__(self, window: int, clock: Callable[[], float]) -> None:
        self._window = window
        self._clock = clock
        self._queue: FairQueue[Piece] = FairQueue()
        self._waiting: dict[Outlet, int] = {}  # pieces of each outlet that are queued
        self._gone: set[Outlet] = set()  # left with pieces queued
        self._sent: dict[int, tuple[int, str]] = {}  # call -> its results in the runtime, and flow
        self._held: dict[Hashable, int] = {}  # flow -> results that the runtime has of it
        self._weights: dict[Hashable, float] = {}
        self._in_runtime = 0

    @property
    def in_runtime(self) -> int:
        return self._in_runtime

    def put(self, outlet: Outlet, flow: Flow, ops: Sequence[wire.Op]) -> None:
        """Sends `ops` in their order, when it is their turn."""
        now = self._clock()
        self._weights[flow.name] = flow.weight
        if len(self._weights) > 2 * (len(self._held) + len(self._queue.flows)) + 64:
            kept = {*self._held, *self._queue.flows, flow.name}
            self._weights = {one: self._weights[one] for one in kept}
        for piece in _pieces(outlet, flow, ops, now):
            self._waiting[outlet] = self._waiting.get(outlet, 0) + 1
            self._queue.push(flow.name, flow.weight, piece.cost, piece)
        self._send()

    def ended(self, call: int) -> None:
        """The runtime has nothing of `call` any more."""
        if call in self._sent:
            self._count(*self._sent.pop(call), -1)
        self._send()

    def leave(self, outlet: Outlet) -> frozenset[int]:
        """Forgets what is queued for `outlet`; the branches that were never opened."""
        if outlet not in self._waiting:
            return frozenset()
        self._gone.add(outlet)
        queued = [piece for piece in self._queue if piece.outlet is outlet]
        return frozenset(
            number
            for piece in queued
            for op in piece.ops
            for number in ((op.branch,) if isinstance(op, wire.Open) else getattr(op, "into", ()))
        )

    def clear(self) -> None:
        """The runtime is gone, and with it all requests."""
        self._queue = FairQueue()
        self._waiting.clear()
        self._gone.clear()
        self._sent.clear()
        self._held.clear()
        self._in_runtime = 0

    def _next(self) -> Piece | None:
        """What is sent now, if anything."""
        if not self._queue.flows:
            return None
        if self._in_runtime < self._window:
            flow = self._queue.first(lambda _: True)
        else:
            weights, held = self._weights, self._held
            part = self._window / sum(weights[one] for one in {*held, *self._queue.flows})
            flow = self._queue.first(lambda one: held.get(one, 0) < part * weights[one])
        return None if flow is None else self._queue.pop(flow)

    def _send(self) -> None:
        while (piece := self._next()) is not None:
            outlet = piece.outlet
            self._waiting[outlet] -= 1
            if not self._waiting[outlet]:
                del self._waiting[outlet]
            is_gone = outlet in self._gone
            if is_gone:
                if outlet not in self._waiting:
                    self._gone.discard(outlet)
                continue
            self._note(piece)
            try:
                outlet.send_now(_timed(piece, self._clock()))
            except LmprogError as error:
                outlet.fail(error)

    def _note(self, piece: Piece) -> None:
        for op in piece.ops:
            results = results_of(op)
            if results and isinstance(op, wire.Generate | wire.Select):
                self._sent[op.call] = results, piece.flow.name
                self._count(results, piece.flow.name, 1)

    def _count(self, results: int, flow: str, sign: int) -> None:
        """The runtime has so many results more of the flow, or fewer."""
        self._in_runtime += sign * results
        left = self._held.pop(flow, 0) + sign * results
        if left:
            self._held[flow] = left


def results_of(op: wire.Op) -> int:
    """Results that `op` asks for, or texts that its beam search compares."""
    match op:
        case wire.Generate(sampling=sampling):
            return sampling.num_sequences
        case wire.Select():
            return 1
    return 0


def cost_of(op: wire.Op) -> int:
    """What `op` costs its key: its results, and more where it has long choices."""
    if isinstance(op, wire.Select):
        return 1 + sum(map(len, op.choices)) // CHOICE_CHARACTERS
    return results_of(op)


def _pieces(outlet: Outlet, flow: Flow, ops: Sequence[wire.Op], now: float) -> Iterator[Piece]:
    taken: list[wire.Op] = []
    cost = 0
    for op in ops:
        taken.append(op)
        cost += cost_of(op)
        if cost >= PIECE:
            yield Piece(outlet, flow, tuple(taken), cost, now)
            taken, cost = [], 0
    if taken:
        yield Piece(outlet, flow, tuple(taken), cost, now)


def _timed(piece: Piece, now: float) -> tuple[wire.Op, ...]:
    """The ops with what is left of their timeouts: waiting here counts."""
    waited = now - piece.queued_at
    if waited <= 0.0:
        return piece.ops
    return tuple(
        msgspec.structs.replace(op, timeout=max(_SHORTEST_TIMEOUT, op.timeout - waited))
        if isinstance(op, wire.Generate | wire.Select) and op.timeout is not None
        else op
        for op in piece.ops
    )
