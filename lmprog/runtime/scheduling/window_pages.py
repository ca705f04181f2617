"""Windows of sequences, in a model whose layers with windows have frames of their own
(`radix.frames`): which frames a running sequence holds, and where stretches are kept for others.

Knows sequences and their page tables; knows no tokens or contents, and decides nothing about who
runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Items

from lmprog.radix import Match, Node
from lmprog.radix.frames import FramesHeld, WindowEnds, WindowPages, WindowPool, WindowStretch
from lmprog.runtime.scheduling.sequence import OwnWindow, Sequence

NO_FRAMES = FramesHeld([], [])


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

    def cost_of_growth(
        self, num_pages: float, running: Iterable[Sequence] = (), num_paused: int = 0
    ) -> float:
        """So many pages as pages with frames, which texts that run have until they are as long as
        the window. Those that pause need the frames of theirs when they go on.
        """
        pages = self.pages
        window, most = pages.window, pages.most_seen
        framed = sum(1 if one.computed >= window else most for one in running)
        num_frames = min(num_pages, framed) + most * num_paused
        taken = pages.page_cost * num_pages + pages.frame_cost * num_frames
        return taken / (pages.page_cost + pages.frame_cost)

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
            own.stretch = self._keep(sequence.pages, own.entered, sequence.node)
            own.entered = 0
            if own.stretch is not None:
                parts = sequence.node is not None and bool(sequence.node.children)
                own.stretch.num_uses += 1 + parts  # the others' path goes on there, too
        if own.fork and own.fork <= start:
            self._keep_fork(own, sequence.pages, sequence.node)
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
            self._keep(on_path, sequence.computed, path.node)
        if own.fork and own.fork <= sequence.computed:
            self._keep_fork(own, on_path, path.node)
        end, taken = len(pages) - own.has_part, -(-sequence.computed // size)
        self.pages.let_go(pages[own.first : min(shared, end)])
        self.pages.let_go(pages[max(taken_from, shared, own.first) : min(taken, end)])
        self._pass(own)

    def _keep(self, pages: Items[int], position: int, node: Node | None) -> WindowStretch | None:
        """As `WindowPages.keep`."""
        kept = self.pages.keep(pages, position, node)
        if kept is None or node is None:
            return kept
        kept.node = node
        while position <= node.begin and node.parent is not None:
            node = node.parent
        node.saved_to = 0  # these frames are not kept elsewhere yet
        return kept

    def _keep_fork(self, own: OwnWindow, pages: Iterable[int], node: Node | None) -> None:
        """Several parted there: it stays, whoever passes it."""
        made = self._keep(list(pages), own.fork, node)
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

    def ends(self) -> WindowEnds:
        """Where they are kept for others, from now on."""
        return WindowEnds(self.pages)

    def check(self, running: Iterable[Sequence], others: FramesHeld = NO_FRAMES) -> None:
        """All held frames are those of sequences, or of loads. Raises AssertionError."""
        counted: Counter[int] = Counter(others.pages)
        for sequence in running:
            own = sequence.window
            if own is not None:
                counted.update(sequence.pages[own.first : len(sequence.pages) - own.has_part])
        self.pages.check_holds(counted, others.apart)
