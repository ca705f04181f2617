"""Soft holds of live branches on what they stand on, and whose goes first when memory is short.

The tree evicts what is pinned last. But when pinned pages must go, taking a little from everybody
is the worst choice: programs that take turns would all find their pages gone. So whole programs
lose their hold, the youngest first: the older ones go on with everything they have, finish, and
leave.

Knows the tree's verbs and the age of programs; knows no branches.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from lmprog.radix import Node, RadixTree


@dataclass(eq=False, slots=True)
class Pin:
    """One branch's hold on `node`; `held` is False once it was given back or lost."""

    node: Node
    held: bool = True


class Pins:
    """All soft holds, youngest program first."""

    def __init__(self, tree: RadixTree) -> None:
        self._tree = tree
        self._heap: list[tuple[int, int, Pin]] = []
        self._made = 0
        self._num_held = 0

    def hold(self, node: Node, program: int) -> Pin:
        """A hold on the path to `node` by a branch of `program`; a larger number is a younger
        program.
        """
        pin = Pin(node)
        self._tree.pin(node)
        self._made += 1
        self._num_held += 1
        heapq.heappush(self._heap, (-program, -self._made, pin))
        if len(self._heap) > 64 + 2 * self._num_held:
            self._heap = [entry for entry in self._heap if entry[2].held]
            heapq.heapify(self._heap)
        return pin

    def release(self, pin: Pin) -> None:
        """Gives a hold back; nothing happens where it was lost before."""
        if pin.held:
            pin.held = False
            self._num_held -= 1
            self._tree.unpin(pin.node)

    def loosen(self, count: int) -> None:
        """Takes holds away, youngest programs first, until `count` pages can be evicted without
        touching any.
        """
        while self._heap and self._tree.num_evictable - self._tree.num_pinned < count:
            self.release(heapq.heappop(self._heap)[2])
