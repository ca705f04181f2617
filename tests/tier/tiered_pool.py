"""A tree of the fake engine's pages above a second tier, for tests of what goes there and returns."""

from __future__ import annotations

import random
from array import array

from lmprog.radix import PageAllocator, RadixTree
from lmprog.runtime.tier.page_store import PageCosts
from lmprog.runtime.tier.second_tier import SecondTier
from lmprog.simulation.fake_engine import FakeEngine, FakeStore

PAGE = 4


class TieredPool:
    """A tree of `num_pages` pages above a tier of `num_handles`. A token costs a second."""

    def __init__(self, num_pages: int = 16, num_handles: int = 64, faults: float = 0.0) -> None:
        self.engine = FakeEngine(num_pages, PAGE, 10)
        self.pages = PageAllocator(num_pages)
        self.tree = RadixTree(PAGE, self.pages)
        self.store = FakeStore(self.engine, num_handles, random.Random(1), faults)
        self.store.costs = PageCosts(0.0, 0.0)
        self.now = 0.0
        self.tier = self.opened()

    def opened(self) -> SecondTier:
        return SecondTier(self.store, self.tree, self.pages, lambda: 1.0, lambda: self.now)

    def compute(self, tokens: array[int], salt: str = "") -> None:
        """Enters `tokens`; the slots hold the tokens themselves."""
        found = self.tree.match(tokens, salt)
        node = self.tree.lock(found.node, found.length)
        count = -(-len(tokens) // PAGE) - len(found.pages)
        self.tree.evict(max(0, count - self.pages.num_free))
        new = self.pages.allocate(count)
        assert new is not None
        for at, page in enumerate(new, len(found.pages)):
            piece = [*tokens[at * PAGE : (at + 1) * PAGE], *[0] * PAGE][:PAGE]
            self.engine._slots[page * PAGE : (page + 1) * PAGE] = [abs(one) for one in piece]
        inserted = self.tree.insert(tokens, [*found.pages, *new], salt)
        self.tree.unlock(node)
        self.pages.free(new[: inserted.first_taken - len(found.pages)])

    def check(self) -> None:
        """All invariants of tree, pages and tier."""
        self.tier.check()
        self.tree.check()
        self.pages.check([*self.tree.pages_held(), *self.tier.pages_held()])

    def free(self, count: int) -> bool:
        self.tree.evict(max(0, count - self.pages.num_free))
        return self.pages.num_free >= count

    def bring_back(self, tokens: array[int], salt: str = "", turns: int = 9) -> int:
        """Tokens of the prefix in the pool, once all loads have ended; their slots are right."""
        self.tier.fetch(tokens, salt, len(tokens), self.free)
        for _ in range(turns):
            self.tier.collect()
            self.check()
        found = self.tree.match(tokens, salt)
        table = [*found.pages, *([] if found.partial is None else [found.partial])]
        slots = [slot for page in table for slot in self.engine.read_page(page)[0].tolist()]
        assert slots[: found.length] == tokens[: found.length].tolist()
        return found.length


def text(*tokens: int) -> array[int]:
    return array("i", tokens)


LONG = array("i", range(1, 15))  # three whole pages and half of one
