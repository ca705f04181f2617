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

`WindowPages` knows page numbers, positions and bytes, and no sequences; `Windows` knows these and
their page tables. Neither knows tokens or contents, or decides who runs.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Items
from typing import NamedTuple

from lmprog.radix import Match, PageAllocator
from lmprog.runtime.scheduling.sequence import OwnWindow, Sequence, WindowStretch

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


class WindowPages(PageAllocator):
    """Pages and their frames."""

    def __init__(self, pool: WindowPool, page_size: int) -> None:
        super().__init__(pool.num_numbers)
        self.num_numbers = pool.num_numbers
        self.num_pages = pool.num_pages
        self.page_size, self.window = page_size, pool.window
        self.page_cost, self.frame_cost = pool.counted_bytes, pool.frame_bytes
        self.budget = pool.budget
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
        self.give_back: Callable[[Items[int]], object] | None = None
        """Returns memory that nobody uses to the system: of pages, and of frames, whose numbers are
        those behind the pages'. Else both could have been used to the full, one after the other."""
        self._touched = bytearray(pool.num_numbers + pool.num_frames)
        self._touched_bytes = 0

    # --- how much there is

    @property
    def num_free(self) -> int:
        """Pages that can be allocated now, with their frames."""
        both = self.page_cost + self.frame_cost
        return max(
            0, min((self._left() + self.frame_cost * len(self._loose)) // both, len(self._free))
        )

    def _left(self) -> int:
        used = self.num_numbers - len(self._free)
        num_framed = self.num_pages - len(self._free_frames)
        return self.budget - self.page_cost * used - self.frame_cost * num_framed

    def obtainable(self, num_evictable: int) -> int:
        """Those that are free, or could be if so many were evicted."""
        both = self.page_cost + self.frame_cost
        unheld = self.num_pages - len(self._free_frames) - self._num_held
        gained = self.page_cost * num_evictable + self.frame_cost * unheld
        return max(0, (self._left() + gained) // both)

    def cost(self, count: int) -> int:
        """`count` pages in a row, of which only the last have frames, as pages that all do."""
        framed = min(count, self.most_seen + self.most_chunk)
        both = self.page_cost + self.frame_cost
        return -(-(self.page_cost * count + self.frame_cost * framed) // both)

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
        missing = count * (self.page_cost + self.frame_cost) - self._left()
        for _ in range(-(-missing // self.frame_cost)):
            self._take_frame(self._loose.popitem(last=False)[0])
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

    def _take_frame(self, page: int) -> None:
        self._free_frames.append(self.frames[page])
        self.frames[page] = 0

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

    def check_holds(self, counted: Mapping[int, int]) -> None:
        """Pages are held as often as that. Raises AssertionError."""
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

    def keep(self, pages: Items[int], position: int) -> WindowStretch | None:
        """The frames of the last window before `position` stay; `pages` are those of all positions
        before it. None: some of them are not there.
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
        return made

    def drop(self, stretch: WindowStretch) -> None:
        """Nobody goes on from there: its frames may go."""
        if stretch not in self._stretches:
            return
        del self._stretches[stretch]
        self._by_end.pop((stretch.pages[-1], stretch.position), None)
        for page in stretch.pages:
            self._leave(stretch, page)

    def _lose_part(self, stretch: WindowStretch) -> None:
        """The tree has the tokens of its last page elsewhere: whole pages stay."""
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
            self.drop(next(iter(self._stretches)))
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
        size = self.page_size
        if part is not None and not self.frames[part]:
            length -= length % size
        first = self.first_seen(length)
        for index in range(len(pages) - 1, -1, -1):
            if index < first:
                break
            if not self.frames[pages[index]]:
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
            if self._touched[number]:
                self._touched[number] = 0
                is_page = number < self.num_numbers
                self._touched_bytes -= self.page_cost if is_page else self.frame_cost

    def free_pages(self) -> list[int]:
        """In ascending order; behind the pages come frames."""
        frames = sorted(self.num_numbers + frame for frame in self._free_frames)
        return super().free_pages() + frames

    def prefer_low(self) -> None:
        super().prefer_low()
        self._free_frames.sort(reverse=True)

    def check(self, held: Iterable[int]) -> None:
        """All invariants, as for pages alone; and each page that needs a frame has its own."""
        super().check(held)
        framed = {page for page, frame in enumerate(self.frames) if frame}
        assert framed <= self._allocated, "a free page has a frame"
        frames = [self.frames[page] for page in framed]
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


class Windows:
    """Windows of all sequences.

    A running one holds the frames of the pages within its window, from its next row's first token
    on. Those behind it may go at once, but for stretches: where a sequence ends or is preempted,
    where one begins that goes on from there, and where the tree's tokens end that it had to compute
    again. A stretch from which one sequence went on and nobody else is given up when that one has
    its own.
    """

    def __init__(self, pool: WindowPool, page_size: int) -> None:
        self.pages = WindowPages(pool, page_size)

    # --- what can be shared

    def usable(self, match: Match) -> Match:
        """The part of `match` that can be gone on from."""
        length = self.pages.last_usable(match.pages, match.partial, match.length)
        if length == match.length:
            return match
        node, size = match.node, self.pages.page_size
        while length <= node.begin and node.parent is not None:
            node = node.parent
        assert not length % size, "what is missing are whole pages"
        return Match(node, length, match.pages[: length // size], None)

    def begin_from(self, sequence: Sequence, has_part: bool) -> None:
        """It goes on from where the tree's pages that it has now end; the last of them, where it is
        partly filled, is copied before the first row and not held.
        """
        own = sequence.window or OwnWindow()
        sequence.window = own
        own.entered, own.has_part = sequence.computed, has_part
        own.first = self.pages.first_seen(sequence.computed)
        self.pages.hold(sequence.pages[own.first : len(sequence.pages) - has_part])

    def computes_again(self, sequence: Sequence, known: int) -> None:
        """The tree has its tokens up to `known`, but not the frames to go on from there."""
        own = sequence.window or OwnWindow()
        sequence.window = own
        own.fork = known - known % self.pages.page_size

    # --- rows

    def advance(self, sequence: Sequence, count: int) -> int:
        """What its next row does not see may go. How many of its next `count` tokens that may
        compute.
        """
        start, size = sequence.computed, self.pages.page_size
        self._let_pass(sequence, start)
        return min(count, (start // size + self.pages.most_chunk) * size - start)

    def _let_pass(self, sequence: Sequence, start: int) -> None:
        own = sequence.window
        if own is None:
            own = sequence.window = OwnWindow()
        if own.entered:
            own.stretch, own.entered = self.pages.keep(sequence.pages, own.entered), 0
            if own.stretch is not None:
                own.stretch.num_uses += 1
                own.stretch.node = sequence.node
        if own.fork and own.fork <= start:
            self._keep_fork(own, sequence.pages)
        first = self.pages.first_seen(start)
        if first > own.first:
            self.pages.let_go(sequence.pages[own.first : first])
            own.first = first
            if own.stretch is not None and own.stretch.position <= first * self.pages.page_size:
                self._pass(own)

    def frame_of(self, page: int) -> int:
        return self.pages.frames[page]

    def copies_part(self, sequence: Sequence, page: int) -> None:
        """Its last page was `page`, the tree's and partly filled; it gets a copy of its own."""
        own = sequence.window
        assert own is not None, "a sequence with pages has a window"
        if not own.has_part:  # it had computed this page itself
            self.pages.let_go([page])
        own.has_part = False

    def replace(self, sequence: Sequence, end: int, others: list[int]) -> None:
        """Its own pages up to number `end` are about to be freed for the tree's, which have the
        same tokens.
        """
        own = sequence.window
        assert own is not None, "a sequence with pages has a window"
        for index in range(max(own.first, sequence.shared), end):
            self.pages.hand_over(sequence.pages[index], others[index])
            self.pages.hold([others[index]])

    # --- the end

    def leave(self, sequence: Sequence) -> None:
        """It gives its pages up; those of its own are freed next."""
        own, sequence.window = sequence.window, None
        if own is None:
            return
        end = len(sequence.pages) - own.has_part
        self.pages.let_go(sequence.pages[own.first : min(sequence.shared, end)])
        self._pass(own)

    def release(self, sequence: Sequence, taken_from: int, path: Match) -> None:
        """The tree has its tokens, on `path`, and took over its pages from number `taken_from` on;
        other pages of its own are freed next.
        """
        own, sequence.window = sequence.window, None
        assert own is not None, "a sequence with pages has a window"
        pages, shared, size = sequence.pages, sequence.shared, self.pages.page_size
        whole = sequence.computed // size
        for index in range(max(own.first, shared), min(taken_from, whole)):
            self.pages.hand_over(pages[index], path.pages[index])
        on_path = path.pages if path.partial is None else [*path.pages, path.partial]
        if on_path:
            self.pages.keep(on_path, sequence.computed)
        if own.fork and own.fork <= sequence.computed:
            self._keep_fork(own, on_path)
        end, taken = len(pages) - own.has_part, -(-sequence.computed // size)
        self.pages.let_go(pages[own.first : min(shared, end)])
        self.pages.let_go(pages[max(taken_from, shared, own.first) : min(taken, end)])
        self._pass(own)

    def _keep_fork(self, own: OwnWindow, pages: Iterable[int]) -> None:
        """Several parted there: it stays, whoever passes it."""
        made = self.pages.keep(list(pages), own.fork)
        own.fork = 0
        if made is not None:
            made.num_uses += 2

    def _pass(self, own: OwnWindow) -> None:
        """The sequence has a window of its own behind where it began."""
        stretch, own.stretch = own.stretch, None
        if stretch is None or stretch.num_uses > 1:
            return
        if stretch.node is None or stretch.node.pins_here <= 1:  # a pin is its own branch's
            self.pages.drop(stretch)

    def check(self, running: Iterable[Sequence]) -> None:
        """All held frames are those of sequences. Raises AssertionError."""
        counted: Counter[int] = Counter()
        for sequence in running:
            own = sequence.window
            if own is not None:
                counted.update(sequence.pages[own.first : len(sequence.pages) - own.has_part])
        self.pages.check_holds(counted)
