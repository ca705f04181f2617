"""What the index of a second tier has: paths over handles, and where a state of recurrent layers is
stored on them.

A stored state takes as many handles as its parts, of the same that pages take, and belongs to its
path in the index as a snapshot does to its path in the pool's tree (`radix.snapshots` is the same
for both). One that a later state of its path makes needless goes first. Knows paths, snapshots and
handles; moves no contents and decides nothing about worth.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from lmprog.radix import Match, Node, PageAllocator, RadixTree, path
from lmprog.radix.snapshots import StateSnapshot, StateSnapshots, parts_of_slot
from lmprog.runtime.tier.page_store import TOKEN_BYTES, KnownPage, PageKey
from lmprog.runtime.tier.stored_frames import StoredFrames


class PoolStates(NamedTuple):
    """Recurrent states in memory."""

    snapshots: StateSnapshots
    num_parts: int
    """Pages that a state takes in the tier."""


@dataclass(slots=True)
class StateLoad:
    """A stored state on its way to a slot of the pool; it is locked meanwhile."""

    stored: StateSnapshot
    slot: int
    num_parts: int
    is_taken: bool = False
    """Whether the slot is a snapshot's by now."""


class StateHandles(PageAllocator):
    """Numbers of stored states. A number that is freed gives the handles of its parts back."""

    def __init__(self, handles: PageAllocator, num_parts: int) -> None:
        super().__init__(handles.num_pages // num_parts)
        self._handles = handles
        self.of: dict[int, list[int]] = {}

    def named(self, handles: list[int]) -> int:
        """A number for the state in these handles."""
        numbers = self.allocate(1)
        assert numbers is not None, "there are numbers for all handles"
        self.of[numbers[0]] = handles
        return numbers[0]

    def free(self, pages: Iterable[int]) -> None:
        numbers = list(pages)
        super().free(numbers)
        for number in numbers:
            if number in self.of:
                self._handles.free(self.of.pop(number))


class StoredStates:
    """Those of the paths of `index`, whose pages are `handles`; and those in memory, `pool`."""

    def __init__(
        self, states: PoolStates, num_pages: int, index: RadixTree, handles: PageAllocator
    ) -> None:
        """The pool has `num_pages`."""
        self._num_pages = num_pages
        self.pool, self.num_parts = states
        self._page_size = index.page_size
        self._numbers = StateHandles(handles, self.num_parts)
        self._stored = index.watcher = StateSnapshots(self._numbers)
        index.useless_tail = self._stored.useless_tail
        self._index = index
        self._handles = handles
        self._num_entered = self._num_tokens = 0

    @property
    def parts_per_token(self) -> float:
        """Of the states stored so far: parts for each token that one makes needless to compute."""
        return self._num_entered * self.num_parts / max(1, self._num_tokens)

    # --- in memory

    def usable(self, match: Match) -> int:
        """The part of `match`, of the pool's tree, behind which there is a state."""
        found = self.pool.last(match.node, match.length)
        return 0 if found is None else found.position

    def wanted(self, node: Node, end: int, *, whole: bool) -> list[StateSnapshot]:
        """Those of the path to `node` up to `end` that are worth storing, in order: the last one,
        and those that others may go on from. `whole`: only those between two pages.
        """
        size = self._page_size if whole else 1
        found = self.pool.on_path(node, end)
        usable = [one for one in found if one.is_ready and not one.position % size]
        return [one for one in usable if one is usable[0] or self.pool.is_wanted(one)][::-1]

    def is_behind(self, node: Node, position: int) -> bool:
        """Whether the last state of the path to `node` lies behind `position`."""
        found = self.pool.last(node, node.end)
        return found is not None and found.position > position

    def is_needless(self, one: StateSnapshot, match: Match) -> bool:
        """Whether nobody is known to go on from `one`, and the index, which has its path, has more
        of a path behind it: that ends at a later state.
        """
        goes_on = match.node.children or match.length < match.node.end
        return bool(goes_on) and not self.pool.is_wanted(one)

    def pages(self, slot: int) -> list[int]:
        """The parts of a slot as the pool's pages."""
        return list(parts_of_slot(slot, self.num_parts, self._num_pages))

    # --- in the store

    def keys(self, pages: Sequence[PageKey], position: int) -> list[PageKey]:
        """Of the parts of the state at `position` of a path whose pages have these keys."""
        size = self._page_size
        last = pages[(position - 1) // size]
        tokens = last.tokens[: ((position - 1) % size + 1) * TOKEN_BYTES]
        return [
            replace(last, tokens=tokens, part=number) for number in range(1, self.num_parts + 1)
        ]

    def last(self, match: Match) -> int:
        """The position of the last stored state of `match`, of the index; 0: there is none."""
        found = self._stored.last(match.node, match.length)
        return 0 if found is None else found.position

    def gain(self, node: Node, position: int, known: int) -> int:
        """Tokens that a state at `position` of the path to `node`, which the index has up to
        `known`, makes needless to compute.
        """
        found = self._stored.last(node, min(position, known))
        return position - (0 if found is None else found.position)

    def enter(
        self, node: Node, position: int, handles: list[int], pool: StateSnapshot | None = None
    ) -> None:
        """The state at `position` of the index's path to `node` is stored; `pool` is the snapshot
        that it was.
        """
        self._num_tokens += self.gain(node, position, position)
        self._num_entered += 1
        before = self._stored.last(node, position)
        self._stored.put(node, position, self._numbers.named(handles))
        if before is None or pool is None:
            return
        same = self.pool.ending_at(pool.node, before.position)
        if before.num_uses == 1 or (same is not None and not self.pool.is_wanted(same)):
            if not before.num_uses:
                self._stored.use(before)
            self._stored.passed(before)

    def learn(self, node: Node, position: int) -> int:
        """Others have stored the state at `position`, where `node`, which is locked, ends. Returns
        how many parts have become known by it.
        """
        make_room(self._index, self._handles, self, self.num_parts)
        if self._stored.ending_at(node, position) is not None:
            return 0
        handles = self._handles.allocate(self.num_parts)
        if handles is None:
            return 0
        self.enter(node, position, handles)
        return self.num_parts

    def make_room(self) -> bool:
        """Drops one that a later one of its path makes needless; False: there is none."""
        return self._stored.drop_least_used()

    def begin(self, node: Node, position: int) -> StateLoad | None:
        """Begins to load the state at `position`, where `node` of the index ends. None: the pool
        has no slot for it.
        """
        stored = self._stored.ending_at(node, position)
        assert stored is not None, "a load ends where a state is"
        self._stored.lock(stored)
        slot = self.pool.take_slot()
        if slot is None:
            self._stored.unlock(stored)
            return None
        return StateLoad(stored, slot, self.num_parts)

    def handles(self, stored: StateSnapshot) -> list[int]:
        return self._numbers.of[stored.slot]

    def loaded(self, state: StateLoad, node: Node, position: int) -> bool:
        """All parts are in its slot, which becomes a snapshot at `position` of the pool's path to
        `node`; False: there is one by now.
        """
        if state.stored.is_kept:
            self._stored.use(state.stored)
        if self.pool.ending_at(node, position) is not None:
            return False
        self.pool.put(node, position, state.slot)
        state.is_taken = True
        return True

    def lost(self, state: StateLoad) -> None:
        """It is not what was stored."""
        self._stored.drop(state.stored)

    def end(self, state: StateLoad) -> None:
        """The load has ended."""
        self._stored.unlock(state.stored)
        if not state.is_taken:
            self.pool.slots.free([state.slot])

    def handles_below(self, top: Node) -> list[int]:
        """Of all states at `top` of the index and below it."""
        return [handle for one in self._stored.below(top) for handle in self.handles(one)]

    def keys_of_all(self, pages: Sequence[PageKey]) -> list[PageKey]:
        """Of the states behind whole pages of a path whose pages have these keys."""
        ends = range(self._page_size, len(pages) * self._page_size + 1, self._page_size)
        return [key for end in ends for key in self.keys(pages, end)]

    def checked(self) -> list[int]:
        """The handles of all states; raises AssertionError where an invariant is broken."""
        self._stored.check(())
        assert set(self._numbers.of) == set(self._numbers.taken()), "each state has its handles"
        return [handle for handles in self._numbers.of.values() for handle in handles]


def contents(
    tree: RadixTree, node: Node, end: int, is_shared: bool
) -> tuple[array[int], list[int]]:
    """Tokens and page table of the path to position `end` of `node`, up to the page of the first
    private key. Where the store is shared, whole pages only.
    """
    size = tree.page_size
    nodes = [*path(node)][::-1]
    tokens = array("i", b"".join(one.key for one in nodes))[:end]
    pages = [page for one in nodes for page in one.pages][: -(-end // size)]
    if len(pages) * size < end and (last := tree.partial_page(node, end)) is not None:
        pages.append(last)
    if tokens and min(tokens) < 0:
        end = next(at for at, token in enumerate(tokens) if token < 0) // size * size
    if is_shared:
        end = end // size * size
    del tokens[end:], pages[-(-end // size) :]
    return tokens, pages


def above(node: Node, position: int) -> tuple[Node, int]:
    """The node of the path to `node` in which `position` lies, and the position."""
    while position <= node.begin and node.parent is not None:
        node = node.parent
    return node, position


def make_room(
    index: RadixTree, handles: PageAllocator, states: StoredStates | None, count: int
) -> None:
    """Frees handles until `count` are free, or none can be freed."""
    while (missing := count - handles.num_free) > 0:
        if (states is not None and states.make_room()) or handles.give_way():
            continue
        if not index.evict(missing):
            break


def rebuild(
    index: RadixTree,
    handles: PageAllocator,
    known: Sequence[KnownPage],
    states: StoredStates | None = None,
    frames: StoredFrames | None = None,
) -> int:
    """Inserts the paths of `known` into the empty `index`, those written last as used last. Returns
    how many pages it has then, parts of states and frames among them.
    """
    newest: dict[PageKey, KnownPage] = {}
    for one in sorted(known, key=lambda one: one.age):
        newest.pop(one.key, None)  # it stands where the newest was written
        newest[one.key] = one
    width = index.page_size * TOKEN_BYTES
    by_age = [one for one in newest.values() if not one.key.part]
    whole = {one.key.id: one for one in by_age if len(one.key.tokens) == width}
    parents = {one.key.parent for one in by_age}
    handles.allocate(handles.num_pages)
    for one in by_age:
        is_last = len(one.key.tokens) < width or one.key.id not in parents
        if is_last and (line := _path_to(one, whole)):
            tokens = array("i", b"".join(page.key.tokens for page in line))
            index.insert(tokens, [page.handle for page in line], line[0].key.parent.hex())
    held = index.pages_held()
    if states is not None:
        held += _rebuild_states(index, states, newest, whole)
    if frames is not None:
        held += frames.rebuild(newest, held)
    handles.keep_only(held)
    return len(held)


def _rebuild_states(
    index: RadixTree,
    states: StoredStates,
    newest: dict[PageKey, KnownPage],
    whole: dict[bytes, KnownPage],
) -> list[int]:
    """Enters the states all of whose parts are there; returns their handles."""
    held: list[int] = []
    for key, last in newest.items():
        parts = [replace(key, part=number) for number in range(1, states.num_parts + 1)]
        if key.part != states.num_parts or any(part not in newest for part in parts):
            continue
        line = _path_to(replace(last, key=replace(key, part=0)), whole)
        if not line:
            continue
        tokens = array("i", b"".join(page.key.tokens for page in line))
        found = index.match(tokens, line[0].key.parent.hex())
        if found.length == len(tokens):
            of_state = [newest[part].handle for part in parts]
            states.enter(found.node, found.length, of_state)
            held += of_state
    return held


def _path_to(last: KnownPage, whole: dict[bytes, KnownPage]) -> list[KnownPage]:
    """The pages from the first to `last`; empty where one is missing."""
    line = [last]
    while line[-1].key.index:
        before = whole.get(line[-1].key.parent)
        if before is None or before.key.index != line[-1].key.index - 1:
            return []
        line.append(before)
    return line[::-1]
