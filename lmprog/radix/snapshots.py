"""Snapshots of recurrent states: at which positions of the tree's paths there is one, and in which
slot of the state pool.

A model with recurrent layers goes on from a prefix only where the state behind it was kept: pages
alone do not say what such layers have gathered. A snapshot belongs to the node in which its
position lies, goes with that node's tokens (as a `TreeWatcher`), and is evicted by itself. First go
those that were left on the way, for whoever parts there, and that nobody has used yet; then the one
used least recently, those at which a live branch stands later. A tree of a model without states has
none of this.

Knows nodes, positions and slot numbers; knows neither the contents of a slot nor sequences.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from lmprog.radix.node import Node
from lmprog.radix.references import PageAllocator

MOST_SPARED = 32
"""Snapshots at which live branches stand that one eviction passes over."""


class StateSnapshot:
    """The state behind the first `position` tokens of the path to `node`, in `slot`."""

    __slots__ = ("is_kept", "locks", "node", "position", "slot")

    def __init__(self, node: Node, position: int, slot: int) -> None:
        self.node = node
        self.position = position
        self.slot = slot
        self.locks = 0
        # False: its tokens left the tree or it was dropped; the slot is freed with the last lock
        self.is_kept = True


class StateSnapshots:
    """Every slot of the pool: free, taken by a caller, or a snapshot's."""

    def __init__(self, num_slots: int) -> None:
        self.slots = PageAllocator(num_slots)
        self._of: dict[Node, list[StateSnapshot]] = {}
        """By node, in the order of positions."""
        self._order: OrderedDict[StateSnapshot, None] = OrderedDict()
        """Those that are kept, the one used least recently first ..."""
        self._unused: OrderedDict[StateSnapshot, None] = OrderedDict()
        """... but for these, which were left on the way: the oldest first."""
        self._dropped: set[StateSnapshot] = set()
        """Those that are only locked."""
        self.num_evicted = 0

    @property
    def num_kept(self) -> int:
        return len(self._order) + len(self._unused)

    def last(self, node: Node, length: int) -> StateSnapshot | None:
        """The last snapshot of the path to `node` at or before position `length`."""
        walk: Node | None = node
        while walk is not None:
            for found in reversed(self._of.get(walk, ())):
                if found.position <= length:
                    return found
            walk = walk.parent
        return None

    def put(self, node: Node, position: int, slot: int, on_the_way: bool = False) -> StateSnapshot:
        """A snapshot at `position` of the path to `node`, which has none there. `slot` is the
        tree's from now on. `on_the_way`: nobody is known to part or to have ended there.
        """
        while position <= node.begin and node.parent is not None:
            node = node.parent
        assert node.alive, f"{node} is no longer in the tree"
        assert node.begin < position <= node.end, f"{position} is not a position of {node}"
        made = StateSnapshot(node, position, slot)
        beside = self._of.setdefault(node, [])
        beside.append(made)
        beside.sort(key=lambda one: one.position)
        (self._unused if on_the_way else self._order)[made] = None
        return made

    def use(self, snapshot: StateSnapshot) -> None:
        """It was used just now."""
        self._unused.pop(snapshot, None)
        self._order[snapshot] = None
        self._order.move_to_end(snapshot)

    def lock(self, snapshot: StateSnapshot) -> None:
        """Its slot keeps its contents until `unlock`. Locks are counted."""
        snapshot.locks += 1

    def unlock(self, snapshot: StateSnapshot) -> None:
        snapshot.locks -= 1
        assert snapshot.locks >= 0, "a snapshot was not locked"
        if not snapshot.is_kept and not snapshot.locks:
            self._dropped.discard(snapshot)
            self.slots.free([snapshot.slot])

    def take_slot(self) -> int | None:
        """A slot for the caller; a snapshot that nobody holds is evicted for it. None: all are in
        use.
        """
        taken = self.slots.allocate(1)
        if taken is None:
            victim = self._victim()
            if victim is None:
                return None
            self.num_evicted += 1
            self.drop(victim)
            taken = self.slots.allocate(1)
            assert taken is not None, "the victim was not locked"
        return taken[0]

    def _victim(self) -> StateSnapshot | None:
        for one in self._unused:
            if not one.locks:
                return one
        spared: list[StateSnapshot] = []
        victim = None
        for one in self._order:
            if one.locks:
                continue
            if not one.node.pins_here or len(spared) == MOST_SPARED:
                victim = one
                break
            spared.append(one)
        if victim is None:
            return spared[0] if spared else None
        for one in spared:
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
        self._order.pop(snapshot, None)
        self._unused.pop(snapshot, None)
        snapshot.is_kept = False
        if snapshot.locks:
            self._dropped.add(snapshot)
        else:
            self.slots.free([snapshot.slot])

    # -- as a watcher of the tree

    def added(self, leaf: Node) -> None:
        """A new leaf has no snapshots."""

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

    def removed(self, node: Node) -> None:
        for one in list(self._of.get(node, ())):
            self.drop(one)

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
        assert set(kept) == {*self._order, *self._unused}, "the order has the kept ones"
        assert len(kept) == self.num_kept, "each has one place in the order"
        assert all(one.locks and not one.is_kept for one in self._dropped), "dropped and locked"
        self.slots.check([*(one.slot for one in [*kept, *self._dropped]), *taken])
