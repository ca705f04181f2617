"""Where sequences stand in the tree and which pages they read and write: the memory side of scheduling.

A sequence's page table is the tree's pages for what it shares, then pages of its own. Pages of the tree
are never written by anyone but the row that computes them in the step in which they enter: a sequence
that must go on inside a part-filled page of the tree takes that page back when nobody else stands
there, or copies the part.

Copying inside one step has a twist: part of a page may be computed by another row of this very
step. Then nothing is there to be copied yet, and the row that computes it writes the keys and
values to the second place as well (a *mirror*). `PageTables` remembers, for the step being planned,
which pages are being written by which row.

Knows the tree, the allocator and sequences; decides nothing about who runs.
"""

from __future__ import annotations

from array import array

from lmprog.config import SchedulerConfig
from lmprog.radix import Match, Node, PageAllocator, RadixTree
from lmprog.runtime.scheduling.plan import Copy, Mirror, Row
from lmprog.runtime.scheduling.sequence import Sequence


class PageTables:
    """Attaches sequences to the tree, extends and detaches them; collects the copies and mirrors of one
    step.
    """

    def __init__(self, config: SchedulerConfig, tree: RadixTree, pages: PageAllocator) -> None:
        self._page_size = config.page_size
        self._share = config.share
        self._tree = tree
        self._pages = pages
        self._copies: list[Copy] = []
        self._mirrors: list[Mirror] = []
        self._writers: dict[int, tuple[int, int, int]] = {}
        """Page written in this step -> (row, position of the page's first slot, first position the
        row computes).
        """
        self._origins: dict[int, Copy | Mirror] = {}
        """Slot copied to in this step -> how it gets its contents."""
        self._entered: set[Sequence] = set()
        """Sequences whose rows of this step have put what they compute into the tree."""

    # --- the step being planned
    # ----------------------------------------------------------------------------------

    def begin(self) -> None:
        """A new plan begins."""
        self._copies, self._mirrors = [], []
        self._writers.clear()
        self._origins.clear()
        self._entered.clear()

    def finish(self) -> tuple[tuple[Copy, ...], tuple[Mirror, ...]]:
        """The copies and mirrors of the plan."""
        return tuple(self._copies), tuple(self._mirrors)

    # --- one sequence
    # ------------------------------------------------------------------------------------------------

    def cached_prefix(self, sequence: Sequence) -> int:
        """How much of the sequence is in the tree now."""
        if not self._share:
            return 0
        return self._match(sequence).length

    def attach(self, sequence: Sequence) -> None:
        """Lets the sequence stand on the longest prefix of its tokens that the tree has, if that is
        more than it has.

        The prefix is locked. Its last part-page, if any, is shared only once `extend` has copied
        it.
        """
        if not self._share:
            return
        match = self._match(sequence)
        if match.length <= sequence.computed:
            return
        node = self._tree.lock(match.node, match.length)
        self._release(sequence)
        sequence.node = node
        sequence.pages = array("i", match.pages)
        if match.partial is not None:
            sequence.pages.append(match.partial)
        sequence.shared = len(sequence.pages)
        sequence.computed = match.length

    def pages_for(self, sequence: Sequence, end: int) -> int:
        """At most how many free pages `extend` up to position `end` takes."""
        return -(-end // self._page_size) - len(sequence.pages) + self._shares_part(sequence)

    def extend(self, sequence: Sequence, count: int, row_index: int) -> Row:
        """The row that computes the sequence's next `count` tokens. `pages_for` pages must be free.

        What it computes of text that stood when the sequence joined enters the tree at once.
        """
        start, end = sequence.computed, sequence.computed + count
        if self._shares_part(sequence):
            self._own_last_page(sequence)
        missing = -(-end // self._page_size) - len(sequence.pages)
        if missing > 0:
            taken = self._pages.take(missing)
            assert taken is not None, "the scheduler made room"
            sequence.pages.extend(taken)
        if self._share and end <= sequence.num_tokens_at_enqueue:
            self._enter(sequence, start, end, row_index)
        return Row(
            sequence,
            sequence.tokens[start:end],
            start,
            sequence.pages[:],
            max(start, min(sequence.logits_from, end)),
        )

    def leave(self, sequence: Sequence, *, pin: bool) -> Node | None:
        """The sequence ends or is preempted: everything it computed enters the tree, the rest of its
        pages go back.

        Returns the node it ended in, pinned, when `pin` and something was computed.
        """
        node: Node | None = None
        if self.is_spoiled(sequence):  # its pages are the discarded nodes', and go with them
            sequence.computed = 0
        if sequence.computed and self._share:
            size = -(-sequence.computed // self._page_size)
            keys = sequence.namespace.keys(sequence.tokens[: sequence.computed])
            inserted = self._tree.insert(keys, sequence.pages[:size], sequence.namespace.root)
            kept = inserted.first_taken
            node = inserted.node
            self._tree.lock(node)
            self._pages.give(sequence.pages[sequence.shared : max(kept, sequence.shared)])
            self._pages.give(sequence.pages[max(size, sequence.shared) :])
            if sequence.node is not None:
                self._tree.unlock(sequence.node)
            if pin:
                self._tree.pin(node)
            self._tree.unlock(node)
        else:
            self._release(sequence)
        self._forget(sequence)
        return node if pin else None

    def detach(self, sequence: Sequence) -> None:
        """Undoes `attach` of a sequence that has computed nothing itself."""
        self._release(sequence)
        self._forget(sequence)

    def spoil(self, row: Row) -> None:
        """The step failed: nobody may find what this row put into the tree. The sequence has computed
        nothing.
        """
        sequence = row.sequence
        if sequence in self._entered:
            self._discard(sequence, row.start)
        sequence.computed = 0

    def spoil_path(self, sequence: Sequence) -> None:
        """What the sequence stands on gave numbers that are not finite. Which position was the first is
        not known (a chunk gives no logits), so nobody may find any of it again. The sequence has
        computed nothing."""
        self._discard(sequence, 0)
        sequence.computed = 0

    def _discard(self, sequence: Sequence, start: int) -> None:
        if sequence.node is not None:
            self._tree.discard(sequence.node, start)

    def is_spoiled(self, sequence: Sequence) -> bool:
        """The sequence stands on something that another sequence's failed row had put into the tree."""
        return sequence.node is not None and not sequence.node.alive

    def own_pages(self, sequence: Sequence) -> array[int]:
        """Pages that are the sequence's alone."""
        return sequence.pages[sequence.shared :]

    # --- inside
    # --------------------------------------------------------------------------------------------------

    def _shares_part(self, sequence: Sequence) -> bool:
        """The next token's slot is in a page of the tree."""
        return sequence.computed < sequence.shared * self._page_size

    def _own_last_page(self, sequence: Sequence) -> None:
        """Makes the part-filled last page the sequence's own: taken back from the tree, or copied to a
        new one.
        """
        sequence.shared -= 1
        sequence.pages.pop()
        assert sequence.shared == len(sequence.pages), "only the last page can be part-filled"
        assert sequence.node is not None
        tail = self._tree.take_tail(sequence.node, sequence.computed)
        if tail is not None:
            sequence.node = tail.node
            sequence.pages.append(tail.page)
            return
        # The tree is asked again: it may have moved the part to another page since the sequence was
        # attached.
        source = self._tree.partial_page(sequence.node, sequence.computed)
        taken = self._pages.take(1)
        assert source is not None
        assert taken is not None, "the scheduler made room"
        sequence.pages.append(taken[0])
        for offset in range(sequence.computed % self._page_size):
            self._share_slot(source, offset, taken[0] * self._page_size + offset)

    def _share_slot(self, page: int, offset: int, target: int) -> None:
        """Slot `target` gets the contents that slot `offset` of `page` has, or gets in this
        step.
        """
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

    def _enter(self, sequence: Sequence, start: int, end: int, row_index: int) -> None:
        """Puts what a row computes of text that stood from the first into the tree, so that later
        rows of the step find it. Where the tree has some of it already (the row computes it again
        for its logits) nothing enters."""
        keys = sequence.namespace.keys(sequence.tokens[:end])
        match = self._tree.match(keys, sequence.namespace.root)
        if match.length > start:
            return
        inserted = self._tree.insert(keys, sequence.pages, sequence.namespace.root)
        first = inserted.first_taken
        assert first >= sequence.shared, (
            "what the sequence shares stays in the tree while it is locked"
        )
        # Pages of its own that another sequence has entered meanwhile: one of the two is enough.
        self._pages.give(sequence.pages[sequence.shared : first])
        sequence.pages[sequence.shared : first] = array("i", match.pages[sequence.shared : first])
        self._tree.lock(inserted.node)
        if sequence.node is not None:
            self._tree.unlock(sequence.node)
        sequence.node = inserted.node
        for index in range(start // self._page_size, len(sequence.pages)):
            self._writers[sequence.pages[index]] = (row_index, index * self._page_size, start)
        sequence.shared = len(sequence.pages)
        self._entered.add(sequence)

    def _match(self, sequence: Sequence) -> Match:
        return self._tree.match(
            sequence.namespace.keys(sequence.tokens), sequence.namespace.root, sequence.logits_from
        )

    def _release(self, sequence: Sequence) -> None:
        """Gives back the sequence's own pages and its lock."""
        self._pages.give(sequence.pages[sequence.shared :])
        if sequence.node is not None:
            self._tree.unlock(sequence.node)

    @staticmethod
    def _forget(sequence: Sequence) -> None:
        sequence.node = None
        sequence.pages = array("i")
        sequence.shared = sequence.computed = 0
