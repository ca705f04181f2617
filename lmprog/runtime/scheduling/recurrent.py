"""Recurrent states of sequences: which slot of the state pool each running sequence owns, where a
row's state comes from, and which snapshots a step leaves in the tree.

A running sequence owns one slot, from its admission on. Its first row reads the snapshot at which
its prefix was found, or nothing, and writes the slot; later rows read and write it. So a fork
shares the snapshot until it is advanced, and a snapshot is never written again. Where a prefix is
computed by another row of the same step, that row leaves a snapshot there too: rows of a step read
what rows before them write.

Snapshots are left where the next prompt may part: before the last token of a prompt, every so many
tokens of it, where the tree's tokens end that others had computed, and where a sequence ends or is
preempted, which gives its own slot to the tree. Without a snapshot at the end of a known prefix a
row begins at the last one before it.

A row with drafted tokens leaves the state behind its known tokens in the sequence's slot, and that
behind all of them in another one. That is the sequence's where all drafts were right; else what was
right is computed again with the next row.

Knows the tree's snapshots and sequences; knows no contents of a slot and no pages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from lmprog.radix import Match, Node, PageAllocator, RadixTree
from lmprog.radix.snapshots import Left, StateSnapshot, StateSnapshots, parts_of_slot
from lmprog.runtime.scheduling.plan import PlanStates, Row
from lmprog.runtime.scheduling.sequence import NOTHING, OwnState, Sequence
from lmprog.runtime.tier.stored_states import PoolStates

SPARE_SLOTS = 2
"""Slots that no program in memory has for itself."""


class StatePool(NamedTuple):
    """What an engine keeps recurrent states in."""

    num_slots: int
    every: int
    """Tokens of a prompt between two snapshots: so many cost what a state costs."""
    num_parts: int = 1
    """Pages that a state takes in a second tier."""


class RecurrentStates:
    """Of all sequences; collects those of one step after the other."""

    def __init__(
        self, pool: StatePool, tree: RadixTree, *, is_shared: bool, grain: int = 1
    ) -> None:
        """`is_shared`: whether sequences look for what they share in the tree. Snapshots for
        others, who part somewhere, are left at multiples of `grain` tokens.
        """
        assert pool.num_slots >= 2, "one slot is a sequence's, another the snapshot it begins from"
        self.snapshots = tree.watcher = StateSnapshots(PageAllocator(pool.num_slots))
        tree.useless_tail = self.snapshots.useless_tail
        self._tree = tree
        self._is_shared = is_shared
        self._num_parts = pool.num_parts
        self._grain = grain
        self._every = -(-pool.every // grain) * grain
        self._rows: list[tuple[OwnState, int]] = []
        """Of the step: whose state each row writes, and where it ends."""
        self._drafted: dict[Sequence, tuple[int, int]] = {}
        """Sequences with drafts: where the known tokens end; a slot for the state behind all."""
        self._left: list[tuple[int, int, int]] = []
        """Snapshots of the step: the row, after how many of its tokens, the slot."""
        self._held: list[StateSnapshot] = []
        """The same, which stay locked until the step is over."""

    @property
    def num_lasting(self) -> int:
        """Slots for states that programs in memory go on from; the others are for rows of a step
        that read one and write another, and for what they leave on their way.
        """
        return max(1, self.snapshots.slots.num_pages - SPARE_SLOTS)

    @property
    def pool_states(self) -> PoolStates:
        """For a second tier."""
        return PoolStates(self.snapshots, self._num_parts)

    def free_parts(self, num_pages: int) -> list[int]:
        """The parts of free slots, as pages behind the `num_pages` of the pool."""
        free = self.snapshots.slots.free_pages()
        return [part for one in free for part in parts_of_slot(one, self._num_parts, num_pages)]

    # --- the step being planned

    def begin(self) -> None:
        """Another step is planned; the last one is over."""
        for one in self._held:
            one.is_ready = True
            self.snapshots.unlock(one)
        self.snapshots.slots.free(slot for _, slot in self._drafted.values())
        self._held.clear()
        self._left.clear()
        self._rows.clear()
        self._drafted.clear()

    def finish(self, rows: Iterable[Row]) -> PlanStates:
        """Where the states of the rows come from and go."""
        slots: list[tuple[int, int]] = []
        for index, (sequence, _, start, end, _, _) in enumerate(rows):
            own = sequence.recurrent
            assert own is not None, "a running sequence owns a slot"
            source = NOTHING
            if own.at == start:
                source = own.slot
            elif start:
                assert own.source is not None, f"there is no state behind {start} tokens"
                assert own.source.position == start, f"there is no state behind {start} tokens"
                source = own.source.slot
            target = own.slot
            if sequence in self._drafted:
                known, target = self._drafted[sequence]
                self._left.append((index, known - start, own.slot))
            slots.append((source, target))
            self._rows.append((own, end))
        return PlanStates(tuple(slots), tuple(self._left))

    def settle(self) -> None:
        """The step's rows are computed, and it is known which drafts were right."""
        ends = dict(self._rows)
        for sequence, (known, slot) in self._drafted.items():
            own = sequence.recurrent
            if own not in ends:
                continue  # it runs no more
            if sequence.computed == ends[own]:
                self._drafted[sequence] = known, own.slot
                own.slot = slot
            else:
                ends[own] = known
                sequence.computed = min(sequence.computed, known)
        for own, end in ends.items():
            own.at = end
            if own.source is not None:
                self.snapshots.passed(own.source)
            self._let_go(own)
        self.begin()

    def undo(self) -> None:
        """The step failed: what its rows were to leave in the tree is not there."""
        for one in self._held:
            self.snapshots.drop(one)

    # --- one sequence

    def usable(self, match: Match, writer: tuple[int, int] | None) -> Match:
        """The part of `match` behind which there is a state. `writer` is the row of this step that
        computes the last token, and how many of its tokens those up to there are: it leaves a
        snapshot.
        """
        found = self.snapshots.last(match.node, match.length)
        if found is not None and found.position == match.length:
            return match
        if writer is not None and self._leave(
            match.node, match.length, writer, Left.WHERE_OTHERS_PART
        ):
            return match
        node, length = match.node, 0 if found is None else found.position
        while length <= node.begin and node.parent is not None:
            node = node.parent
        size = self._tree.page_size
        return Match(node, length, match.pages[: length // size], node.partial_page(length, size))

    def begin_from(self, sequence: Sequence, node: Node, length: int) -> None:
        """The sequence goes on from `length`, where `node` ends and where a snapshot is."""
        own = sequence.recurrent
        found = self.snapshots.last(node, length)
        assert found is not None, "a usable match has a snapshot"
        assert found.position == length, "a usable match ends at its snapshot"
        self.snapshots.use(found)
        self.snapshots.lock(found)
        if own is None:
            own = sequence.recurrent = OwnState(NOTHING)
        self._let_go(own)
        own.source, own.at = found, NOTHING

    def own(self, sequence: Sequence) -> bool:
        """Gives the sequence a slot, if it has none. False: there is none."""
        own = sequence.recurrent
        if own is None:
            own = sequence.recurrent = OwnState(NOTHING)
        if own.slot == NOTHING:
            slot = self.snapshots.take_slot()
            if slot is None:
                return False
            own.slot = slot
        return True

    def may_draft(self, row: Row) -> bool:
        """Whether there is a slot for the state behind drafted tokens of `row`, which has none yet;
        it is taken.
        """
        slot = self.snapshots.take_slot(Left.ON_THE_WAY)
        if slot is not None:
            self._drafted[row.sequence] = row.end, slot
        return slot is not None

    def is_discarded(self, sequence: Sequence) -> bool:
        """What it was to begin from was never computed."""
        own = sequence.recurrent
        return own is not None and own.source is not None and not own.source.is_kept

    def cut(self, sequence: Sequence, count: int) -> int:
        """How many of the next `count` tokens one row should compute. Where a state is missing,
        known tokens are computed again: up to where the tree's end, so that what follows is shared
        at once, and a snapshot is left there.
        """
        start, own = sequence.computed, sequence.recurrent
        keys = sequence.keys(min(start + count, sequence.num_tokens_at_enqueue))
        known = self._tree.match(keys, sequence.namespace.root).length if self._is_shared else 0
        known -= known % self._grain
        if own is None or not start < known < start + count:
            return count
        own.fork = known
        return known - start

    def leave_all(self, sequence: Sequence, start: int, end: int, row: int) -> None:
        """The row, number `row` of the step, computes the positions `start .. end`: as far as the
        tree has them it leaves snapshots where others may part.
        """
        own = sequence.recurrent
        assert own is not None, "a running sequence owns a slot"
        known = self._tree.match(sequence.keys(end), sequence.namespace.root)
        regular = range(start - start % self._every + self._every, end + 1, self._every)
        last = sequence.logits_from - sequence.logits_from % self._grain
        for position in sorted({*regular, own.fork, last}):
            if start < position <= known.length:
                kind = Left.WHERE_OTHERS_PART if position == own.fork else Left.ON_THE_WAY
                self._leave(known.node, position, (row, position - start), kind)
        own.fork = NOTHING

    def _leave(self, node: Node, position: int, writer: tuple[int, int], kind: Left) -> bool:
        """A row leaves a snapshot after so many of its tokens; False: there is no slot."""
        found = self.snapshots.last(node, position)
        if found is not None and found.position == position:
            return True
        slot = self.snapshots.take_slot(kind)
        if slot is None:
            return False
        made = self.snapshots.put(node, position, slot, kind)
        made.is_ready = False
        self.snapshots.lock(made)
        self._held.append(made)
        self._left.append((*writer, slot))
        return True

    def release(self, sequence: Sequence, node: Node | None = None) -> None:
        """The sequence gives its slot up: to the tree, where that has what it computed on the path
        to `node`, and the state is the one behind that.
        """
        own, sequence.recurrent = sequence.recurrent, None
        if own is None:
            return
        self._let_go(own)
        if own.slot == NOTHING:
            return
        if node is not None and own.at == sequence.computed:
            found = self.snapshots.last(node, own.at)
            if found is None or found.position != own.at:
                self.snapshots.put(node, own.at, own.slot)
                return
            self.snapshots.use(found)
        self.snapshots.slots.free([own.slot])

    def _let_go(self, own: OwnState) -> None:
        source, own.source = own.source, None
        if source is not None:
            self.snapshots.unlock(source)

    def check(self, running: Iterable[Sequence], loading: Iterable[int]) -> None:
        """All invariants; `loading` are slots of the second tier. Raises AssertionError."""
        owned = [one.recurrent for one in running]
        taken = [own.slot for own in owned if own is not None]
        assert len(taken) == len(owned), "a running sequence owns a slot"
        self.snapshots.check([*taken, *loading, *(slot for _, slot in self._drafted.values())])
