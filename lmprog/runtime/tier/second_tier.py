"""The second tier: evicted pages are stored, and come back when a sequence waits for them.

The index of what is stored is a prefix tree too, over the store's handles in place of pages: exact
to the token, with its own least-recently-used order. A path of the pool's tree may be stored, or
not, or be stored alone, once the pool has evicted it. Whatever is loaded enters the pool's tree as
if it had been computed.

A page is loaded where computing its tokens again costs more, or where it is not known yet what that
costs, and stored where that is expected to save more than storing costs: a page that was stored
comes back with a chance that is measured, too. A load that takes far longer than computing would
have taken is abandoned, and nothing is loaded until it ends: a disk that hangs holds nobody up for
ever. What follows a public prefix privately is not stored: its keys (see `scheduling.namespaces`)
mean something to one runtime only.

Knows tokens, pages, handles and measured costs; knows no sequence, no file and no thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass

from lmprog.radix import Node, PageAllocator, RadixTree, Tokens, path
from lmprog.runtime.tier.page_store import LoadEnd, PageStore, page_keys, root_of
from lmprog.runtime.tier.rebuilding import rebuild

MOST_LOADS = 8
"""Loads under way at a time."""
DECLINED_IN_TURN = 64
"""One in so many decisions against storing or loading is taken the other way."""
MOST_LOAD_SECONDS = 1.0
"""A load is abandoned after that and twice the time that computing its tokens takes."""
ASSUMED_PAGES = 256.0
"""As many pages count as stored, and loaded once each, before any were."""
REMEMBERED_PAGES = 2048
"""Pages stored after which what was counted before weighs half."""
CLOSE_WAIT = 1.0
"""Seconds that a page waits for room at the end, before the rest is given up."""


@dataclass(slots=True)
class TierCounters:
    """Pages over the life of the runtime."""

    stored: int = 0
    loaded: int = 0
    lost: int = 0
    """Asked for, and not what was stored."""
    abandoned: int = 0
    """Asked for, and not there in time."""
    found: int = 0
    """Known to the store when it was opened."""


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
        self.counters = TierCounters()
        self._num_declined = 0
        self._handles = PageAllocator(store.num_handles)
        self.index = RadixTree(page_size, self._handles)
        self._loads: dict[int, TierLoad] = {}
        self._abandoned: set[int] = set()
        """Loads that have not ended all the same."""
        self._recent_stored = self._recent_loaded = ASSUMED_PAGES
        self._store_wait = 0.0
        self.counters.found = rebuild(self.index, self._handles, store.known(), page_size)
        tree.on_evict = self.save

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

    # --- storing

    def save(self, node: Node) -> bool:
        """Stores the path to `node`, a leaf of the pool's tree that is about to go, as far as it is
        not stored and is worth it. False where the store takes no more now.
        """
        return self._save(node, self._recent_loaded / self._recent_stored)

    def _save(self, node: Node, returns: float) -> bool:
        """`returns`: how often a page is expected to come back."""
        if node.saved_to >= node.end:
            return True
        tokens, pages = _contents(node, self._page_size)
        salt = root_of(node.salt).hex()
        found = self.index.match(tokens, salt)
        missing = len(tokens) - found.length
        num_pages, costs = self._num_pages(found.length, len(tokens)), self._store.costs
        saved = returns * (missing * self._cost_per_token() - num_pages * costs.load)
        if not missing or not self._is_worth(saved, num_pages * costs.store):
            node.saved_to = node.end
            return True
        lock = self.index.lock(found.node, found.length)
        table = [*found.pages, *self._stored(tokens, node.salt, pages, len(found.pages))]
        end = min(len(tokens), len(table) * self._page_size)
        if end > found.length:
            self.index.insert(tokens[:end], table, salt)
        self.index.unlock(lock)
        node.saved_to = node.end if end == len(tokens) else 0
        return end == len(tokens)

    def save_recent(self, has_time: Callable[[], bool]) -> bool:
        """Stores leaves of the pool's tree that are not stored yet, those used last first, while
        there is time. False where there was nothing to store.
        """
        before = self.counters.stored
        for node in self._tree.newest_first():
            if not (node.children or self._save(node, 1.0)) or not has_time():
                break
        return self.counters.stored > before

    def discard(self, tokens: Tokens, salt: str) -> None:
        """The path of `tokens` holds something wrong: nothing of it is loaded any more."""
        found = self.index.match(tokens, root_of(salt).hex())
        if found.length:
            top = [*path(found.node)][-1]
            self._store.forget(self.index.pages_below(top))
            self.index.discard(top)

    def _stored(self, tokens: Tokens, salt: str, pages: list[int], first: int) -> list[int]:
        """Stores pages `first ..` of a path; returns the handles of those that were taken."""
        wanted = len(pages) - first
        if (missing := wanted - self._handles.num_free) > 0:
            self.index.evict(missing)
        handles = self._handles.allocate(min(wanted, self._handles.num_free)) or []
        keys = page_keys(root_of(salt), tokens.tobytes(), self._page_size)[first:]
        count = 0
        for handle, page, key in zip(handles, pages[first:], keys, strict=False):
            if not self._store.store(handle, page, key, self._store_wait):
                break
            count += 1
        self._handles.free(handles[count:])
        self.counters.stored += count
        past = 0.5 ** (count / REMEMBERED_PAGES)
        self._recent_stored = self._recent_stored * past + count
        self._recent_loaded *= past
        return handles[:count]

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
        cost = self._cost_per_token()
        computing = gain * cost
        if gain <= 0 or self._abandoned:
            return None
        # before any token was computed nothing speaks against what was worth storing
        if cost > 0.0 and not self._is_worth(computing, count * self._store.costs.load):
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
        ends = self._clock() + MOST_LOAD_SECONDS + 2.0 * computing
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
            self._recent_loaded += len(table) - taken_from
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

    def _is_worth(self, saved: float, cost: float) -> bool:
        """By measured seconds. Now and then against them, so that they are measured again."""
        if saved >= cost:
            return True
        self._num_declined += 1
        return self._num_declined % DECLINED_IN_TURN == 0

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
        self._store_wait = CLOSE_WAIT
        self.save_recent(has_time)
        self._tree.on_evict = None
        self._store.close()


def _contents(leaf: Node, page_size: int) -> tuple[array[int], list[int]]:
    """Tokens and page table of the path to `leaf`, up to the page of the first private key."""
    nodes = [*path(leaf)][::-1]
    tokens = array("i", b"".join(node.key for node in nodes))
    pages = [page for node in nodes for page in node.pages]
    if min(tokens) < 0:
        whole = next(at for at, token in enumerate(tokens) if token < 0) // page_size
        del tokens[whole * page_size :], pages[whole:]
    return tokens, pages
