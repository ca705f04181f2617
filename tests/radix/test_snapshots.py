"""Snapshots of recurrent states go with the tokens of the tree, and are evicted by themselves."""

from __future__ import annotations

from array import array

import pytest

from lmprog.radix import Node, PageAllocator, RadixTree
from lmprog.radix.snapshots import Left, StateSnapshots

PAGE_SIZE = 4


class Kept:
    """A tree with snapshots."""

    def __init__(self, num_slots: int = 8) -> None:
        self.pages = PageAllocator(64)
        self.tree = RadixTree(PAGE_SIZE, self.pages)
        self.snapshots = self.tree.watcher = StateSnapshots(PageAllocator(num_slots))
        self.tree.useless_tail = self.snapshots.useless_tail

    def insert(self, *tokens: int) -> Node:
        count = -(-len(tokens) // PAGE_SIZE)
        pages = self.pages.allocate(count)
        assert pages is not None
        inserted = self.tree.insert(array("i", tokens), pages)
        self.pages.free(pages[: inserted.first_taken])
        return inserted.node

    def put(self, node: Node, position: int) -> int:
        slot = self.snapshots.take_slot()
        assert slot is not None
        self.snapshots.put(node, position, slot)
        return slot

    def last(self, node: Node, length: int) -> tuple[int, int] | None:
        found = self.snapshots.last(node, length)
        return None if found is None else (found.position, found.slot)

    def check(self) -> None:
        self.tree.check()
        self.snapshots.check(())


def test_the_last_snapshot_at_or_before_a_position_is_found_along_the_path() -> None:
    kept = Kept()
    kept.insert(1, 2, 3, 4, 5)
    node = kept.insert(1, 2, 3, 4, 5, 6, 7, 8, 9)
    early, late = kept.put(node, 3), kept.put(node, 8)
    assert kept.last(node, 2) is None
    assert kept.last(node, 3) == kept.last(node, 7) == (3, early)
    assert kept.last(node, 8) == kept.last(node, 9) == (8, late)
    kept.check()


def test_a_split_takes_each_snapshot_to_the_part_of_its_position() -> None:
    kept = Kept()
    node = kept.insert(1, 2, 3, 4, 5, 6, 7, 8)
    at_cut, behind = kept.put(node, 5), kept.put(node, 6)
    other = kept.insert(1, 2, 3, 4, 5, 9, 9)
    assert kept.last(other, 7) == (5, at_cut)
    assert kept.last(node, 8) == (6, behind)
    kept.check()


def test_snapshots_leave_the_tree_with_their_tokens() -> None:
    kept = Kept()
    node = kept.insert(*range(12))
    first, last = kept.put(node, 4), kept.put(node, 9)
    kept.tree.evict(1)
    assert kept.last(node, 12) == (4, first)
    assert last not in (one.slot for one in kept.snapshots._order)
    kept.tree.clear()
    assert kept.snapshots.slots.num_free == 8
    kept.check()


def test_a_locked_snapshot_keeps_its_slot_until_the_lock_is_given_back() -> None:
    kept = Kept(num_slots=1)
    node = kept.insert(1, 2, 3)
    kept.put(node, 3)
    found = kept.snapshots.last(node, 3)
    assert found is not None
    kept.snapshots.lock(found)
    assert kept.snapshots.take_slot() is None
    kept.tree.discard(node)
    assert not found.is_kept
    assert kept.snapshots.take_slot() is None
    kept.check()
    kept.snapshots.unlock(found)
    assert kept.snapshots.take_slot() == found.slot


def test_the_snapshot_used_least_recently_is_evicted_first_and_a_live_branchs_later() -> None:
    kept = Kept(num_slots=3)
    nodes = [kept.insert(start, start + 1) for start in (10, 20, 30)]
    slots = [kept.put(node, 2) for node in nodes]
    kept.tree.pin(nodes[0])
    found = kept.snapshots.last(nodes[1], 2)
    assert found is not None
    kept.snapshots.use(found)
    assert kept.snapshots.take_slot() == slots[2]
    assert kept.snapshots.take_slot() == slots[1]
    assert kept.snapshots.take_slot() == slots[0], "nothing else is left"
    assert kept.snapshots.num_evicted == 3


def test_what_was_left_on_the_way_and_never_used_goes_first() -> None:
    kept = Kept(num_slots=3)
    node = kept.insert(*range(12))
    slots = [kept.put(node, 2)]
    for position in (4, 6):
        slot = kept.snapshots.take_slot()
        assert slot is not None
        kept.snapshots.put(node, position, slot, Left.ON_THE_WAY)
        slots.append(slot)
    found = kept.snapshots.last(node, 4)
    assert found is not None
    kept.snapshots.use(found)
    kept.check()
    assert [kept.snapshots.take_slot() for _ in range(3)] == [slots[2], slots[0], slots[1]]


def test_from_what_one_went_on_goes_before_ends_and_what_several_have_in_common_last() -> None:
    kept = Kept(num_slots=4)
    slots = {}
    for start in (10, 20, 30, 40):
        node = kept.insert(start, start + 1)
        slots[start] = kept.put(node, 2)
        found = kept.snapshots.last(node, 2)
        assert found is not None
        for _ in range({20: 1, 30: 2}.get(start, 0)):
            kept.snapshots.use(found)
            kept.snapshots.passed(found)
    kept.check()
    assert [kept.snapshots.take_slot() for _ in range(4)] == [slots[at] for at in (20, 10, 40, 30)]


def test_where_one_went_on_and_others_stand_is_evicted_when_nothing_else_is_left() -> None:
    kept = Kept(num_slots=1)
    node = kept.insert(1, 2, 3)
    slot = kept.put(node, 3)
    found = kept.snapshots.last(node, 3)
    assert found is not None
    kept.snapshots.use(found)
    kept.snapshots.passed(found)
    kept.tree.pin(node)
    kept.tree.pin(node)
    assert kept.snapshots.take_slot(Left.ON_THE_WAY) is None
    assert kept.snapshots.take_slot() == slot


def test_what_is_left_on_the_way_takes_no_slot_of_an_end() -> None:
    kept = Kept(num_slots=1)
    kept.put(kept.insert(1, 2, 3), 3)
    assert kept.snapshots.take_slot(Left.ON_THE_WAY) is None
    assert kept.snapshots.take_slot() is not None


def test_pages_behind_the_last_snapshot_of_a_leaf_are_evicted_first() -> None:
    kept = Kept()
    first = kept.insert(*range(12))
    kept.put(first, 12)
    barren, cut = kept.insert(*range(20, 32)), kept.insert(*range(40, 52))
    kept.put(cut, 6)
    assert kept.tree.evict(4) == 4
    assert kept.last(first, 12) is not None, "used least recently, and every token is of use"
    assert not barren.alive
    assert cut.end == 8
    assert kept.snapshots.useless_tail(PAGE_SIZE) is None, "the page of its snapshot stays"
    assert kept.tree.evict(1) == 1
    assert first.alive
    assert kept.tree.evict(2) == 2, "what is left of it is of no use without its end"
    kept.check()


def test_the_audit_finds_a_snapshot_that_lost_its_place() -> None:
    kept = Kept()
    node = kept.insert(1, 2, 3, 4, 5)
    kept.put(node, 5)
    kept.snapshots.check(())
    node.shorten(4)
    with pytest.raises(AssertionError, match="behind"):
        kept.snapshots.check(())


def test_the_audit_finds_a_slot_that_nobody_has() -> None:
    kept = Kept()
    assert kept.snapshots.take_slot() == 0
    kept.snapshots.check([0])
    with pytest.raises(AssertionError, match="leaked"):
        kept.snapshots.check(())


def test_behind_leaves_that_are_in_use_few_are_looked_at_and_all_in_turn() -> None:
    kept = Kept()
    several = [kept.insert(number, 2, 3, 4) for number in range(50)]
    for node in several[:-1]:
        kept.tree.lock(node)
    looked = [kept.snapshots.useless_tail(PAGE_SIZE) for _ in range(3)]
    assert looked[0] is None, "it looks at no more than some"
    assert looked[1] == (several[-1], 1)
    for node in several[:-1]:
        kept.tree.unlock(node)
    kept.check()
