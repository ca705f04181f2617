"""The second tier: evicted pages are stored, and come back when a sequence waits for them.

The index of what is stored is a prefix tree too, over the store's handles in place of pages: exact
to the token, with its own least-recently-used order. A path of the pool's tree may be stored, or
not, or be stored alone, once the pool has evicted it. Whatever is loaded enters the pool's tree as
if it had been computed. Of a store that was opened again the index is rebuilt from the keys of its
pages.

Pages are stored on their eviction, ahead of it, and while there is nothing else to do
(`TierStoring`). A store takes no more at a time than it can have under way, and one step may evict
more than that. So evictions wait a little for room, and where that happens what will be evicted
next is stored ahead: in each step when its rows are planned, so that the store works while they are
computed.

A page is loaded where computing its tokens again costs more, and stored where that is expected to
save more than storing costs (`PageWorth`). A load that takes far longer than computing would have
taken is abandoned, and nothing is loaded until it ends: a disk that hangs holds nobody up for ever.

Where others store too (`PageStore.is_shared`), the index is what this runtime knows of the store. A
sequence waits a moment for the answer whether there is more of its prefix. What a second sequence
begins with is stored while it is in memory. Only whole pages are shared.

What follows a public prefix privately is not stored: its keys (see `scheduling.namespaces`) mean
something to one runtime only. Knows tokens, pages, handles and measured costs; knows no sequence,
no file and no thread.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from lmprog.radix import Node, PageAllocator, RadixTree, Tokens, path
from lmprog.runtime.tier.page_store import (
    TOKEN_BYTES,
    KnownPage,
    LoadEnd,
    PageCosts,
    PageKey,
    PageStore,
    page_keys,
    root_of,
)

if TYPE_CHECKING:
    from lmprog.runtime.tier.shared_pages import TierQuestions

DECLINED_IN_TURN = 64
"""One in so many decisions against storing or loading is taken the other way."""
ASSUMED_PAGES = 256.0
"""As many pages count as stored, and loaded once each, before any were."""
REMEMBERED_PAGES = 2048
"""Pages stored after which what was counted before weighs half."""


class PageWorth:
    """`cost_per_token` says how many seconds computing a token takes, as measured so far.

    A page is worth storing or loading by the measured seconds of the store against those of
    computing its tokens again, and by how often a page that was stored comes back. Now and then
    the other way is taken, so that what it costs is measured again.
    """

    def __init__(self, cost_per_token: Callable[[], float]) -> None:
        self.cost_per_token = cost_per_token
        self._recent_stored = self._recent_loaded = ASSUMED_PAGES
        self._num_declined = 0

    @property
    def chance_of_return(self) -> float:
        """How often a page that is stored is loaded."""
        return self._recent_loaded / self._recent_stored

    def count_stored(self, num_pages: int) -> None:
        past = 0.5 ** (num_pages / REMEMBERED_PAGES)
        self._recent_stored = self._recent_stored * past + num_pages
        self._recent_loaded *= past

    def count_loaded(self, num_pages: int) -> None:
        self._recent_loaded += num_pages

    def pays_to_store(
        self, num_tokens: int, num_pages: int, costs: PageCosts, returns: float
    ) -> bool:
        """`returns`: how often these pages are expected to come back."""
        saved = returns * (num_tokens * self.cost_per_token() - num_pages * costs.load)
        return self._is_worth(saved, num_pages * costs.store)

    def pays_to_load(self, num_tokens: int, num_pages: int, costs: PageCosts) -> bool:
        """Before any token was computed nothing speaks against what was worth storing."""
        cost = self.cost_per_token()
        return cost <= 0.0 or self._is_worth(num_tokens * cost, num_pages * costs.load)

    def _is_worth(self, saved: float, cost: float) -> bool:
        if saved >= cost:
            return True
        self._num_declined += 1
        return self._num_declined % DECLINED_IN_TURN == 0


Take = Callable[[int, int, PageKey], bool]
"""Whether the store takes a page as the contents of a handle."""

WAITED_PART = 0.1
"""Evictions wait for room so long at most, as a part of the time that steps take."""
SAVED_WAIT = 0.02
"""Seconds: so much of what was not waited in short steps is left for one that evicts much."""
VAIN_WAITS = 8
"""After so many waits in turn without room nobody waits any more, until a page is taken."""
AHEAD_PART = 0.02
"""Storing ahead takes so much of it at most."""
AHEAD_STEPS = 1000
"""In so many steps pages are stored ahead, at first and whenever evictions have found the store
full: a page stored ahead may be used again, and then was stored for nothing."""
REST_SECONDS = 0.002
"""Seconds that storing may take in a turn without other work."""
CLOSE_WAIT = 1.0
"""Seconds that a page waits for room at the end, before the rest is given up."""

MOST_DUE = 256
"""Nodes that were used a second time and are to be stored; the oldest wait for their eviction."""

MOST_LOADS = 8
"""Loads under way at a time."""
SHARED_LOAD_SECONDS = 0.02
"""Of a shared store: it is abandoned after that and twice the time that its pages take."""
MOST_LOAD_SECONDS = 1.0
"""A load is abandoned after that and twice the time that computing its tokens takes."""


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
    of_others: int = 0
    """Learned of since: others have stored them."""


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
        self._num_vain = 0
        """Waits without room since a page was taken."""
        self._ahead_seconds = 0.0
        """Seconds that storing ahead may take in a step."""
        self._steps_left = AHEAD_STEPS
        """In which pages are stored ahead."""
        self._num_steps_stored = 0
        """After so many steps there was nothing left to store."""
        self._noted: deque[Node] = deque(maxlen=MOST_DUE)
        """Used again in the step that is planned: they may not be computed yet."""
        self._due: deque[Node] = deque(maxlen=MOST_DUE)
        tree.on_evict = self._evicted

    def begin(self, seconds: float) -> None:
        """A step took `seconds`; the next one begins."""
        part = WAITED_PART * seconds
        self._wait_left = min(max(SAVED_WAIT, part), max(0.0, self._wait_left) + part)
        self._ahead_seconds = AHEAD_PART * seconds
        self._due += self._noted
        self._noted.clear()

    def note(self, node: Node) -> None:
        """The path to `node` is used again: others may want it too."""
        if node.saved_to < node.end and node not in self._noted:
            self._noted.append(node)

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
        """Stores what was used again where others want it too, and what will be evicted next, for a
        little time and as long as the store takes it, until `num_pages` pages could be evicted
        without being stored. Looks at no more nodes than these pages are in, and at none where no
        eviction finds the store full.
        """
        ends = self._clock() + self._ahead_seconds

        def take(handle: int, page: int, key: PageKey) -> bool:
            return self._clock() <= ends and self._store.store(handle, page, key)

        while self._due and self._clock() <= ends:
            if (node := self._due.popleft()).alive and self._save(node, 1.0, take):
                self._due.append(node)
                break
        if not self._steps_left or num_pages <= 0:
            return
        self._steps_left -= 1
        before = self.counters.stored
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
            self._num_vain = 0
            return True
        self._steps_left, began = AHEAD_STEPS, self._clock()
        if self._wait_left <= 0.0 or self._num_vain >= VAIN_WAITS:
            return False
        is_taken = self._store.store(handle, page, key, self._wait_left)
        self._num_vain = 0 if is_taken else self._num_vain + 1
        self._wait_left -= self._clock() - began
        return is_taken

    def _save(self, node: Node, returns: float, takes: Take) -> int:
        """Stores the path to `node` as far as it is not stored and is worth it. `returns`: how
        often a page is expected to come back. Returns how many pages `takes` has left.
        """
        if node.saved_to >= node.end:
            return 0
        tokens, pages = _contents(node, self._page_size, self._store.is_shared)
        salt, size = root_of(node.salt).hex(), self._page_size
        found = self._index.match(tokens, salt)
        missing = len(tokens) - found.length
        num_pages, costs = -(-len(tokens) // size) - found.length // size, self._store.costs
        if not missing:
            node.kept_at = found.node
        if not missing or not self._worth.pays_to_store(missing, num_pages, costs, returns):
            node.saved_to = node.end
            return 0
        lock = self._index.lock(found.node, found.length)
        table = [*found.pages, *self._stored(tokens, node.salt, pages[len(found.pages) :], takes)]
        end = min(len(tokens), len(table) * size)
        if end > found.length:
            node.kept_at = self._index.insert(tokens[:end], table, salt).node
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


def _contents(node: Node, page_size: int, is_shared: bool) -> tuple[array[int], list[int]]:
    """Tokens and page table of the path to `node`, a leaf, up to the page of the first private key.
    Where it is shared, the whole pages of any node.
    """
    nodes = [*path(node)][::-1]
    tokens = array("i", b"".join(node.key for node in nodes))
    pages = [page for node in nodes for page in node.pages]
    if min(tokens) < 0:
        whole = next(at for at, token in enumerate(tokens) if token < 0) // page_size
        del tokens[whole * page_size :], pages[whole:]
    if is_shared:
        whole = min(len(tokens) // page_size, len(pages))
        del tokens[whole * page_size :], pages[whole:]
    return tokens, pages


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
        """Loads that have not ended all the same, and questions."""
        num_found = rebuild(self.index, self._handles, store.known(), page_size)
        self.storing = TierStoring(store, tree, self.index, self._handles, self._worth, clock)
        self.counters = self.storing.counters
        self.counters.found = num_found
        self._questions: TierQuestions | None = None
        if store.is_shared:
            from lmprog.runtime.tier.shared_pages import TierQuestions

            self._questions = TierQuestions(store, self.index, self._handles, self._pays, clock)

    @property
    def num_pages(self) -> int:
        """Pages that are stored."""
        return self.index.num_cached

    @property
    def capacity(self) -> int:
        """Pages that can be stored, or known to be stored, at a time."""
        return self._handles.num_pages

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
        return {**counts, "pages": float(self.num_pages), "capacity": float(self.capacity)}

    def discard(self, tokens: Tokens, salt: str) -> None:
        """The path of `tokens` holds something wrong: nothing of it is loaded any more."""
        found = self.index.match(tokens, root_of(salt).hex())
        if found.length:
            top = [*path(found.node)][-1]
            keys = page_keys(root_of(salt), tokens.tobytes(), self._page_size)
            self._store.forget(self.index.pages_below(top), keys)
            self.index.discard(top)

    # --- loading

    def fetch(
        self, tokens: Tokens, salt: str, limit: int, free: Callable[[int], bool]
    ) -> int | None:
        """Begins to load what is stored of `tokens[:limit]` beyond what the pool has, if that is
        worth it and `free` can free the pages it takes; or to ask what is. The number of the load,
        until it has ended; None where there is nothing to wait for.
        """
        match = self._tree.match(tokens, salt, limit)
        if self._questions is not None:
            if match.length:
                self.storing.note(match.node)
            length = match.length
            asked = None if self._abandoned else self._questions.ask(tokens, salt, length, limit)
            if asked is not None:
                return asked
            limit = self.index.match(tokens, root_of(salt).hex(), limit).length
            limit -= limit % self._page_size
        stored = self.index.match(tokens, root_of(salt).hex(), limit)
        gain = stored.length - match.length
        first, count = len(match.pages), self._num_pages(match.length, stored.length)
        if gain <= 0 or self._abandoned or not self._pays(gain, count):
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
        least, most = MOST_LOAD_SECONDS, gain * self._cost_per_token()
        if self._store.is_shared:
            least, most = SHARED_LOAD_SECONDS, count * self._store.costs.load
        ends = self._clock() + least + 2.0 * most
        load = TierLoad(
            tokens[: stored.length], salt, match.length, node, match.pages, pages, locked, ends
        )
        keys = page_keys(root_of(salt), load.tokens.tobytes(), self._page_size)[first:]
        ticket = self._store.load(handles, pages, keys)
        self._loads[ticket] = load
        return ticket

    def is_loading(self, ticket: int) -> bool:
        """Whether that load, or question, has not ended."""
        if self._questions is not None and self._questions.is_open(ticket):
            return True
        return ticket in self._loads

    def collect(self) -> None:
        """What has been loaded since the last time enters the pool's tree."""
        for done in self._store.finished():
            load = self._loads.pop(done.ticket, None)
            self._abandoned.discard(done.ticket)
            if self._questions is not None:
                self.counters.of_others += self._questions.take(done)
            if load is not None:
                self._finish(load, done)
        if self._loads:
            now = self._clock()
            for ticket in [one for one, load in self._loads.items() if load.ends < now]:
                self._abandon(ticket)
        if self._questions is not None:
            for ticket in self._questions.overdue():
                self._store.abandon(ticket)
                self._abandoned.add(ticket)

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
                inserted.node.saved_to, inserted.node.kept_at = end, load.stored
            self._pages.free(load.pages[: taken_from - first])
            self.counters.loaded += len(table) - taken_from
            self._worth.count_loaded(len(table) - taken_from)
            self._pages.free(load.pages[done.num_good :])
        else:
            self._pages.free(load.pages)
        self._tree.unlock(load.node)
        if num_lost := len(load.pages) - done.num_good:
            self.counters.lost += num_lost
            self.index.discard(load.stored, (first + done.num_good) * size)
        self.index.unlock(load.stored)

    # --- costs and checks

    def _pays(self, num_tokens: int, num_pages: int) -> bool:
        return self._worth.pays_to_load(num_tokens, num_pages, self._store.costs)

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


def rebuild(
    index: RadixTree, handles: PageAllocator, known: Sequence[KnownPage], page_size: int
) -> int:
    """Inserts the paths of `known` into the empty `index`, those written last as used last. Returns
    how many pages it has then.
    """
    newest: dict[PageKey, KnownPage] = {}
    for one in sorted(known, key=lambda one: one.age):
        newest.pop(one.key, None)  # it stands where the newest was written
        newest[one.key] = one
    by_age = list(newest.values())
    whole = {one.key.id: one for one in by_age if len(one.key.tokens) == page_size * TOKEN_BYTES}
    parents = {one.key.parent for one in by_age}
    handles.allocate(handles.num_pages)
    for one in by_age:
        is_last = len(one.key.tokens) < page_size * TOKEN_BYTES or one.key.id not in parents
        if is_last and (line := _path_to(one, whole)):
            tokens = array("i", b"".join(page.key.tokens for page in line))
            index.insert(tokens, [page.handle for page in line], line[0].key.parent.hex())
    handles.keep_only(index.pages_held())
    return index.num_cached


def _path_to(last: KnownPage, whole: dict[bytes, KnownPage]) -> list[KnownPage]:
    """The pages from the first to `last`; empty where one is missing."""
    line = [last]
    while line[-1].key.index:
        before = whole.get(line[-1].key.parent)
        if before is None or before.key.index != line[-1].key.index - 1:
            return []
        line.append(before)
    return line[::-1]
