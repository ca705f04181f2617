"""The second tier: evicted pages are stored, and come back when a sequence waits for them.

The index of what is stored is a prefix tree too, over the store's handles in place of pages: exact
to the token, with its own least-recently-used order. A path of the pool's tree may be stored, or
not, or be stored alone, once the pool has evicted it. Whatever is loaded enters the pool's tree as
if it had been computed. Of a store that was opened again the index is rebuilt from the keys of its
pages.

`storing` says what is stored, and when. A page is loaded where computing its tokens again costs
more. Of a model with recurrent layers a path is loaded up to the last state that is stored, and the
state with it: tokens, pages and parts of the state are weighed together. So it is with the frames
that layers with windows have: a path is loaded up to the last position whose window is in memory or
stored. A load that takes far longer than computing would have taken is abandoned, and nothing is
loaded until it ends: a disk that hangs holds nobody up for ever.

Where others store too (`PageStore.is_shared`), the index is what this runtime knows of the store. A
sequence waits a moment for the answer whether there is more of its prefix. What a second sequence
begins with is stored while it is in memory. Whole pages are shared, states between two, and of a
page the part before a place where texts part (`tier_questions`).

Knows tokens, pages, handles and measured costs; knows no sequence, no file and no thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NamedTuple

from lmprog.radix import Match, Node, PageAllocator, RadixTree, Tokens, path
from lmprog.radix.frames import FramesHeld, WindowPages
from lmprog.runtime.tier.page_store import HELD_UP_SECONDS, LoadEnd, PageStore, page_keys, root_of
from lmprog.runtime.tier.stored_frames import FrameHandles, FrameLoad, StoredFrames
from lmprog.runtime.tier.stored_states import (
    PoolStates,
    StateLoad,
    StoredStates,
    above,
    rebuild,
)
from lmprog.runtime.tier.storing import BesidePages, PageWorth, TierStoring

if TYPE_CHECKING:
    from lmprog.runtime.tier.tier_questions import StoredParts, TierQuestions

MOST_LOADS = 8
"""Loads under way at a time."""
SHARED_LOAD_SECONDS = 0.02
"""Of a shared store: it is abandoned after that and twice the time that its pages take."""
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
    state: StateLoad | None = None
    """Behind its last token, of a model with recurrent layers."""
    frames: FrameLoad | None = None
    """Of the window before its end, where layers with windows have frames."""

    @property
    def end(self) -> int:
        return len(self.tokens)

    def is_of(self, stored: Node, end: int) -> bool:
        """Whether it brings all of the path up to `end`, which lies in `stored`."""
        if self.state is not None:
            return self.state.stored.node is stored and self.end == end
        if self.frames is not None:
            return self.stored is stored and self.end == end
        return self.stored is stored and self.end >= end


class _Missing(NamedTuple):
    """What is to be loaded: `tokens` from position `start` on, of which the pool has `known` and
    the index `stored`, and all behind that is a part of a page. It makes `gain` tokens needless to
    compute.
    """

    tokens: Tokens
    salt: str
    known: Match
    stored: Match
    start: int
    gain: int
    frames: FrameLoad | None


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
        states: PoolStates | None = None,
        windows: WindowPages | None = None,
    ) -> None:
        """`states` are those of a model with recurrent layers. `windows` are the pages, where
        layers with windows have frames of their own.
        """
        self._store = store
        self._tree = tree
        self._pages = pages
        self._page_size = page_size = tree.page_size
        self._cost_per_token = cost_per_token
        self._clock = clock
        self._worth = PageWorth(cost_per_token)
        self._frames: StoredFrames | None = None
        self._handles = PageAllocator(store.num_handles)
        if windows is not None:
            assert not store.is_shared, "what others stored has no frames that are known here"
            self._handles = handles = FrameHandles(store.num_handles)
            self._frames = StoredFrames(windows, handles, page_size)
        self.index = RadixTree(page_size, self._handles)
        self._loads: dict[int, TierLoad] = {}
        self._abandoned: set[int] = set()
        """Loads that have not ended all the same, and questions."""
        self._states: StoredStates | None = None
        if states is not None:
            self._states = StoredStates(states, pages.num_pages, self.index, self._handles)
        beside = BesidePages(self._states, self._frames)
        num_found = rebuild(self.index, self._handles, store.known(), *beside)
        self.storing = TierStoring(
            store, tree, self.index, self._handles, self._worth, clock, beside
        )
        self.counters = self.storing.counters
        self.counters.found = num_found
        self._questions: TierQuestions | None = None
        self._parts: StoredParts | None = None
        if store.is_shared:
            from lmprog.runtime.tier.tier_questions import StoredParts, TierQuestions

            if states is None:
                self._parts = self.storing.parts = StoredParts(page_size)
            self._questions = TierQuestions(
                *(store, self.index, self._handles, self._pays, clock, self._states, self._parts)
            )

    @property
    def num_pages(self) -> int:
        """Pages that are stored, parts of states among them."""
        return self._handles.num_pages - self._handles.num_free

    @property
    def capacity(self) -> int:
        """Pages that can be stored, or known to be stored, at a time."""
        return self._handles.num_pages

    def cost_of_return(self) -> float:
        """Seconds for a token that comes back, computed again or loaded."""
        if self._abandoned:
            return self._cost_per_token()
        costs = self._store.costs
        pages = 1.0 / self._page_size
        if self._states is not None:
            pages += self._states.parts_per_token
        if self._frames is not None:
            pages += self._frames.parts_per_token
        return min(self._cost_per_token(), (costs.store + costs.load) * pages)

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
            handles = self.index.pages_below(top)
            if self._states is not None:
                handles += self._states.handles_below(top)
                keys += self._states.keys_of_all(keys)
            if isinstance(self._handles, FrameHandles):
                handles += self._handles.parts_of(handles)
            if self._parts is not None:
                keys = self._parts.with_parts(keys)
            self._store.forget(handles, keys)
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
        states, frames, known = self._states, self._frames, match.length
        if states is not None:
            known = states.usable(match)
        if frames is not None:
            known = frames.usable(match)
        if self._questions is not None:
            if match.length:
                self.storing.note(match.node)
            asked = None if self._abandoned else self._questions.ask(tokens, salt, known, limit)
            if asked is not None:
                return asked
            last = self.index.match(tokens, root_of(salt).hex(), limit).length
            limit, last = last - last % self._page_size, limit
        stored = self.index.match(tokens, root_of(salt).hex(), limit)
        end, num_parts = stored.length, 0
        if self._parts is not None:
            end += self._parts.longest(tokens, salt, end, last)
        if states is not None:
            end, num_parts = states.last(stored), states.num_parts
        if frames is not None:
            end = frames.end(match, stored)
        gain, start = end - known, min(match.length, end)
        first, count = start // self._page_size, 0
        if start < end:
            count = self._num_pages(start, end)
        framed: FrameLoad | None = None
        if frames is not None and gain > 0:
            stored = self.index.match(tokens, root_of(salt).hex(), end)
            framed = frames.planned(match, stored, first, end)
            num_parts = frames.num_parts * len(framed.places)
        if gain <= 0 or self._abandoned or not self._pays(gain, count + num_parts):
            return None
        for ticket, load in self._loads.items():
            if load.is_of(above(stored.node, end)[0], end):
                return ticket
        if len(self._loads) >= MOST_LOADS:
            return None
        return self._begin(_Missing(tokens[:end], salt, match, stored, start, gain, framed), free)

    def _begin(self, missing: _Missing, free: Callable[[int], bool]) -> int | None:
        """Begins to load it; None: `free` cannot free the pages it takes."""
        tokens, salt, match, stored, start, gain, framed = missing
        end, first, count = len(tokens), start // self._page_size, 0
        if start < end:
            count = self._num_pages(start, end)
        states, frames = self._states, self._frames
        node = self._tree.lock(*above(match.node, start))
        whole = min(end, stored.length)
        locked = self.index.lock(*above(stored.node, whole))
        state = None if states is None else states.begin(locked, end)
        if frames is not None and framed is not None:
            frames.hold(framed)
        has_room = states is None or state is not None
        pages = self._taken(count, framed, free) if has_room else None
        handles = stored.pages[first : end // self._page_size] if count else []
        last = self.index.partial_page(locked, whole) if count else None  # room may have moved it
        if last is not None:
            handles.append(last)
        elif whole < end:
            handles.append(0)  # a part of a page is known by its key alone
        if pages is None or (frames and framed and not frames.are_there(framed, last)):
            self._pages.free(pages or ())
            self._let_go(node, locked, state, framed)
            return None
        names = page_keys(root_of(salt), tokens.tobytes(), self._page_size)
        keys, targets = names[first : first + count], pages
        if states is not None and state is not None:
            handles = handles + states.handles(state.stored)
            targets = pages + states.pages(state.slot)
            keys = keys + states.keys(names, end)
        if frames is not None and framed is not None:
            handles = handles + frames.handles(framed)
            targets = pages + frames.pool.parts(framed.frames)
            keys = keys + [key for at in framed.places for key in frames.keys(names[at])]
        least, most = MOST_LOAD_SECONDS, gain * self._cost_per_token()
        if self._store.is_shared:
            least, most = SHARED_LOAD_SECONDS, len(targets) * self._store.costs.load
        ends = self._clock() + least + 2.0 * most
        load = TierLoad(
            *(tokens, salt, start, node, match.pages[:first], pages, locked, ends, state, framed)
        )
        ticket = self._store.load(handles, targets, keys)
        self._loads[ticket] = load
        return ticket

    def _taken(
        self, count: int, framed: FrameLoad | None, free: Callable[[int], bool]
    ) -> list[int] | None:
        """Pages for a load, and its frames; None: there is no room."""
        frames = self._frames
        if frames is None or framed is None:
            if not free(count):
                return None
            pages = self._pages.allocate(count)
            assert pages is not None, "room was made for them"
            return pages
        num_frames = len(framed.places)
        if not free(frames.pool.cost_apart(count, num_frames)):
            return None
        taken = frames.pool.allocate_apart(count, num_frames)
        if taken is None:
            return None
        framed.frames = taken[1]
        return taken[0]

    def _let_go(
        self, node: Node, stored: Node, state: StateLoad | None, framed: FrameLoad | None
    ) -> None:
        """A load has ended, or cannot begin."""
        if self._frames is not None and framed is not None:
            self._frames.let_go(framed)
        self._tree.unlock(node)
        self.index.unlock(stored)
        if self._states is not None and state is not None:
            self._states.end(state)

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
            for ticket, ends in [(one, load.ends) for one, load in self._loads.items()]:
                is_patient = now < ends + HELD_UP_SECONDS
                if ends < now and self._store.abandon(ticket, is_patient=is_patient):
                    self._abandon(ticket)
        if self._questions is not None:
            self._abandoned |= set(self._questions.overdue())

    def _abandon(self, ticket: int) -> None:
        """Nobody waits for that load any more, and its pages are free."""
        self._abandoned.add(ticket)
        load = self._loads.pop(ticket)
        self._pages.free(load.pages)
        self._let_go(load.node, load.stored, load.state, load.frames)
        self.counters.abandoned += self._num_asked(load)

    def _num_asked(self, load: TierLoad) -> int:
        """Pages of a load, parts of its state or its frames among them."""
        count = len(load.pages) + (0 if load.state is None else load.state.num_parts)
        if self._frames is not None and load.frames is not None:
            count += len(load.frames.places) * self._frames.num_parts
        return count

    def _finish(self, load: TierLoad, done: LoadEnd) -> None:
        size, first = self._page_size, len(load.known)
        num_good = min(done.num_good, len(load.pages))
        end = min(load.end, (first + num_good) * size) if load.pages else load.end
        taken_from, reached = first + num_good, load.node
        is_there = load.node.alive and load.stored.alive
        if is_there and end > load.start:
            table = [*load.known, *load.pages[:num_good]]
            inserted = self._tree.insert(load.tokens[:end], table, load.salt)
            taken_from, reached = inserted.first_taken, inserted.node
            if taken_from < len(table):
                inserted.node.saved_to, inserted.node.kept_at = end, load.stored
            self._pages.free(load.pages[: taken_from - first])
            self._count_loaded(len(table) - taken_from)
            self._pages.free(load.pages[num_good:])
        else:
            self._pages.free(load.pages)
        if self._states is not None and load.state is not None:
            is_whole = done.num_good == self._num_asked(load)
            if is_there and is_whole and self._states.loaded(load.state, reached, end):
                self._count_loaded(load.state.num_parts)
            elif done.num_good >= len(load.pages) and not is_whole:
                names = page_keys(root_of(load.salt), load.tokens.tobytes(), size)
                handles = self._states.handles(load.state.stored)
                self._store.forget(handles, self._states.keys(names, load.end))
                self._states.lost(load.state)
        if self._frames is not None and load.frames is not None:
            self._finish_frames(self._frames, load, load.frames, done.num_good, is_there=is_there)
        if num_good < len(load.pages):
            self.index.discard(load.stored, (first + num_good) * size)
            if self._parts is not None and load.end % size:
                root, tokens = root_of(load.salt), load.tokens.tobytes()
                self._parts.forget(page_keys(root, tokens, size)[-1:])
        self.counters.lost += self._num_asked(load) - done.num_good
        self._let_go(load.node, load.stored, load.state, load.frames)

    def _finish_frames(
        self,
        frames: StoredFrames,
        load: TierLoad,
        framed: FrameLoad,
        num_good: int,
        *,
        is_there: bool,
    ) -> None:
        num_parts = num_good - len(load.pages)
        if num_good == self._num_asked(load):
            if is_there:
                path = self._tree.match(load.tokens, load.salt)
                frames.loaded(framed, path, load.pages)
                self._count_loaded(num_parts)
        elif num_parts >= 0:
            names = page_keys(root_of(load.salt), load.tokens.tobytes(), self._page_size)
            keys = frames.keys(names[framed.places[num_parts // frames.num_parts]])
            self._store.forget(frames.lost(framed, num_parts), keys)

    def _count_loaded(self, num_pages: int) -> None:
        self.counters.loaded += num_pages
        self._worth.count_loaded(num_pages)

    # --- costs and checks

    def _pays(self, num_tokens: int, num_pages: int) -> bool:
        return self._worth.pays_to_load(num_tokens, num_pages, self._store.costs)

    def _num_pages(self, start: int, end: int) -> int:
        """Pages that hold the positions `start .. end`, and those before `start` in its page."""
        return -(-end // self._page_size) - start // self._page_size

    def pages_held(self) -> list[int]:
        """The pool's pages that are being loaded."""
        return [page for load in self._loads.values() for page in load.pages]

    def frames_held(self) -> FramesHeld:
        """The pool's frames that are being loaded, and those that are needed with them."""
        held = FramesHeld([], [])
        for load in self._loads.values():
            if load.frames is not None:
                held.pages.extend(load.frames.held)
                held.apart.extend(load.frames.frames)
        return held

    def slots_held(self) -> list[int]:
        """The pool's slots into which states are being loaded."""
        return [load.state.slot for load in self._loads.values() if load.state is not None]

    def check(self) -> None:
        """All invariants of the index; raises AssertionError."""
        self.index.check()
        held = self.index.pages_held()
        if self._states is not None:
            held += self._states.checked()
        if isinstance(self._handles, FrameHandles):
            held += self._handles.parts_of(held)
        self._handles.check(held)
        assert self._loads or self.index.num_evictable == self.index.num_cached, (
            "only loads lock what is stored"
        )

    def close(self, has_time: Callable[[], bool]) -> None:
        """Stores what the pool has, while there is time. Nothing is stored any more after it."""
        self.storing.close(has_time)
        self._store.close()
