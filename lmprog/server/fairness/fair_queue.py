"""Weighted fair queueing (start-time fair queueing): flows with work get service by their weights.

Each item gets a start tag in virtual time: the end of its flow's previous item, or now. The lowest
tag goes first. In any interval in which two flows both wait, their services divided by their
weights differ by at most one item of each.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Items of flows. Items of one flow leave in their order."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Item]] = []
        self._order = itertools.count()
        self._now = 0.0  # virtual time: the start tag of the last item that left
        self._ends: dict[Hashable, float] = {}

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Item]:
        """All items, in no order."""
        return (item for _, _, item in self._heap)

    def push(self, flow: Hashable, weight: float, cost: float, item: Item) -> None:
        start = max(self._now, self._ends.get(flow, 0.0))
        self._ends[flow] = start + cost / weight
        heapq.heappush(self._heap, (start, next(self._order), item))

    def pop(self) -> Item:
        """The next item. Raises IndexError where there is none."""
        start, _, item = heapq.heappop(self._heap)
        self._now = start
        if len(self._ends) > 2 * len(self._heap) + 64:
            self._ends = {flow: end for flow, end in self._ends.items() if end > start}
        return item
