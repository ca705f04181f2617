"""Soft pins of live branches, kept by program.

The tree evicts pinned nodes last. When pinned pages must go, taking a little from every program
would be the worst choice: programs that take turns would all miss. So pins are dropped program by
program, those first that have no place in memory, then the youngest, and the older programs keep
everything, finish and leave.

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
    """The pins of all programs."""

    def __init__(self, tree: RadixTree) -> None:
        self._tree = tree
        self._pins: dict[int, dict[Pin, None]] = {}
        """By program: pins that were not given back, dropped ones included. Their order decides
        what is evicted first.
        """
        self._youngest: list[int] = []
        """A heap of the negative numbers of programs that may have active pins."""
        self._demoted: set[int] = set()
        self._youngest_demoted: list[int] = []
        """The same of programs that may have been demoted."""
        self._num_active: dict[int, int] = {}
        self.released: list[int] = []
        """Programs that have given back their last pin; the reader empties it."""

    def __contains__(self, program: int) -> bool:
        """Whether a branch of `program` has a pin, dropped or not."""
        return program in self._pins

    def pin(self, node: Node, program: int) -> Pin:
        """Pins the path to `node` for a branch of `program`."""
        pin = Pin(node, program)
        self._tree.pin(node)
        self._pins.setdefault(program, {})[pin] = None
        self._num_active[program] = self._num_active.get(program, 0) + 1
        if self._num_active[program] == 1:
            heapq.heappush(self._youngest, -program)
        return pin

    def unpin(self, pin: Pin) -> None:
        """Gives a pin back, dropped or not."""
        pins = self._pins[pin.program]
        del pins[pin]
        self._drop(pin)
        if not pins:
            del self._pins[pin.program], self._num_active[pin.program]
            self._demoted.discard(pin.program)
            self.released.append(pin.program)

    def demote(self, program: int) -> None:
        """The program has lost its place in memory: its pins are dropped before those of others."""
        if self._num_active.get(program) and program not in self._demoted:
            self._demoted.add(program)
            heapq.heappush(self._youngest_demoted, -program)

    def restore(self, program: int) -> None:
        """The program has a place again."""
        self._demoted.discard(program)

    def drop_for(self, count: int) -> list[int]:
        """Drops pins until `count` unpinned pages can be evicted. Returns the programs that lost
        theirs.
        """
        dropped = []
        while self._tree.num_evictable - self._tree.num_pinned < count:
            program = self._next_to_drop()
            if program is None:
                break
            for pin in self._pins[program]:
                self._drop(pin)
            self._demoted.discard(program)
            dropped.append(program)
        return dropped

    def _next_to_drop(self) -> int | None:
        """The youngest program with active pins, of the demoted ones if there are any."""
        while self._youngest_demoted:
            program = -heapq.heappop(self._youngest_demoted)
            if program in self._demoted and self._num_active.get(program):
                return program
        while self._youngest:
            program = -heapq.heappop(self._youngest)
            if self._num_active.get(program):
                return program
        return None

    def _drop(self, pin: Pin) -> None:
        if pin.active:
            pin.active = False
            self._num_active[pin.program] -= 1
            self._tree.unpin(pin.node)
