"""Soft pins of live branches, and which of them are dropped first when memory is short.

The tree evicts pinned nodes last. When pinned pages must go, taking a little from every program
would be the worst choice: programs that take turns would all miss. So pins are dropped program by
program, the youngest first, and the older programs keep everything, finish and leave.

Knows the tree's verbs and the age of programs; knows no branches.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from lmprog.radix import Node, RadixTree


@dataclass(eq=False, slots=True)
class Pin:
    """One branch's pin on `node`; not `active` once it was given back or dropped."""

    node: Node
    program: int
    """A larger number is a younger program."""
    active: bool = True


class Pins:
    """All pins, the youngest program's first."""

    def __init__(self, tree: RadixTree) -> None:
        self._tree = tree
        self._heap: list[tuple[int, int, Pin]] = []
        self._num_made = 0
        self._num_active = 0

    def pin(self, node: Node, program: int) -> Pin:
        """Pins the path to `node` for a branch of `program`."""
        pin = Pin(node, program)
        self._tree.pin(node)
        self._num_made += 1
        self._num_active += 1
        heapq.heappush(self._heap, (-program, -self._num_made, pin))
        if len(self._heap) > 64 + 2 * self._num_active:
            self._heap = [entry for entry in self._heap if entry[2].active]
            heapq.heapify(self._heap)
        return pin

    def unpin(self, pin: Pin) -> None:
        """Gives a pin back; does nothing if it was dropped before."""
        if pin.active:
            pin.active = False
            self._num_active -= 1
            self._tree.unpin(pin.node)

    def drop_for(self, count: int) -> None:
        """Drops pins, youngest programs first, until `count` unpinned pages can be evicted."""
        while self._heap and self._tree.num_evictable - self._tree.num_pinned < count:
            self.unpin(heapq.heappop(self._heap)[2])
