"""What goes to the second tier, and when: pages on their eviction, ahead of it, and while there is
nothing else to do; states of recurrent layers with the pages of their paths.

A store takes no more at a time than it can have under way, and one step may evict more than that.
So evictions wait a little for room, and where that happens what will be evicted next is stored
ahead: in each step when its rows are planned, so that the store works while they are computed.

A page is stored where that is expected to save more than storing costs (`PageWorth`): a state by
the tokens that must be computed again without it. What lies behind the last state of a path is of
no use, and is not stored. So it is with frames of layers with windows, of which those that are kept
for others are stored, and with what lies behind the last window. What follows a public prefix
privately is not stored: its keys (see `scheduling.namespaces`) mean something to one runtime only.

Knows trees, pages, handles and measured costs; loads nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from lmprog.radix import Match, Node, PageAllocator, RadixTree
from lmprog.radix.frames import WindowStretch
from lmprog.radix.snapshots import StateSnapshot
from lmprog.runtime.tier.page_store import (
    TOKEN_BYTES,
    PageCosts,
    PageKey,
    PageStore,
    page_keys,
    root_of,
)
from lmprog.runtime.tier.stored_frames import StoredFrames
from lmprog.runtime.tier.stored_states import StoredStates, above, contents, make_room

if TYPE_CHECKING:
    from lmprog.runtime.tier.tier_questions import StoredParts

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


class BesidePages(NamedTuple):
    """What is stored beside pages."""

    states: StoredStates | None
    """Of a model with recurrent layers."""
    frames: StoredFrames | None
    """Of one whose layers with windows have frames."""


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
        beside: BesidePages,
    ) -> None:
        """`clock` is in seconds."""
        self._states, self._frames = states, frames = beside
        if frames is not None:
            frames.pool.on_drop = self._stretch_dropped
        if states is not None:
            states.pool.on_evict = self._state_evicted
        self._store = store
        self._tree = tree
        self._index = index
        self.parts: StoredParts | None = None
        """Of pages, in a store that others share."""
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
        self.source: Callable[[int], int] = lambda page: page
        """The page that has now what a page will have once the step being planned has made its
        copies."""
        self.frame_source: Callable[[int], int | None] = lambda page: None
        """The same of its frame; None: its own."""
        self.is_written: Callable[[int], bool] = lambda page: False
        """Whether the step being planned computes what a page will have."""

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
        there is time. Whether it came to the end of them.
        """
        for node in self._tree.newest_first():
            if (not node.children and self._save(node, 1.0, self._takes)) or not has_time():
                return False
        return True

    def rest(self, num_steps: int) -> bool:
        """A turn had no work, after so many steps in all: stores for a little while, until there
        is nothing new since the last of them. Whether it could go on at once.
        """
        if num_steps == self._num_steps_stored:
            return False
        ends, before = self._clock() + REST_SECONDS, self.counters.stored
        if self.save_recent(lambda: self._clock() < ends):
            self._num_steps_stored = num_steps
            return False
        return self.counters.stored > before  # else the store is full, for a moment

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
        if self._states is not None:
            self._states.pool.on_evict = None
        if self._frames is not None:
            self._frames.pool.on_drop = None

    def _state_evicted(self, snapshot: StateSnapshot) -> None:
        """It goes by itself, while the pages of its path stay."""
        if self._states is not None and self._states.pool.is_wanted(snapshot):
            node, end = snapshot.node, snapshot.position
            left = self._save_path(node, end, self._worth.chance_of_return, self._takes_in_time)
            self.counters.refused += left

    def _stretch_dropped(self, stretch: WindowStretch) -> None:
        """Its frames go by themselves, while the pages of its path stay."""
        node, end = stretch.node, stretch.position
        if node is None or not node.alive or any(map(self.is_written, stretch.pages)):
            return
        node, end = above(node, end)
        left = self._save_path(node, end, self._worth.chance_of_return, self._takes_in_time)
        self.counters.refused += left

    def _evicted(self, node: Node, num_pages: int) -> None:
        """The last `num_pages` pages of `node`, a leaf of the pool's tree, are about to go."""
        if self._states is not None:
            kept = node.begin // self._page_size + len(node.pages) - num_pages
            if not self._states.is_behind(node, kept * self._page_size):
                return
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
        part = None if self.parts is None else self._parting(self.parts, node)
        num_left = self._save_path(node, node.end, returns, takes)
        if self.parts is not None and part is not None and not num_left:
            num_left = self._save_part(self.parts, *part, max(1.0, returns), takes)
            if num_left:
                node.saved_to = 0
        return num_left

    def _parting(self, parts: StoredParts, node: Node) -> tuple[PageKey, int] | None:
        """What the path to `node` has in common of a page with another one that is stored, from
        which it parts inside that page; and the pool's page. None where that is known to be stored.
        """
        size, root = self._page_size, root_of(node.salt)
        tokens, pages = contents(self._tree, node, node.end, is_shared=False)
        common = self._index.match(tokens, root.hex()).length
        at = common // size
        if not (at and common % size) or common == len(tokens):
            return None
        key = page_keys(root, tokens[:common].tobytes(), size)[-1]
        return None if parts.has(key) else (key, pages[at])

    def _save_part(
        self, parts: StoredParts, key: PageKey, page: int, returns: float, takes: Take
    ) -> int:
        """Stores it, if it is worth it. Returns how many pages `takes` has left."""
        num_tokens, page = len(key.tokens) // TOKEN_BYTES, self.source(page)
        if self.is_written(page):
            return 0
        if not self._worth.pays_to_store(num_tokens, 1, self._store.costs, returns):
            return 0
        if not takes(0, page, key):
            return 1
        parts.learn(key)
        self.counters.stored += 1
        return 0

    def _save_path(self, node: Node, end: int, returns: float, takes: Take) -> int:
        """The same for its part up to position `end`, and the states behind parts of it, or the
        frames of its windows: what lies behind the last of these is of no use.
        """
        states, salt, size = self._states, root_of(node.salt).hex(), self._page_size
        frames, is_shared = self._frames, self._store.is_shared
        tokens, pages = contents(self._tree, node, end, is_shared)
        wanted: list[StateSnapshot] = []
        if states is not None:
            wanted = states.wanted(node, len(tokens), whole=is_shared)
            end = wanted[-1].position if wanted else 0
            del tokens[end:], pages[-(-end // size) :]
        framed: dict[int, int] = {}
        if frames is not None:
            known = self._index.match(tokens, salt)
            end = frames.end_to_store(len(tokens), pages, known)
            del tokens[end:], pages[-(-end // size) :]
            framed = {at: frames.pool.frames[pages[at]] for at in frames.to_store(pages)}
        if pages:  # only the last one, partly filled, may be copied to
            last = self.frame_source(pages[-1])
            if last is not None and len(pages) - 1 in framed:
                framed[len(pages) - 1] = last
            pages[-1] = self.source(pages[-1])
        found = self._index.match(tokens, salt)
        missing = gained = len(tokens) - found.length
        num_pages, costs = -(-len(tokens) // size) - found.length // size, self._store.costs
        if states is not None:
            gained = states.gain(found.node, len(tokens), found.length)
            num_pages += states.num_parts
            if wanted and not missing and states.is_needless(wanted[-1], found):
                gained = 0
        if frames is not None:
            gained = frames.gain(len(tokens), found)
            num_pages += frames.num_parts * sum(
                at >= len(found.pages) or not frames.is_stored(found.pages[at]) for at in framed
            )
        if not missing:
            node.kept_at = found.node
        if not gained or not self._worth.pays_to_store(gained, num_pages, costs, returns):
            node.saved_to = node.end
            return 0
        lock = self._index.lock(found.node, found.length)
        keys = page_keys(root_of(node.salt), tokens.tobytes(), size)
        reached, stored, num_left = found.length, lock, 0
        if missing:
            new, names = pages[len(found.pages) :], keys[len(found.pages) :]
            table = [*found.pages, *self._stored(new, names, takes)]
            num_left = len(pages) - len(table)
            if (end := min(len(tokens), len(table) * size)) > reached:
                reached = end
                stored = node.kept_at = self._index.insert(tokens[:reached], table, salt).node
        if wanted:
            held = self._index.lock(stored)
            for one in wanted:
                if one.position <= reached:
                    num_left += self._save_state(held, one, keys, takes, returns)
            self._index.unlock(held)
        if frames is not None and framed:
            held = self._index.lock(*above(stored, reached))
            there = self._index.match(tokens, salt, reached)
            num_left += self._save_frames(framed, there, keys, takes)
            if not num_left:
                frames.count_gain(gained)
                frames.passes(held, reached)
            self._index.unlock(held)
        self._index.unlock(lock)
        node.saved_to = 0 if num_left else node.end
        return num_left

    def _save_state(
        self, held: Node, one: StateSnapshot, keys: list[PageKey], takes: Take, returns: float
    ) -> int:
        """Stores the state `one`, whose path the index has, locked at `held`; `keys` are those of
        the path's pages, or of more. Returns how many parts `takes` has left.
        """
        states, costs = self._states, self._store.costs
        assert states is not None, "there is no state without them"
        num_parts, gain = states.num_parts, states.gain(held, one.position, one.position)
        if not gain or not self._worth.pays_to_store(gain, num_parts, costs, returns):
            return 0
        names = states.keys(keys, one.position)
        handles = self._stored(states.pages(one.slot), names, takes)
        if len(handles) < num_parts:
            self._handles.free(handles)
            return num_parts - len(handles)
        states.enter(held, one.position, handles, one)
        return 0

    def _save_frames(
        self, framed: dict[int, int], path: Match, keys: list[PageKey], takes: Take
    ) -> int:
        """Stores frames of pages of `path`, which the index has, by their places on it. A page that
        is partly filled may be another one's, with more tokens than its frame has here: then that
        is not stored. Returns how many parts `takes` has left.
        """
        frames, table = self._frames, list(path.pages)
        assert frames is not None, "there are no frames without them"
        if path.partial is not None and path.node.end == path.length and not path.node.children:
            table.append(path.partial)
        for at, frame in framed.items():
            if at >= len(table) or frames.is_stored(table[at]):
                continue
            parts = self._stored(frames.pool.parts([frame]), frames.keys(keys[at]), takes)
            if len(parts) < frames.num_parts:
                self._handles.free(parts)
                return frames.num_parts - len(parts)
            frames.enter(table[at], parts)
        return 0

    def _stored(self, pages: list[int], keys: list[PageKey], takes: Take) -> list[int]:
        """Stores `pages`; returns the handles of those that were taken."""
        make_room(self._index, self._handles, self._states, len(pages))
        handles = self._handles.allocate(min(len(pages), self._handles.num_free)) or []
        count = 0
        for handle, page, key in zip(handles, pages, keys, strict=False):
            if not takes(handle, page, key):
                break
            count += 1
        self._handles.free(handles[count:])
        self.counters.stored += count
        self._worth.count_stored(count)
        return handles[:count]
