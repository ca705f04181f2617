"""A second tier that is slow, full and torn: the store of the simulation.

It keeps contents in a dictionary and gives them back some turns later. A stored page may be
refused, or be lost or damaged without a word; like a file with checksums, it then gives nothing
back rather than something wrong. Knows the fake engine's pages.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from lmprog.runtime.tier.page_store import KnownPage, LoadEnd, PageCosts, PageKey
from lmprog.simulation.fake_engine import FakeEngine, PageContents

HANGS = 1000
"""Turns of a load that the tier abandons before it ends."""


@dataclass(slots=True)
class KeptPage:
    """What a handle has. `contents` is None where they were damaged or never arrived."""

    key: PageKey
    contents: PageContents | None
    age: int


@dataclass(slots=True)
class PendingLoad:
    ticket: int
    turns_left: int
    pages: list[int]
    contents: list[PageContents]


class FakeStore:
    """See `PageStore`. `faults` is the chance that a page is refused, lost or damaged."""

    def __init__(
        self, engine: FakeEngine, num_handles: int, rng: random.Random, faults: float
    ) -> None:
        self._engine = engine
        self._rng = rng
        self._faults = faults
        self.num_handles = num_handles
        seconds = rng.choice([0.0, 0.01, 1.0])
        self.costs = PageCosts(seconds / 2, seconds / 2)
        self.kept: dict[int, KeptPage] = {}
        self._pending: list[PendingLoad] = []
        self._num_loads = self._num_stored = 0
        self.most_staged: int | None = None
        """Pages that it takes between two turns; None: any number."""
        self._num_staged = 0

    def known(self) -> list[KnownPage]:
        return [
            KnownPage(handle, one.key, one.age)
            for handle, one in self.kept.items()
            if one.contents is not None or self._rng.random() < 0.5
        ]

    def store(self, handle: int, page: int, key: PageKey, wait: float = 0.0) -> bool:
        if self._num_staged == self.most_staged or self._rng.random() < self._faults:
            return False
        self._num_staged += 1
        lost = self._rng.random() < self._faults
        self._num_stored += 1
        contents = None if lost else self._engine.read_page(page)
        self.kept[handle] = KeptPage(key, contents, self._num_stored)
        return True

    def load(self, handles: Sequence[int], pages: Sequence[int], keys: Sequence[PageKey]) -> int:
        self._num_loads += 1
        found: list[PageContents] = []
        for handle, key in zip(handles, keys, strict=True):
            one = self.kept.get(handle)
            if one is None or one.contents is None or not key.is_served_by(one.key):
                break
            found.append(one.contents)
        turns = self._rng.choice([0, 0, 1, 5, HANGS if self._rng.random() < self._faults else 0])
        self._pending.append(PendingLoad(self._num_loads, turns, list(pages), found))
        return self._num_loads

    def finished(self) -> list[LoadEnd]:
        self._num_staged = 0
        if not self._pending:
            return []
        for one in self._pending:
            for page in one.pages:
                self._engine.spoil_page(page)  # whoever reads it before the load has ended shows
        ended = [one for one in self._pending if not one.turns_left]
        self._pending = [one for one in self._pending if one.turns_left]
        for one in self._pending:
            one.turns_left -= 1
        for one in ended:
            for page, contents in zip(one.pages, one.contents, strict=False):
                self._engine.write_page(page, contents)
        return [LoadEnd(one.ticket, len(one.contents)) for one in ended]

    def abandon(self, ticket: int) -> None:
        for one in self._pending:
            if one.ticket == ticket:
                one.pages.clear()

    def forget(self, handles: Sequence[int]) -> None:
        for handle in handles:
            self.kept.pop(handle, None)

    def close(self) -> None:
        """Everything is written at once."""
