"""The second tier: evicted pages are stored, and come back when a sequence waits for them.

`storing` says what is stored and when. The index of it is a prefix tree too, over the store's
handles in place of pages: exact to the token, with its own least-recently-used order. A path of the
pool's tree may be stored, or not, or be stored alone, once the pool has evicted it. Whatever is
loaded enters the pool's tree as if it had been computed.

A page is loaded where computing its tokens again costs more, and stored where that is expected to
save more than storing costs (`page_worth`). A load that takes far longer than computing would have
taken is abandoned, and nothing is loaded until it ends: a disk that hangs holds nobody up for ever.
What follows a public prefix privately is not stored: its keys (see `scheduling.namespaces`) mean
something to one runtime only.

Knows tokens, pages, handles and measured costs; knows no sequence, no file and no thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from lmprog.radix import Node, PageAllocator, RadixTree, Tokens, path
from lmprog.runtime.tier.page_store import LoadEnd, PageStore, page_keys, root_of
from lmprog.runtime.tier.page_worth import PageWorth
from lmprog.runtime.tier.rebuilding import rebuild
from lmprog.runtime.tier.storing import TierStoring

MOST_LOADS = 8
"""Loads under way at a time."""
MOST_LOAD_SECONDS = 1.0
"""A load is abandoned after that and twice the time that computing its tokens takes."""


@dataclass(frozen=True, slots=True)
class TierLoad:
    """The page that holds position `start` of a path, and those after it up to `end`, on their way.

    `known` are the pages before them, in the pool; `node` and `stored` are locked meanwhile.
    """

    tokens: Tokens
    salt: str
    start: int
    node: Node
    known: list[int]
    pages: list[int]
    stored: Node
    ends: float
    """When it is abandoned."""

    @property
    def end(self) -> int:
        return len(self.tokens)


class SecondTier:
    """Stores what `tree` evicts, loads what is asked for.

    `cost_per_token` says how many seconds computing a token takes, as measured so far. `clock` is
    in seconds.
    """

    def __init__(
        self,
        store: PageStore,
        tree: RadixTree,
        pages: PageAllocator,
        cost_per_token: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._tree = tree
        self._pages = pages
        self._page_size = page_size = tree.page_size
        self._cost_per_token = cost_per_token
        self._clock = clock
        self._worth = PageWorth(cost_per_token)
        self._handles = PageAllocator(store.num_handles)
        self.index = RadixTree(page_size, self._handles)
        self._loads: dict[int, TierLoad] = {}
        self._abandoned: set[int] = set()
        """Loads that have not ended all the same."""
        num_found = rebuild(self.index, self._handles, store.known(), page_size)
        self.storing = TierStoring(store, tree, self.index, self._handles, self._worth, clock)
        self.counters = self.storing.counters
        self.counters.found = num_found

    @property
    def num_pages(self) -> int:
        """Pages that are stored."""
        return self.index.num_cached

    def cost_of_return(self) -> float:
        """Seconds for a token that comes back, computed again or loaded."""
        if self._abandoned:
            return self._cost_per_token()
        costs = self._store.costs
        return min(self._cost_per_token(), (costs.store + costs.load) / self._page_size)

    def is_cheap(self) -> bool:
        """Whether what was evicted comes back for less than half of what computing it costs."""
        return 2.0 * self.cost_of_return() <= self._cost_per_token()

    def figures(self) -> dict[str, float]:
        """What was counted, and what is stored now."""
        counts = {f"pages_{name}": float(count) for name, count in asdict(self.counters).items()}
        return {
            **counts,
            "pages": float(self.num_pages),
            "capacity": float(self._handles.num_pages),
        }

    def discard(self, tokens: Tokens, salt: str) -> None:
        """The path of `tokens` holds something wrong: nothing of it is loaded any more."""
        found = self.index.match(tokens, root_of(salt).hex())
        if found.length:
            top = [*path(found.node)][-1]
            self._store.forget(self.index.pages_below(top))
            self.index.discard(top)

    # --- loading

    def fetch(
        self, tokens: Tokens, salt: str, limit: int, free: Callable[[int], bool]
    ) -> int | None:
        """Begins to load what is stored of `tokens[:limit]` beyond what the pool has, if that is
        worth it and `free` can free the pages it takes. The number of the load, until it has ended;
        None where there is nothing to wait for.
        """
        stored = self.index.match(tokens, root_of(salt).hex(), limit)
        match = self._tree.match(tokens, salt, limit)
        gain = stored.length - match.length
        first, count = len(match.pages), self._num_pages(match.length, stored.length)
        if gain <= 0 or self._abandoned:
            return None
        if not self._worth.pays_to_load(gain, count, self._store.costs):
            return None
        for ticket, load in self._loads.items():
            if load.stored is stored.node and load.end >= stored.length:
                return ticket
        if len(self._loads) >= MOST_LOADS:
            return None
        node = self._tree.lock(match.node, match.length)
        locked = self.index.lock(stored.node, stored.length)
        if not free(count):
            self._tree.unlock(node)
            self.index.unlock(locked)
            return None
        pages = self._pages.allocate(count)
        assert pages is not None, "room was made for them"
        handles = stored.pages[first:]
        last = self.index.partial_page(locked, stored.length)  # making room may have moved it
        if last is not None:
            handles.append(last)
        ends = self._clock() + MOST_LOAD_SECONDS + 2.0 * gain * self._cost_per_token()
        load = TierLoad(
            tokens[: stored.length], salt, match.length, node, match.pages, pages, locked, ends
        )
        keys = page_keys(root_of(salt), load.tokens.tobytes(), self._page_size)[first:]
        ticket = self._store.load(handles, pages, keys)
        self._loads[ticket] = load
        return ticket

    def is_loading(self, ticket: int) -> bool:
        """Whether that load has not ended."""
        return ticket in self._loads

    def collect(self) -> None:
        """What has been loaded since the last time enters the pool's tree."""
        for done in self._store.finished():
            load = self._loads.pop(done.ticket, None)
            self._abandoned.discard(done.ticket)
            if load is not None:
                self._finish(load, done)
        if self._loads:
            now = self._clock()
            for ticket in [one for one, load in self._loads.items() if load.ends < now]:
                self._abandon(ticket)

    def _abandon(self, ticket: int) -> None:
        """Nobody waits for that load any more, and its pages are free."""
        self._store.abandon(ticket)
        self._abandoned.add(ticket)
        load = self._loads.pop(ticket)
        self._pages.free(load.pages)
        self._tree.unlock(load.node)
        self.index.unlock(load.stored)
        self.counters.abandoned += len(load.pages)

    def _finish(self, load: TierLoad, done: LoadEnd) -> None:
        size, first = self._page_size, len(load.known)
        end = min(load.end, (first + done.num_good) * size)
        taken_from = first + done.num_good
        if load.node.alive and load.stored.alive and end > load.start:
            table = [*load.known, *load.pages[: done.num_good]]
            inserted = self._tree.insert(load.tokens[:end], table, load.salt)
            taken_from = inserted.first_taken
            if taken_from < len(table):
                inserted.node.saved_to = end
            self._pages.free(load.pages[: taken_from - first])
            self.counters.loaded += len(table) - taken_from
            self._worth.count_loaded(len(table) - taken_from)
            self._pages.free(load.pages[done.num_good :])
        else:
            self._pages.free(load.pages)
        self._tree.unlock(load.node)
        num_lost = len(load.pages) - done.num_good
        if num_lost:
            self.counters.lost += num_lost
            self.index.discard(load.stored, (first + done.num_good) * size)
        self.index.unlock(load.stored)

    # --- costs and checks

    def _num_pages(self, start: int, end: int) -> int:
        """Pages that hold the positions `start .. end`, and those before `start` in its page."""
        return -(-end // self._page_size) - start // self._page_size

    def pages_held(self) -> list[int]:
        """The pool's pages that are being loaded."""
        return [page for load in self._loads.values() for page in load.pages]

    def check(self) -> None:
        """All invariants of the index; raises AssertionError."""
        self.index.check()
        self._handles.check(self.index.pages_held())
        assert self._loads or self.index.num_evictable == self.index.num_cached, (
            "only loads lock what is stored"
        )

    def close(self, has_time: Callable[[], bool]) -> None:
        """Stores what the pool has, while there is time. Nothing is stored any more after it."""
        self.storing.close(has_time)
        self._store.close()
