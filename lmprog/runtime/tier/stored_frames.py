"""What a second tier has of frames, the keys and values of layers with windows: of which stored
pages they are stored too, and how far a path can be gone on from with them.

A stored frame takes as many handles as its parts, of the same that pages take, and goes with its
page of the index. Whoever goes on from a position needs those of the window before it, from memory
or from the store. Those that a text has left behind its window go first, back to where others part
from it. Knows paths, frames and handles; moves no contents and decides nothing about worth.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lmprog.radix import Match, Node, PageAllocator
from lmprog.radix.frames import WindowPages
from lmprog.runtime.tier.page_store import FRAME, KnownPage, PageKey


class FrameHandles(PageAllocator):
    """Handles of pages, and of the parts of their frames. A page's that is freed gives those of its
    frame back.
    """

    def __init__(self, num_handles: int) -> None:
        super().__init__(num_handles)
        self.of: dict[int, list[int]] = {}
        """By the handle of the page: those of the parts."""
        self.passed: OrderedDict[int, None] = OrderedDict()
        """Pages whose frames a text has left behind, the oldest first."""

    def free(self, pages: Iterable[int]) -> None:
        back = list(pages)
        super().free(back)
        for page in back:
            self.drop(page)

    def drop(self, page: int) -> None:
        """Its frame is not stored any more."""
        self.passed.pop(page, None)
        if (parts := self.of.pop(page, None)) is not None:
            super().free(parts)

    def give_way(self) -> bool:
        if not self.passed:
            return False
        self.drop(next(iter(self.passed)))
        return True

    def parts_of(self, pages: Iterable[int]) -> list[int]:
        """Of the frames of these pages."""
        return [part for page in pages for part in self.of.get(page, ())]


@dataclass(slots=True)
class FrameLoad:
    """Stored frames on their way to the pool."""

    held: list[int]
    """Pages of the pool whose frames are needed with them; they are held meanwhile."""
    places: list[int]
    """The pages that get frames, by their places on the path ..."""
    sources: list[int]
    """... their handles, of the index ..."""
    frames: list[int] = field(default_factory=list)
    """... and the frames."""


class StoredFrames:
    """Those of the pages of an index, whose handles these are; and those in memory, `pool`."""

    def __init__(self, pool: WindowPages, handles: FrameHandles, page_size: int) -> None:
        self.pool = pool
        self.num_parts = pool.num_parts
        self._handles = handles
        self._page_size = page_size
        self._num_stored = self._num_tokens = 0

    @property
    def parts_per_token(self) -> float:
        """Of the frames stored so far: parts for each token that they make needless to compute."""
        return self._num_stored / max(1, self._num_tokens)

    # --- how far a path can be gone on from

    def usable(self, match: Match) -> int:
        """The part of `match`, of the pool's tree, that has the frames to go on from."""
        return self.pool.last_usable(match.pages, match.partial, match.length)

    def end(self, known: Match, stored: Match) -> int:
        """The same where what the index has of the path is loaded."""
        of, frames, length = self._handles.of, self.pool.frames, stored.length
        own, there = known.pages, stored.pages

        def has(index: int) -> bool:
            return (index < len(own) and frames[own[index]] > 0) or there[index] in of

        has_part = length > known.length and stored.partial in of
        return self.pool.end_of_usable(length, has, has_part)

    def end_to_store(self, length: int, pages: Sequence[int], stored: Match) -> int:
        """The same of a path of the pool, with what the index has, as far as it is kept for others;
        `pages` are those of all its `length` tokens.
        """
        of, there, is_kept = self._handles.of, stored.pages, self.pool.is_kept

        def has(index: int) -> bool:
            return is_kept(pages[index]) or (index < len(there) and there[index] in of)

        has_part = len(pages) * self._page_size > length and is_kept(pages[-1])
        return self.pool.end_of_usable(length, has, has_part)

    def gain(self, end: int, stored: Match) -> int:
        """Tokens that need not be computed where the path is stored up to `end`: the index has
        `stored` of it.
        """
        of, there = self._handles.of, stored.pages
        has_part = stored.partial in of
        return end - self.pool.end_of_usable(stored.length, lambda at: there[at] in of, has_part)

    # --- storing

    def to_store(self, pages: Sequence[int]) -> list[int]:
        """Of a path's pages the places of those whose frames are kept for others, the last one
        first.
        """
        return [at for at in range(len(pages) - 1, -1, -1) if self.pool.is_kept(pages[at])]

    def is_stored(self, handle: int) -> bool:
        return handle in self._handles.of

    def keys(self, page: PageKey) -> list[PageKey]:
        """Of the parts of its frame."""
        return [replace(page, part=FRAME + number) for number in range(self.num_parts)]

    def enter(self, handle: int, parts: list[int]) -> None:
        """The frame of that page is stored in these handles."""
        self._handles.of[handle] = parts
        self._num_stored += len(parts)

    def count_gain(self, num_tokens: int) -> None:
        """So many tokens need not be computed any more, by what was entered."""
        self._num_tokens += num_tokens

    def passes(self, node: Node, end: int) -> None:
        """Whoever went on to `end` of the path to `node` has a window there: frames before it may
        go, back to where others part.
        """
        handles, num_children = self._handles, 0
        first = self.pool.first_seen(end - end % self._page_size)
        while node.parent is not None and len(node.children) == num_children:
            begin = node.begin // self._page_size
            for page in node.pages[: max(0, first - begin)]:
                if page in handles.of:
                    handles.passed[page] = None
            node, num_children = node.parent, 1

    # --- loading

    def planned(self, known: Match, stored: Match, first: int, end: int) -> FrameLoad:
        """What of the frames before `end` must be loaded, where all pages from number `first` on
        are: the index has `stored` of the path up to there, the pool `known`.
        """
        table = stored.pages if stored.partial is None else [*stored.pages, stored.partial]
        held, places = list[int](), list[int]()
        for at in range(self.pool.first_seen(end), -(-end // self._page_size)):
            if at < first and self.pool.frames[known.pages[at]]:
                held.append(known.pages[at])
            else:
                places.append(at)
        return FrameLoad(held, places, [table[at] for at in places])

    def hold(self, load: FrameLoad) -> None:
        """Until `let_go` the pool keeps what the load needs; nobody has passed what is loaded."""
        self.pool.hold(load.held)
        for handle in load.sources:
            self._handles.passed.pop(handle, None)

    def let_go(self, load: FrameLoad) -> None:
        """The load has ended. Frames that became no page's are free."""
        self.pool.let_go(load.held)
        self.pool.free_frames(load.frames)

    def are_there(self, load: FrameLoad, partial: int | None) -> bool:
        """Whether all of it is still stored; `partial` is the page that is loaded last, where it is
        partly filled.
        """
        is_last = partial is None or not load.sources or load.sources[-1] == partial
        return is_last and all(handle in self._handles.of for handle in load.sources)

    def handles(self, load: FrameLoad) -> list[int]:
        return [part for handle in load.sources for part in self._handles.of[handle]]

    def loaded(self, load: FrameLoad, path: Match, own: Iterable[int]) -> None:
        """All parts are in the frames, which go to the pages of `path`, of the pool's tree. Its
        last page, where it is partly filled, may be another one than was loaded, with more tokens:
        `own` are those that were.
        """
        for at, frame in zip(load.places, load.frames, strict=True):
            if at < len(path.pages):
                self.pool.give(path.pages[at], frame)
            elif path.partial is not None and path.partial in own:
                self.pool.give(path.partial, frame)
            else:
                self.pool.free_frames([frame])
        load.frames = []
        pages = path.pages if path.partial is None else [*path.pages, path.partial]
        self.pool.keep(pages, path.length, path.node)

    def lost(self, load: FrameLoad, num_good: int) -> list[int]:
        """Only so many of its parts are what was stored: the frame with the next one is lost.
        Returns its handles, which are free.
        """
        handle = load.sources[num_good // self.num_parts]
        parts = self._handles.of.get(handle, [])
        self._handles.drop(handle)
        return parts

    # --- a store that is opened again

    def rebuild(self, newest: Mapping[PageKey, KnownPage], held: Iterable[int]) -> list[int]:
        """Enters the frames all of whose parts are there, of pages whose handles are `held`;
        returns theirs.
        """
        taken, found = set(held), list[int]()
        for key, page in newest.items():
            if key.part or page.handle not in taken:
                continue
            keys = self.keys(key)
            if all(one in newest for one in keys):
                parts = [newest[one].handle for one in keys]
                self._handles.of[page.handle] = parts
                found += parts
        return found
