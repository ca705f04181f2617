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
from heapq import heapify, heappop, heappush
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
    """Items of flows. Items of one flow leave in their order. None of its verbs looks at all flows,
    which may be as many as there are addresses.
    """

    def __init__(self) -> None:
        self.flows: dict[Hashable, deque[tuple[float, int, Item]]] = {}
        """What waits of each, with its start tag and its number in the order of arrival."""
        self._order = itertools.count()
        self._now = 0.0  # virtual time: the start tag of the last item that left
        self._ends: dict[Hashable, float] = {}
        self._most_ends = 64
        self._heads: list[tuple[float, int, Hashable]] = []
        """A heap of the first items of all flows; some that have left are still there ..."""
        self._may_leave: list[tuple[float, int, Hashable]] = []
        """... and one without those that were found to be set aside ..."""
        self._aside: list[tuple[float, int, Hashable]] = []
        """... which are here, by what was held of them then."""

    def __len__(self) -> int:
        return sum(map(len, self.flows.values()))

    def push(self, flow: Hashable, weight: float, cost: float, item: Item) -> None:
        start = max(self._now, self._ends.get(flow, 0.0))
        self._ends[flow] = start + cost / weight
        items = self.flows.get(flow)
        if items is None:
            items = self.flows[flow] = deque()
        items.append((start, next(self._order), item))
        if len(items) == 1:
            self._add_head(flow)

    def first(self) -> Hashable:
        """The flow of the next item; None where there is none."""
        return self._top(self._heads)

    def first_below(self, most: float, held: Callable[[Hashable], float]) -> Hashable:
        """The same of those of which less than `most` is `held`. Where less is held of one than
        before, `lighter` must have said so.
        """
        while self._aside and self._aside[0][0] < most:
            flow = heappop(self._aside)[2]
            if flow in self.flows:
                heappush(self._may_leave, (*self.flows[flow][0][:2], flow))
        while (flow := self._top(self._may_leave)) is not None:
            if (now := held(flow)) < most:
                return flow
            heappop(self._may_leave)
            heappush(self._aside, (now, next(self._order), flow))
        return None

    def lighter(self, flow: Hashable, held: float) -> None:
        """So much is held of a flow, and no more."""
        if flow in self.flows:
            heappush(self._aside, (held, next(self._order), flow))

    def pop(self, flow: Hashable) -> Item:
        """The first item of a flow. Raises KeyError where there is none."""
        items = self.flows[flow]
        start, _, item = items.popleft()
        if items:
            self._add_head(flow)
        else:
            del self.flows[flow]
        self._now = max(self._now, start)
        if len(self._ends) > self._most_ends:
            self._ends = {one: end for one, end in self._ends.items() if end > self._now}
            self._most_ends = max(64, 2 * len(self._ends))
        return item

    def _add_head(self, flow: Hashable) -> None:
        head = (*self.flows[flow][0][:2], flow)
        most = 4 * len(self.flows) + 64
        if max(map(len, (self._heads, self._may_leave, self._aside))) > most:
            self._heads = [(*items[0][:2], one) for one, items in self.flows.items()]
            heapify(self._heads)
            self._may_leave, self._aside = self._heads[:], []
        else:
            heappush(self._heads, head)
            heappush(self._may_leave, head)

    def _top(self, heads: list[tuple[float, int, Hashable]]) -> Hashable:
        """The first one that has not left."""
        while heads:
            start, number, flow = heads[0]
            items = self.flows.get(flow)
            if items is not None and items[0][:2] == (start, number):
                return flow
            heappop(heads)
        return None


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
        self._flow_of: dict[Outlet, str] = {}  # of these outlets
        self._gone: set[Outlet] = set()  # left with pieces queued
        self._sent: dict[int, tuple[int, str]] = {}  # call -> its results in the runtime, and flow
        self._held: dict[Hashable, int] = {}  # flow -> results that the runtime has of it
        self._weights: dict[Hashable, float] = {}
        """Of flows that have results there, or want any."""
        self._all_weights = 0.0  # their sum
        self._in_runtime = 0

    @property
    def in_runtime(self) -> int:
        return self._in_runtime

    def put(self, outlet: Outlet, flow: Flow, ops: Sequence[wire.Op]) -> None:
        """Sends `ops` in their order, when it is their turn."""
        now = self._clock()
        for piece in _pieces(outlet, flow, ops, now):
            self._waiting[outlet] = self._waiting.get(outlet, 0) + 1
            self._flow_of[outlet] = flow.name
            self._queue.push(flow.name, flow.weight, piece.cost, piece)
            self._weigh(flow.name, flow.weight)
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
        own = self._queue.flows[self._flow_of[outlet]]
        queued = [piece for _, _, piece in own if piece.outlet is outlet]
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
        self._flow_of.clear()
        self._gone.clear()
        self._sent.clear()
        self._held.clear()
        self._weights.clear()
        self._all_weights = 0.0
        self._in_runtime = 0

    def _next(self) -> Piece | None:
        """What is sent now, if anything."""
        queue = self._queue
        if not queue.flows:
            return None
        if self._in_runtime < self._window:
            flow = queue.first()
        else:
            flow = queue.first_below(self._window / self._all_weights, self._load)
        return None if flow is None else queue.pop(flow)

    def _load(self, flow: Hashable) -> float:
        """What the runtime has of the flow, by its weight."""
        return self._held.get(flow, 0) / self._weights[flow]

    def _weigh(self, flow: Hashable, weight: float) -> None:
        """The flow counts with that weight; 0: it has nothing here any more."""
        before = self._weights.get(flow, 0.0)
        self._all_weights += weight - before
        if weight:
            self._weights[flow] = weight
            if weight > before:
                self._queue.lighter(flow, self._load(flow))
        elif self._weights.pop(flow, None) is not None and not self._weights:
            self._all_weights = 0.0  # nothing is left of rounding

    def _send(self) -> None:
        while (piece := self._next()) is not None:
            outlet = piece.outlet
            self._waiting[outlet] -= 1
            if not self._waiting[outlet]:
                del self._waiting[outlet], self._flow_of[outlet]
            is_gone = outlet in self._gone
            if is_gone:
                if outlet not in self._waiting:
                    self._gone.discard(outlet)
                self._leave_if_done(piece.flow.name)
                continue
            self._note(piece)
            self._leave_if_done(piece.flow.name)
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
        if sign < 0:
            self._queue.lighter(flow, left / self._weights[flow])
            self._leave_if_done(flow)

    def _leave_if_done(self, flow: str) -> None:
        if flow not in self._held and flow not in self._queue.flows:
            self._weigh(flow, 0.0)


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
