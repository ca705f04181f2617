"""Pages whose keys and values lie in two places: those of layers that see all positions in the page
itself, those of layers with a window in a *frame*, which a page has only while it needs one.

Page tables, sharing, splits and copies of the tree are those of pages. A page's frame is found by
the page's number, so layers with windows have the same page table, read through `frames`. A page
is allocated with a frame. It keeps that

- while a running sequence has it within its window (`hold`);
- while it is in a *stretch*: the last window before a position where a branch ended, or where
  several parted (`keep`), so that others can go on from there;
- and else until another page needs a frame: the oldest goes first.

Whoever goes on from a position needs the frames of the window before it (`last_usable`). All memory
is counted in bytes, of pages and of frames together: `num_free` says for how many pages with frames
it is enough.

Knows page numbers, positions and bytes; knows no sequences, tokens or contents.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Items
from typing import NamedTuple

from lmprog.radix.node import Node
from lmprog.radix.references import PageAllocator

LEAST_SHARE = 16
"""A page without its frame counts as this part of one with it at least, so that a model whose
layers all have windows has a finite number of pages."""
CHUNK_SHARE = 4
"""What one row computes takes frames for this part of the memory at most."""


class WindowPool(NamedTuple):
    """Memory for `num_pages` pages with their frames, in any mixture of both."""

    window: int
    """Positions that layers with a window see, itself included: the longest."""
    num_pages: int
    page_bytes: int
    """Of the layers without a window."""
    frame_bytes: int

    @property
    def counted_bytes(self) -> int:
        """What a page counts as."""
        whole = self.page_bytes + self.frame_bytes
        return max(1, self.page_bytes, -(-whole // LEAST_SHARE))

    @property
    def budget(self) -> int:
        return self.num_pages * (self.counted_bytes + self.frame_bytes)

    @property
    def num_numbers(self) -> int:
        """Pages, if none had a frame."""
        return self.budget // self.counted_bytes

    @property
    def num_frames(self) -> int:
        """Frame 0 is never written: it stands for those that are not there."""
        return self.num_pages + 1

    @property
    def num_parts(self) -> int:
        """Parts as large as a page that a frame is kept in elsewhere."""
        return -(-self.frame_bytes // (self.page_bytes or self.frame_bytes))


class FramesHeld(NamedTuple):
    """What somebody holds who is no sequence."""

    pages: list[int]
    """Those whose frames are held, each as often as it is."""
    apart: list[int]
    """Frames of no page yet."""


class WindowStretch:
    """The pages with the last window before `position`; the last of them may be partly filled."""

    __slots__ = ("node", "num_uses", "pages", "part", "position")

    def __init__(self, pages: list[int], part: int | None, position: int) -> None:
        self.pages = pages
        self.part = part
        self.position = position
        self.num_uses = 0
        self.node: Node | None = None


class WindowPages(PageAllocator):
    """Pages and their frames."""

    def __init__(self, pool: WindowPool, page_size: int) -> None:
        super().__init__(pool.num_numbers)
        self.num_numbers = pool.num_numbers
        self.num_pages = pool.num_pages
        self.page_size, self.window = page_size, pool.window
        self.page_cost, self.frame_cost = pool.counted_bytes, pool.frame_bytes
        self.budget = pool.budget
        self.num_parts = pool.num_parts
        self.frames = array("i", bytes(4 * pool.num_numbers))
        """Of each page; 0: it has none."""
        self.most_chunk = max(1, pool.num_pages // CHUNK_SHARE)
        """Pages that one row writes at most."""
        self.most_seen = (pool.window - 1) // page_size + 2
        """Pages that one window lies in at most, with one that was not let go yet."""
        self._free_frames = list(range(pool.num_frames - 1, 0, -1))
        self._holds = array("i", bytes(4 * pool.num_numbers))
        self._num_held = 0
        self._loose: OrderedDict[int, None] = OrderedDict()
        """Pages whose frames nobody needs, the oldest first."""
        self._stretches: OrderedDict[WindowStretch, None] = OrderedDict()
        """The one used least recently first."""
        self._by_end: dict[tuple[int, int], WindowStretch] = {}
        """By the last page and the position."""
        self._of: dict[int, set[WindowStretch]] = {}
        """By page."""
        self._apart: set[int] = set()
        """Frames of a caller that are no page's yet."""
        self.on_drop: Callable[[WindowStretch], object] | None = None
        """Told of a stretch that gives way, while its frames are there."""
        self.on_kept: Callable[[WindowStretch], object] | None = None
        """Told of a new stretch ..."""
        self.on_gone: Callable[[WindowStretch], object] | None = None
        """... and of one that is none any more, or is about to end earlier."""
        self.give_back: Callable[[Items[int]], object] | None = None
        """Returns memory that nobody uses to the system: of pages, and of frames, the numbers of
        whose parts are those behind the pages'. Else both could have been used to the full, one
        after the other."""
        self._touched = bytearray(pool.num_numbers + pool.num_frames)
        self._touched_bytes = 0

    # --- how much there is

    @property
    def num_free(self) -> int:
        """Pages that can be allocated now, with their frames."""
        both = self.page_cost + self.frame_cost
        frames = len(self._free_frames) + len(self._loose)
        enough = (self._left() + self.frame_cost * len(self._loose)) // both
        return max(0, min(enough, len(self._free), frames))

    def _left(self) -> int:
        used = self.num_numbers - len(self._free)
        num_framed = self.num_pages - len(self._free_frames)
        return self.budget - self.page_cost * used - self.frame_cost * num_framed

    def obtainable(self, num_evictable: int) -> int:
        """Those that are free, or could be if so many were evicted."""
        both = self.page_cost + self.frame_cost
        unheld = self.num_pages - len(self._free_frames) - self._num_held - len(self._apart)
        gained = self.page_cost * num_evictable + self.frame_cost * unheld
        return max(0, (self._left() + gained) // both)

    def cost(self, count: int) -> int:
        """`count` pages in a row, of which only the last have frames, as pages that all do."""
        return self.cost_apart(count, min(count, self.most_seen + self.most_chunk))

    def cost_apart(self, num_pages: int, num_frames: int) -> int:
        """So many pages and frames as pages that all have frames."""
        both = self.page_cost + self.frame_cost
        return -(-(self.page_cost * num_pages + self.frame_cost * num_frames) // both)

    @property
    def longest(self) -> int:
        """Pages of the longest sequence that can run alone."""
        frames = self.frame_cost * min(self.num_pages - 1, self.most_seen + self.most_chunk + 1)
        return (self.budget - frames) // self.page_cost - 1

    # --- allocating and freeing

    def allocate(self, count: int) -> list[int] | None:
        """`count` pages, each with a frame that the caller holds."""
        if count > self.num_free:
            return None
        self._free_loose(count * (self.page_cost + self.frame_cost), count)
        pages = super().allocate(count)
        assert pages is not None, "free pages were counted"
        for page in pages:
            frame = self._free_frames.pop()
            self.frames[page] = frame
            self._holds[page] = 1
            self._touch(page, self.page_cost)
            self._touch(self.num_numbers + frame, self.frame_cost)
        self._num_held += count
        return pages

    def free(self, pages: Iterable[int]) -> None:
        """`pages` and their frames are free again, whoever held them; their stretches are gone."""
        back = list(pages)
        super().free(back)
        for page in back:
            if self._holds[page]:
                self._holds[page] = 0
                self._num_held -= 1
            for stretch in list(self._of.get(page, ())):
                if page == stretch.part:
                    self._lose_part(stretch)
                else:
                    self.drop(stretch)
            if self.frames[page]:
                self._loose.pop(page, None)
                self._take_frame(page)

    def _free_loose(self, needed: int, num_frames: int) -> bool:
        """Frees frames that nobody needs, as many as it takes to have so many bytes and frames;
        False: it cannot.
        """
        missing = -(-(needed - self._left()) // self.frame_cost)
        missing = max(missing, num_frames - len(self._free_frames))
        if missing > len(self._loose):
            return False
        for _ in range(missing):
            self._take_frame(self._loose.popitem(last=False)[0])
        return True

    def _take_frame(self, page: int) -> None:
        self._free_frames.append(self.frames[page])
        self.frames[page] = 0

    # --- frames that are filled before they are a page's

    def allocate_apart(self, num_pages: int, num_frames: int) -> tuple[list[int], list[int]] | None:
        """Pages without frames, and frames of no page: each is the caller's until `give` or
        `free_frames`.
        """
        needed = self.page_cost * num_pages + self.frame_cost * num_frames
        pages = super().allocate(num_pages) if self._free_loose(needed, num_frames) else None
        if pages is None:
            return None
        frames = [self._free_frames.pop() for _ in range(num_frames)]
        self._apart.update(frames)
        for page in pages:
            self._touch(page, self.page_cost)
        for frame in frames:
            self._touch(self.num_numbers + frame, self.frame_cost)
        return pages, frames

    def give(self, page: int, frame: int) -> None:
        """`frame` has what belongs to `page`, and is that page's if it has none."""
        if self.frames[page]:
            self.free_frames([frame])
            return
        self._apart.remove(frame)
        self.frames[page] = frame
        self._loose[page] = None

    def free_frames(self, frames: Iterable[int]) -> None:
        """Frames of no page are free."""
        for frame in frames:
            self._apart.remove(frame)
            self._free_frames.append(frame)

    # --- who needs a frame

    def hold(self, pages: Iterable[int]) -> None:
        """Their frames stay until as many calls of `let_go`, or until they are freed."""
        for page in pages:
            assert self.frames[page], f"page {page} has no frame"
            if not self._holds[page]:
                self._num_held += 1
                self._loose.pop(page, None)
            self._holds[page] += 1

    def let_go(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._holds[page] -= 1
            assert self._holds[page] >= 0, f"page {page} was not held"
            if not self._holds[page]:
                self._num_held -= 1
                if page not in self._of:
                    self._loose[page] = None

    def is_held(self, page: int) -> bool:
        return self._holds[page] > 0

    def is_kept(self, page: int) -> bool:
        """Whether it is in a stretch."""
        return page in self._of

    def check_holds(self, counted: Mapping[int, int], apart: Iterable[int] = ()) -> None:
        """Pages are held as often as that, and these frames are callers'. Raises
        AssertionError.
        """
        assert self._apart == set(apart), "frames are filled for nobody, or not counted"
        found = {page: count for page, count in enumerate(self._holds) if count}
        wrong = {page for page in {*found, *counted} if found.get(page, 0) != counted.get(page, 0)}
        assert not wrong, f"pages are held for nobody, or not for all: {sorted(wrong)[:16]}"

    def hand_over(self, page: int, other: int) -> None:
        """`other`, which has the same tokens, gets the frame of `page`, if it has none."""
        if self.frames[other] or not self.frames[page]:
            return
        assert not self._holds[other], "a page is held without a frame"
        self.frames[other], self.frames[page] = self.frames[page], 0
        self._loose.pop(page, None)
        if self._holds[page]:
            self._holds[page] = 0
            self._num_held -= 1
        self._loose[other] = None

    # --- stretches

    def keep(
        self, pages: Items[int], position: int, node: Node | None = None
    ) -> WindowStretch | None:
        """The frames of the last window before `position` of the path to `node` stay; `pages` are
        those of all positions before it. None: some of them are not there.
        """
        first = self.first_seen(position - position % self.page_size)
        if not self.frames[pages[first]]:  # then only the last page itself will do
            first = self.first_seen(position)
        wanted = list(pages[first : -(-position // self.page_size)])
        if not wanted or not all(self.frames[page] for page in wanted):
            return None
        found = self._by_end.get((wanted[-1], position))
        if found is not None:
            self._stretches.move_to_end(found)
            return found
        made = WindowStretch(wanted, wanted[-1] if position % self.page_size else None, position)
        self._stretches[made] = None
        self._by_end[wanted[-1], position] = made
        for page in wanted:
            self._of.setdefault(page, set()).add(made)
            self._loose.pop(page, None)
        made.node = node
        self._told(self.on_kept, made)
        return made

    def _told(self, who: Callable[[WindowStretch], object] | None, what: WindowStretch) -> None:
        if who is not None:
            who(what)

    def drop(self, stretch: WindowStretch) -> None:
        """Nobody goes on from there: its frames may go."""
        if stretch not in self._stretches:
            return
        self._told(self.on_gone, stretch)
        del self._stretches[stretch]
        self._by_end.pop((stretch.pages[-1], stretch.position), None)
        for page in stretch.pages:
            self._leave(stretch, page)

    def _lose_part(self, stretch: WindowStretch) -> None:
        """The tree has the tokens of its last page elsewhere: whole pages stay."""
        self._told(self.on_gone, stretch)
        self._by_end.pop((stretch.pages[-1], stretch.position), None)
        self._leave(stretch, stretch.pages.pop())
        stretch.part = None
        stretch.position -= stretch.position % self.page_size
        end = (stretch.pages[-1] if stretch.pages else -1, stretch.position)
        if not stretch.pages or end in self._by_end:
            del self._stretches[stretch]
            for page in stretch.pages:
                self._leave(stretch, page)
        else:
            self._by_end[end] = stretch
            self._told(self.on_kept, stretch)

    def _leave(self, stretch: WindowStretch, page: int) -> None:
        others = self._of[page]
        others.discard(stretch)
        if not others:
            del self._of[page]
            if self.frames[page] and not self._holds[page]:
                self._loose[page] = None

    def give_way(self) -> bool:
        """Drops the stretch used least recently that takes memory; False: there is none."""
        before = len(self._loose)
        while self._stretches and len(self._loose) == before:
            stretch = next(iter(self._stretches))
            self._told(self.on_drop, stretch)
            self.drop(stretch)
        return len(self._loose) > before

    def trim(self) -> None:
        """Frames that nobody needs are free."""
        while self._loose:
            self._take_frame(self._loose.popitem(last=False)[0])

    # --- what can be gone on from

    def first_seen(self, position: int) -> int:
        """The first page, counted along a path, that whoever goes on from `position` sees."""
        return max(0, position - self.window + 1) // self.page_size

    def last_usable(self, pages: Items[int], part: int | None, length: int) -> int:
        """The last position up to `length` before which all frames of the window are there. `pages`
        are the whole pages up to there, and `part` the one with what is behind them.
        """
        frames = self.frames
        has_part = part is None or bool(frames[part])
        return self.end_of_usable(length, lambda index: frames[pages[index]], has_part)

    def end_of_usable(
        self, length: int, has: Callable[[int], object], has_part: bool = False
    ) -> int:
        """The last position up to `length` before which all frames of the window are there: `has`
        says it of whole pages by their place on the path, `has_part` of the page behind them.
        """
        size = self.page_size
        if not has_part:
            length -= length % size
        first = self.first_seen(length)
        for index in range(length // size - 1, -1, -1):
            if index < first:
                break
            if not has(index):
                length = index * size
                first = self.first_seen(length)
        return length

    # --- memory of the system

    def _touch(self, number: int, size: int) -> None:
        if not self._touched[number]:
            self._touched[number] = 1
            self._touched_bytes += size

    def settle(self) -> None:
        """Between two steps: where more memory was used than there may be, because it was used for
        pages first and then for frames or the other way round, what is free is given back.
        """
        if self._touched_bytes <= self.budget or self.give_back is None:
            return
        self.return_memory(self.free_pages())

    def return_memory(self, numbers: Items[int]) -> None:
        """To the system, in ascending order."""
        assert self.give_back is not None, "this memory cannot be returned"
        self.give_back(numbers)
        for number in numbers:
            behind = number - self.num_numbers
            if behind >= 0:
                number = self.num_numbers + behind // self.num_parts
            if self._touched[number]:
                self._touched[number] = 0
                self._touched_bytes -= self.page_cost if behind < 0 else self.frame_cost

    def free_pages(self) -> list[int]:
        """In ascending order; behind the pages come the parts of frames."""
        return super().free_pages() + self.parts(sorted(self._free_frames))

    def parts(self, frames: Iterable[int]) -> list[int]:
        """The numbers of their parts, each as large as a page, behind those of the pages."""
        firsts = (self.num_numbers + frame * self.num_parts for frame in frames)
        return [first + part for first in firsts for part in range(self.num_parts)]

    def prefer_low(self) -> None:
        super().prefer_low()
        self._free_frames.sort(reverse=True)

    def check(self, held: Iterable[int]) -> None:
        """All invariants, as for pages alone; and each page that needs a frame has its own."""
        super().check(held)
        framed = {page for page, frame in enumerate(self.frames) if frame}
        assert framed <= self._allocated, "a free page has a frame"
        frames = [*(self.frames[page] for page in framed), *self._apart]
        assert sorted([*frames, *self._free_frames]) == list(range(1, self.num_pages + 1)), (
            "a frame is lost, or has two pages"
        )
        needed = {page for page, count in enumerate(self._holds) if count}
        assert len(needed) == self._num_held, "held pages are counted"
        assert needed | set(self._of) | set(self._loose) == framed, (
            "a page is held or kept without a frame, or has one for nothing"
        )
        assert not set(self._loose) & (needed | set(self._of)), "what is needed is not loose"
        for stretch in self._stretches:
            assert all(stretch in self._of[page] for page in stretch.pages), "pages know stretches"
        assert self._left() >= 0, "there is more memory than there may be"


class WindowEnds:
    """Where the stretches of `pages` end, by node: a `TreeWatcher`, whom the tree or another one of
    its watchers tells. Who watches from the beginning knows all.
    """

    def __init__(self, pages: WindowPages) -> None:
        self.on_change: Callable[[Node], object] | None = None
        """Told of a node that has one more, or one less."""
        self._of: dict[Node, dict[WindowStretch, int]] = {}
        """Positions."""
        self._node: dict[WindowStretch, Node] = {}
        pages.on_kept, pages.on_gone = self._kept, self._gone

    def end_in(self, node: Node) -> int:
        """The last position of a node before which a window is kept; 0: it has none."""
        return max(self._of.get(node, {}).values(), default=0)

    def _kept(self, stretch: WindowStretch) -> None:
        node, position = stretch.node, stretch.position
        while node is not None and (position <= node.begin or not node.alive):
            node = node.parent
        if node is None or node.parent is None or position > node.end:
            return
        if node.parent.children.get(node.first_token) is node:  # else it is about to be removed
            self._of.setdefault(node, {})[stretch] = position
            self._node[stretch] = node
            self._changed(node)

    def _gone(self, stretch: WindowStretch) -> None:
        node = self._node.pop(stretch, None)
        if node is not None:
            del self._of[node][stretch]
            if not self._of[node]:
                del self._of[node]
            self._changed(node)

    def _changed(self, node: Node) -> None:
        if self.on_change is not None:
            self.on_change(node)

    # -- as a watcher of the tree

    def added(self, leaf: Node) -> None:
        """No window of a new leaf is kept yet."""

    def was_split(self, upper: Node, lower: Node) -> None:
        ends = self._of.pop(lower, {})
        for node, is_above in ((upper, True), (lower, False)):
            own = {one: end for one, end in ends.items() if (end <= upper.end) == is_above}
            if own:
                self._of[node] = own
                self._node.update(dict.fromkeys(own, node))

    def shortened(self, node: Node) -> None:
        """The frames behind its end go with their pages."""
        ends = self._of.get(node, {})
        if gone := [one for one, end in ends.items() if end > node.end]:
            for stretch in gone:
                del ends[stretch], self._node[stretch]
            if not ends:
                del self._of[node]
            self._changed(node)

    def removed(self, node: Node) -> None:
        for stretch in self._of.pop(node, {}):
            del self._node[stretch]
