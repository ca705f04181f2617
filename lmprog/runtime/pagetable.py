"""Where lanes stand in the tree and which pages they read and write: the memory side of scheduling.

A lane's page table is the tree's pages for what it shares, then pages of its own. Pages of the tree are never written
by anyone but the row that computes them in the step in which they enter: a lane that must go on inside a part-filled
page of the tree takes that page back when nobody else stands there, or copies the part.

Copying inside one step has a twist: part of a page may be computed by another row of this very step. Then nothing is
there to be copied yet, and the row that computes it writes the keys and values to the second place as well (a
*mirror*). `PageTables` remembers, for the step being planned, which pages are being written by which row.

Knows the tree, the allocator and lanes; decides nothing about who runs.
"""

from __future__ import annotations

from array import array

from lmprog.config import SchedulerConfig
from lmprog.radix import Match, Node, PageAllocator, RadixTree
from lmprog.runtime.plan import Copy, Mirror, Row
from lmprog.runtime.request import Lane


class PageTables:
    """Attaches lanes to the tree, extends and detaches them; collects the copies and mirrors of one step."""

    def __init__(self, config: SchedulerConfig, tree: RadixTree, pages: PageAllocator) -> None:
        self._page_size = config.page_size
        self._share = config.share
        self._tree = tree
        self._pages = pages
        self._copies: list[Copy] = []
        self._mirrors: list[Mirror] = []
        self._writers: dict[int, tuple[int, int, int]] = {}
        """Page written in this step -> (row, position of the page's first slot, first position the row computes)."""
        self._origins: dict[int, Copy | Mirror] = {}
        """Slot copied to in this step -> how it gets its contents."""
        self._entered: set[Lane] = set()
        """Lanes whose rows of this step have put what they compute into the tree."""

    # --- the step being planned ----------------------------------------------------------------------------------

    def begin(self) -> None:
        """A new plan begins."""
        self._copies, self._mirrors = [], []
        self._writers.clear()
        self._origins.clear()
        self._entered.clear()

    def finish(self) -> tuple[tuple[Copy, ...], tuple[Mirror, ...]]:
        """The copies and mirrors of the plan."""
        return tuple(self._copies), tuple(self._mirrors)

    # --- one lane ------------------------------------------------------------------------------------------------

    def cached_prefix(self, lane: Lane) -> int:
        """How much of the lane is in the tree now."""
        if not self._share:
            return 0
        return self._match(lane).length

    def attach(self, lane: Lane) -> None:
        """Lets the lane stand on the longest prefix of its tokens that the tree has, if that is more than it has.

        The prefix is locked. Its last part-page, if any, is shared only once `extend` has copied it.
        """
        if not self._share:
            return
        match = self._match(lane)
        if match.length <= lane.computed:
            return
        node = self._tree.lock(match.node, match.length)
        self._release(lane)
        lane.node = node
        lane.pages = array("i", match.pages)
        if match.partial is not None:
            lane.pages.append(match.partial)
        lane.shared = len(lane.pages)
        lane.computed = match.length

    def pages_for(self, lane: Lane, end: int) -> int:
        """At most how many free pages `extend` up to position `end` takes."""
        return -(-end // self._page_size) - len(lane.pages) + self._shares_part(lane)

    def extend(self, lane: Lane, count: int, row_index: int) -> Row:
        """The row that computes the lane's next `count` tokens. `pages_for` pages must be free.

        What it computes of text that stood when the lane joined enters the tree at once.
        """
        start, end = lane.computed, lane.computed + count
        if self._shares_part(lane):
            self._own_last_page(lane)
        missing = -(-end // self._page_size) - len(lane.pages)
        if missing > 0:
            taken = self._pages.take(missing)
            assert taken is not None, "the scheduler made room"
            lane.pages.extend(taken)
        if self._share and end <= lane.standing:
            self._enter(lane, start, end, row_index)
        return Row(lane, lane.tokens[start:end], start, lane.pages[:], max(start, min(lane.logits_from, end)))

    def leave(self, lane: Lane, *, pin: bool) -> Node | None:
        """The lane ends or is unseated: everything it computed enters the tree, the rest of its pages go back.

        Returns the node it ended in, pinned, when `pin` and something was computed.
        """
        node: Node | None = None
        if self.is_spoiled(lane):  # its pages are the discarded nodes', and go with them
            lane.computed = 0
        if lane.computed and self._share:
            size = -(-lane.computed // self._page_size)
            keys = lane.realm.keys(lane.tokens[: lane.computed])
            inserted = self._tree.insert(keys, lane.pages[:size], lane.realm.root)
            kept = inserted.first_taken
            node = inserted.node
            self._tree.lock(node)
            self._pages.give(lane.pages[lane.shared : max(kept, lane.shared)])
            self._pages.give(lane.pages[max(size, lane.shared) :])
            if lane.node is not None:
                self._tree.unlock(lane.node)
            if pin:
                self._tree.pin(node)
            self._tree.unlock(node)
        else:
            self._release(lane)
        self._forget(lane)
        return node if pin else None

    def detach(self, lane: Lane) -> None:
        """Undoes `attach` of a lane that has computed nothing itself."""
        self._release(lane)
        self._forget(lane)

    def spoil(self, row: Row) -> None:
        """The step failed: nobody may find what this row put into the tree. The lane has computed nothing."""
        lane = row.lane
        if lane in self._entered:
            self._discard(lane, row.start)
        lane.computed = 0

    def spoil_path(self, lane: Lane) -> None:
        """What the lane stands on gave numbers that are not finite. Which position was the first is not known (a chunk
        gives no logits), so nobody may find any of it again. The lane has computed nothing."""
        self._discard(lane, 0)
        lane.computed = 0

    def _discard(self, lane: Lane, start: int) -> None:
        if lane.node is not None:
            self._tree.discard(lane.node, start)

    def is_spoiled(self, lane: Lane) -> bool:
        """The lane stands on something that another lane's failed row had put into the tree."""
        return lane.node is not None and not lane.node.alive

    def own_pages(self, lane: Lane) -> array[int]:
        """Pages that are the lane's alone."""
        return lane.pages[lane.shared :]

    # --- inside --------------------------------------------------------------------------------------------------

    def _shares_part(self, lane: Lane) -> bool:
        """The next token's slot is in a page of the tree."""
        return lane.computed < lane.shared * self._page_size

    def _own_last_page(self, lane: Lane) -> None:
        """Makes the part-filled last page the lane's own: taken back from the tree, or copied to a new one."""
        lane.shared -= 1
        lane.pages.pop()
        assert lane.shared == len(lane.pages), "only the last page can be part-filled"
        assert lane.node is not None
        tail = self._tree.take_tail(lane.node, lane.computed)
        if tail is not None:
            lane.node = tail.node
            lane.pages.append(tail.page)
            return
        # The tree is asked again: it may have moved the part to another page since the lane was attached.
        source = self._tree.partial_page(lane.node, lane.computed)
        taken = self._pages.take(1)
        assert source is not None
        assert taken is not None, "the scheduler made room"
        lane.pages.append(taken[0])
        for offset in range(lane.computed % self._page_size):
            self._share_slot(source, offset, taken[0] * self._page_size + offset)

    def _share_slot(self, page: int, offset: int, target: int) -> None:
        """Slot `target` gets the contents that slot `offset` of `page` has, or gets in this step."""
        origin: Copy | Mirror | None = None
        writer = self._writers.get(page)
        if writer is not None:
            row, begin, first = writer
            if begin + offset >= first:
                origin = Mirror(row, begin + offset - first, target)
        if origin is None:
            source = page * self._page_size + offset
            known = self._origins.get(source)
            if isinstance(known, Mirror):
                origin = Mirror(known.row, known.offset, target)
            else:
                origin = Copy(known.source if known is not None else source, target)
        if isinstance(origin, Mirror):
            self._mirrors.append(origin)
        else:
            self._copies.append(origin)
        self._origins[target] = origin

    def _enter(self, lane: Lane, start: int, end: int, row_index: int) -> None:
        """Puts what a row computes of text that stood from the first into the tree, so that later rows of the step
        find it. Where the tree has some of it already (the row computes it again for its logits) nothing enters."""
        keys = lane.realm.keys(lane.tokens[:end])
        match = self._tree.match(keys, lane.realm.root)
        if match.length > start:
            return
        inserted = self._tree.insert(keys, lane.pages, lane.realm.root)
        first = inserted.first_taken
        assert first >= lane.shared, "what the lane shares stays in the tree while it is locked"
        # Pages of its own that another lane has entered meanwhile: one of the two is enough.
        self._pages.give(lane.pages[lane.shared : first])
        lane.pages[lane.shared : first] = array("i", match.pages[lane.shared : first])
        self._tree.lock(inserted.node)
        if lane.node is not None:
            self._tree.unlock(lane.node)
        lane.node = inserted.node
        for index in range(start // self._page_size, len(lane.pages)):
            self._writers[lane.pages[index]] = (row_index, index * self._page_size, start)
        lane.shared = len(lane.pages)
        self._entered.add(lane)

    def _match(self, lane: Lane) -> Match:
        return self._tree.match(lane.realm.keys(lane.tokens), lane.realm.root, lane.logits_from)

    def _release(self, lane: Lane) -> None:
        """Gives back the lane's own pages and its lock."""
        self._pages.give(lane.pages[lane.shared :])
        if lane.node is not None:
            self._tree.unlock(lane.node)

    @staticmethod
    def _forget(lane: Lane) -> None:
        lane.node = None
        lane.pages = array("i")
        lane.shared = lane.computed = 0
