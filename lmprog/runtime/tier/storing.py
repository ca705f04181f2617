"""Which pages of the pool are stored in the second tier, and when: on their eviction, ahead of it,
and while there is nothing else to do.

A store takes no more at a time than it can have under way, and one step may evict more than that.
So evictions wait a little for room, and where that happens what will be evicted next is stored
ahead: in each step when its rows are planned, so that the store works while they are computed.

Knows the pool's tree, the index of what is stored, and what is worth it; loads nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass

from lmprog.radix import Node, PageAllocator, RadixTree, Tokens, path
from lmprog.runtime.tier.page_store import PageKey, PageStore, page_keys, root_of
from lmprog.runtime.tier.page_worth import PageWorth

Take = Callable[[int, int, PageKey], bool]
"""Whether the store takes a page as the contents of a handle."""

WAITED_PART = 0.1
"""Evictions wait for room so long at most, as a part of the time that steps take."""
SAVED_WAIT = 0.02
"""Seconds: so much of what was not waited in short steps is left for one that evicts much."""
AHEAD_PART = 0.02
"""Storing ahead takes so much of it at most."""
AHEAD_STEPS = 1000
"""In so many steps pages are stored ahead, at first and whenever evictions have found the store
full: a page stored ahead may be used again, and then was stored for nothing.
"""
REST_SECONDS = 0.002
"""Seconds that storing may take in a turn without other work."""
CLOSE_WAIT = 1.0
"""Seconds that a page waits for room at the end, before the rest is given up."""


@dataclass(slots=True)
class TierCounters:
    """Pages over the life of the runtime."""

    stored: int = 0
    stored_ahead: int = 0
    """Of these: before anybody needed their memory."""
    refused: int = 0
    """Evicted while the store took no more."""
    loaded: int = 0
    lost: int = 0
    """Asked for, and not what was stored."""
    abandoned: int = 0
    """Asked for, and not there in time."""
    found: int = 0
    """Known to the store when it was opened."""


class TierStoring:
    """Stores paths of `tree`, and enters them into `index`, whose pages are `handles`."""

    def __init__(
        self,
        store: PageStore,
        tree: RadixTree,
        index: RadixTree,
        handles: PageAllocator,
        worth: PageWorth,
        clock: Callable[[], float],
    ) -> None:
        """`clock` is in seconds."""
        self._store = store
        self._tree = tree
        self._index = index
        self._handles = handles
        self._worth = worth
        self.counters = TierCounters()
        self._clock = clock
        self._page_size = tree.page_size
        self._room_wait = 0.0
        """Seconds that a page waits for room without need."""
        self._wait_left = 0.0
        """Seconds that evictions may wait until the next step."""
        self._ahead_seconds = 0.0
        """Seconds that storing ahead may take in a step."""
        self._steps_left = AHEAD_STEPS
        """In which pages are stored ahead."""
        self._num_steps_stored = 0
        """After so many steps there was nothing left to store."""
        tree.on_evict = self._evicted

    def begin(self, seconds: float) -> None:
        """A step took `seconds`; the next one begins."""
        part = WAITED_PART * seconds
        self._wait_left = min(max(SAVED_WAIT, part), max(0.0, self._wait_left) + part)
        self._ahead_seconds = AHEAD_PART * seconds

    def save_recent(self, has_time: Callable[[], bool]) -> bool:
        """Stores leaves of the pool's tree that are not stored yet, those used last first, while
        there is time. False where there was nothing to store.
        """
        before = self.counters.stored
        for node in self._tree.newest_first():
            if (not node.children and self._save(node, 1.0, self._takes)) or not has_time():
                break
        return self.counters.stored > before

    def rest(self, num_steps: int) -> None:
        """A turn had no work, after so many steps in all: stores for a little while, until there
        is nothing new since the last of them.
        """
        if num_steps == self._num_steps_stored:
            return
        ends = self._clock() + REST_SECONDS
        if not self.save_recent(lambda: self._clock() < ends):
            self._num_steps_stored = num_steps

    def save_ahead(self, num_pages: int) -> None:
        """Stores what will be evicted next, for a little time and as long as the store takes it,
        until `num_pages` pages could be evicted without being stored. Looks at no more nodes than
        these pages are in; does nothing where no eviction finds the store full.
        """
        if not self._steps_left or num_pages <= 0:
            return
        self._steps_left -= 1
        before, ends = self.counters.stored, self._clock() + self._ahead_seconds

        def take(handle: int, page: int, key: PageKey) -> bool:
            return self._clock() <= ends and self._store.store(handle, page, key)

        for node in self._tree.oldest_first():
            if not node.children and self._save(node, self._worth.chance_of_return, take):
                break
            num_pages -= len(node.pages)
            if num_pages <= 0:
                break
        self.counters.stored_ahead += self.counters.stored - before

    def close(self, has_time: Callable[[], bool]) -> None:
        """Stores what the pool has, while there is time. Nothing is stored any more after it."""
        self._room_wait = CLOSE_WAIT
        self.save_recent(has_time)
        self._tree.on_evict = None

    def _evicted(self, node: Node, num_pages: int) -> None:
        """The last `num_pages` pages of `node`, a leaf of the pool's tree, are about to go."""
        num_left = self._save(node, self._worth.chance_of_return, self._takes_in_time)
        self.counters.refused += min(num_left, num_pages)

    def _takes(self, handle: int, page: int, key: PageKey) -> bool:
        return self._store.store(handle, page, key, self._room_wait)

    def _takes_in_time(self, handle: int, page: int, key: PageKey) -> bool:
        """The same for a page that is evicted. Waits for room, all of them together for a bounded
        time.
        """
        if self._store.store(handle, page, key):
            return True
        self._steps_left, began = AHEAD_STEPS, self._clock()
        is_taken = self._wait_left > 0.0 and self._store.store(handle, page, key, self._wait_left)
        self._wait_left -= self._clock() - began
        return is_taken

    def _save(self, node: Node, returns: float, takes: Take) -> int:
        """Stores the path to `node` as far as it is not stored and is worth it. `returns`: how
        often a page is expected to come back. Returns how many pages `takes` has left.
        """
        if node.saved_to >= node.end:
            return 0
        tokens, pages = _contents(node, self._page_size)
        salt, size = root_of(node.salt).hex(), self._page_size
        found = self._index.match(tokens, salt)
        missing = len(tokens) - found.length
        num_pages, costs = -(-len(tokens) // size) - found.length // size, self._store.costs
        if not missing or not self._worth.pays_to_store(missing, num_pages, costs, returns):
            node.saved_to = node.end
            return 0
        lock = self._index.lock(found.node, found.length)
        table = [*found.pages, *self._stored(tokens, node.salt, pages[len(found.pages) :], takes)]
        end = min(len(tokens), len(table) * size)
        if end > found.length:
            self._index.insert(tokens[:end], table, salt)
        self._index.unlock(lock)
        node.saved_to = node.end if end == len(tokens) else 0
        return len(pages) - len(table)

    def _stored(self, tokens: Tokens, salt: str, pages: list[int], takes: Take) -> list[int]:
        """Stores `pages`, the last ones of a path; returns the handles of those that were taken."""
        if (missing := len(pages) - self._handles.num_free) > 0:
            self._index.evict(missing)
        handles = self._handles.allocate(min(len(pages), self._handles.num_free)) or []
        keys = page_keys(root_of(salt), tokens.tobytes(), self._page_size)[-len(pages) :]
        count = 0
        for handle, page, key in zip(handles, pages, keys, strict=False):
            if not takes(handle, page, key):
                break
            count += 1
        self._handles.free(handles[count:])
        self.counters.stored += count
        self._worth.count_stored(count)
        return handles[:count]


def _contents(leaf: Node, page_size: int) -> tuple[array[int], list[int]]:
    """Tokens and page table of the path to `leaf`, up to the page of the first private key."""
    nodes = [*path(leaf)][::-1]
    tokens = array("i", b"".join(node.key for node in nodes))
    pages = [page for node in nodes for page in node.pages]
    if min(tokens) < 0:
        whole = next(at for at, token in enumerate(tokens) if token < 0) // page_size
        del tokens[whole * page_size :], pages[whole:]
    return tokens, pages
