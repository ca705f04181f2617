"""Snapshots of recurrent states: at which positions of the tree's paths there is one, and in which
slot of the state pool.

A model with recurrent layers goes on from a prefix only where the state behind it was kept: pages
alone do not say what such layers have gathered. A snapshot belongs to the node in which its
position lies, goes with that node's tokens (as a `TreeWatcher`), and is evicted by itself, in this
order, of each kind the one used least recently:

- those that were left on the way, for whoever parts there, and that nobody has used yet;
- those from which one sequence went on and nobody else: that one's own state is further;
- ends that nobody has gone on from yet, those at which a live branch stands later;
- those that several have in common, which are half of all slots at most.

Pages behind the last snapshot of a leaf are of no use to anybody, and the tree evicts them first
(`useless_tail`). A tree of a model without states has none of this.

Knows nodes, positions and slot numbers; knows neither the contents of a slot nor sequences.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from enum import Enum
from itertools import chain

from lmprog.radix.node import Node, subtree
from lmprog.radix.references import PageAllocator

MOST_SPARED = 32
"""Snapshots at which live branches stand that one eviction passes over."""


def parts_of_slot(slot: int, num_parts: int, num_pages: int) -> range:
    """The numbers of its parts, each as large as a page, behind those of the pool's pages."""
    first = num_pages + slot * num_parts
    return range(first, first + num_parts)


class Left(Enum):
    """Why there is a snapshot at a place."""

    ON_THE_WAY = 0
    """Nobody is known to part or to have ended there."""
    END = 1
    WHERE_OTHERS_PART = 2


class StateSnapshot:
    """The state behind the first `position` tokens of the path to `node`, in `slot`."""

    __slots__ = ("is_kept", "is_ready", "locks", "node", "num_uses", "position", "slot")

    def __init__(self, node: Node, position: int, slot: int) -> None:
        self.node = node
        self.position = position
        self.slot = slot
        self.locks = 0
        self.num_uses = 0
        # False: its tokens left the tree or it was dropped; the slot is freed with the last lock
        self.is_kept = True
        # False: the step that computes it is not over
        self.is_ready = True


class StateSnapshots:
    """Every slot of the pool: free, taken by a caller, or a snapshot's."""

    def __init__(self, slots: PageAllocator) -> None:
        self.slots = slots
        self.on_evict: Callable[[StateSnapshot], object] | None = None
        """Told of one that is evicted next, while it has its slot."""
        self.on_change: Callable[[Node], object] | None = None
        """Told of a node that has one more, or one less."""
        self._of: dict[Node, list[StateSnapshot]] = {}
        """By node, in the order of positions."""
        self._order: OrderedDict[StateSnapshot, None] = OrderedDict()
        """Those that are kept, the one used least recently first ..."""
        self._unused: OrderedDict[StateSnapshot, None] = OrderedDict()
        """... but for these, which were left on the way: the oldest first ..."""
        self._passed: OrderedDict[StateSnapshot, None] = OrderedDict()
        """... these, from which one sequence went on ..."""
        self._common: OrderedDict[StateSnapshot, None] = OrderedDict()
        """... and these, which several have in common."""
        self._tails: OrderedDict[Node, None] = OrderedDict()
        """Nodes that may have pages behind their last snapshot."""
        self._dropped: set[StateSnapshot] = set()
        """Those that are only locked."""
        self.num_evicted = 0

    @property
    def num_kept(self) -> int:
        return sum(map(len, self._queues))

    @property
    def _queues(self) -> tuple[OrderedDict[StateSnapshot, None], ...]:
        return self._unused, self._passed, self._order, self._common

    def last(self, node: Node, length: int) -> StateSnapshot | None:
        """The last snapshot of the path to `node` at or before position `length`."""
        walk: Node | None = node
        while walk is not None:
            for found in reversed(self._of.get(walk, ())):
                if found.position <= length:
                    return found
            walk = walk.parent
        return None

    def ending_at(self, node: Node, length: int) -> StateSnapshot | None:
        """The one at position `length` of the path to `node`."""
        found = self.last(node, length)
        return found if found is not None and found.position == length else None

    def on_path(self, node: Node, length: int) -> list[StateSnapshot]:
        """Those of the path to `node` up to position `length`, the last one first."""
        found: list[StateSnapshot] = []
        walk: Node | None = node
        while walk is not None:
            beside = reversed(self._of.get(walk, ()))
            found += [one for one in beside if one.position <= length]
            walk = walk.parent
        return found

    def is_wanted(self, snapshot: StateSnapshot) -> bool:
        """Whether somebody may go on from it who has no other: it is an end, or what several have
        in common.
        """
        return snapshot in self._order or snapshot in self._common

    def put(self, node: Node, position: int, slot: int, kind: Left = Left.END) -> StateSnapshot:
        """A snapshot at `position` of the path to `node`, which has none there. `slot` is the
        tree's from now on.
        """
        while position <= node.begin and node.parent is not None:
            node = node.parent
        assert node.alive, f"{node} is no longer in the tree"
        assert node.begin < position <= node.end, f"{position} is not a position of {node}"
        node.saved_to = 0  # it is not kept elsewhere yet
        made = StateSnapshot(node, position, slot)
        beside = self._of.setdefault(node, [])
        beside.append(made)
        beside.sort(key=lambda one: one.position)
        (self._unused if kind is Left.ON_THE_WAY else self._order)[made] = None
        if kind is Left.WHERE_OTHERS_PART:
            made.num_uses = 1
        if self.on_change is not None:
            self.on_change(node)
        return made

    def use(self, snapshot: StateSnapshot) -> None:
        """It was used just now."""
        snapshot.num_uses += 1
        for queue in self._queues:
            queue.pop(snapshot, None)
        if snapshot.num_uses == 1:
            self._order[snapshot] = None
            return
        self._common[snapshot] = None
        if len(self._common) > self.slots.num_pages // 2:
            self._order[self._common.popitem(last=False)[0]] = None

    def passed(self, snapshot: StateSnapshot) -> None:
        """Whoever used it last has a state of its own behind it now."""
        if snapshot.is_kept and snapshot.num_uses == 1:
            self._order.pop(snapshot, None)
            self._passed[snapshot] = None

    def lock(self, snapshot: StateSnapshot) -> None:
        """Its slot keeps its contents until `unlock`. Locks are counted."""
        snapshot.locks += 1

    def unlock(self, snapshot: StateSnapshot) -> None:
        snapshot.locks -= 1
        assert snapshot.locks >= 0, "a snapshot was not locked"
        if not snapshot.is_kept and not snapshot.locks:
            self._dropped.discard(snapshot)
            self.slots.free([snapshot.slot])

    def take_slot(self, kind: Left = Left.END) -> int | None:
        """A slot, to be left for that reason; a snapshot that nobody holds is evicted
        for it, for one on the way only such that is worth no more. None: there is none.
        """
        taken = self.slots.allocate(1)
        if taken is None:
            victim = self._least_used()
            if victim is None and kind is not Left.ON_THE_WAY:
                victim = self._victim()
            if victim is None:
                return None
            self.num_evicted += 1
            if self.on_evict is not None:
                self.on_evict(victim)
            self.drop(victim)
            taken = self.slots.allocate(1)
            assert taken is not None, "the victim was not locked"
        return taken[0]

    def drop_least_used(self) -> bool:
        """Drops one that is worth no more than one on the way; False: there is none."""
        victim = self._least_used()
        if victim is not None:
            self.drop(victim)
        return victim is not None

    def below(self, top: Node) -> list[StateSnapshot]:
        """Those of `top` and of everything below it."""
        return [one for node in subtree(top) for one in self._of.get(node, ())]

    def _least_used(self) -> StateSnapshot | None:
        for one in self._unused:
            if not one.locks:
                return one
        for one in self._passed:  # a pin is that of the branch that went on
            if not one.locks and one.node.pins_here <= 1:
                return one
        return None

    def _victim(self) -> StateSnapshot | None:
        spared: list[StateSnapshot] = []
        victim = None
        for one in chain(self._passed, self._order, self._common):
            if one.locks:
                continue
            if not one.node.pins_here or len(spared) == MOST_SPARED:
                victim = one
                break
            spared.append(one)
        if victim is None:
            return spared[0] if spared else None
        for one in spared:
            if one in self._order:
                self._order.move_to_end(one)
        return victim

    def drop(self, snapshot: StateSnapshot) -> None:
        """It is gone; its slot is freed, with its last lock if there is one."""
        if not snapshot.is_kept:
            return
        beside = self._of[snapshot.node]
        beside.remove(snapshot)
        if not beside:
            del self._of[snapshot.node]
        for queue in self._queues:
            queue.pop(snapshot, None)
        self._tails[snapshot.node] = None
        snapshot.is_kept = False
        if snapshot.locks:
            self._dropped.add(snapshot)
        else:
            self.slots.free([snapshot.slot])
        if self.on_change is not None:
            self.on_change(snapshot.node)

    def end_in(self, node: Node) -> int:
        """The position of the last one of `node`; 0: it has none."""
        beside = self._of.get(node)
        return 0 if beside is None else beside[-1].position

    def useless_tail(self, page_size: int) -> tuple[Node, int] | None:
        """A leaf that could be evicted, and how many pages it has behind its last snapshot; of the
        next few that may have some.
        """
        for _ in range(min(len(self._tails), MOST_SPARED)):
            node = next(iter(self._tails))
            if node.alive and node.locks:
                self._tails.move_to_end(node)  # looked at again when it is not
                continue
            if node.alive and node.parent is not None and not node.children:
                beside = self._of.get(node)
                kept = 0
                if beside is not None:
                    kept = -(-beside[-1].position // page_size) - node.begin // page_size
                if len(node.pages) > kept:
                    return node, len(node.pages) - kept
            del self._tails[node]
        return None

    # -- as a watcher of the tree

    def added(self, leaf: Node) -> None:
        """A new leaf has no snapshots."""
        self._tails[leaf] = None

    def was_split(self, upper: Node, lower: Node) -> None:
        """Snapshots go where their positions are."""
        beside = self._of.get(lower)
        if beside is None:
            return
        above = [one for one in beside if one.position <= upper.end]
        if above:
            self._of[upper] = above
            for one in above:
                one.node = upper
            del beside[: len(above)]
            if not beside:
                del self._of[lower]

    def shortened(self, node: Node) -> None:
        for one in list(self._of.get(node, ())):
            if one.position > node.end:
                self.drop(one)
        self._tails[node] = None

    def removed(self, node: Node) -> None:
        for one in list(self._of.get(node, ())):
            self.drop(one)
        self._tails.pop(node, None)
        if node.parent is not None:
            self._tails[node.parent] = None

    def check(self, taken: Iterable[int]) -> None:
        """All invariants; `taken` are the slots of callers. Raises AssertionError."""
        kept: list[StateSnapshot] = []
        for node, beside in self._of.items():
            assert node.alive, f"{node} left the tree and has snapshots"
            positions = [one.position for one in beside]
            assert positions == sorted(set(positions)), "one snapshot for each position"
            assert node.begin < positions[0], f"a snapshot lies before {node}"
            assert positions[-1] <= node.end, f"a snapshot lies behind {node}"
            assert all(one.node is node and one.is_kept for one in beside), "it knows its node"
            kept += beside
        ordered = set().union(*self._queues)
        assert set(kept) == ordered, "the order has the kept ones"
        assert len(kept) == self.num_kept, "each has one place in the order"
        assert all(one.locks and not one.is_kept for one in self._dropped), "dropped and locked"
        self.slots.check([*(one.slot for one in [*kept, *self._dropped]), *taken])
