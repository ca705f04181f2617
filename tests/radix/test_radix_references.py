"""Rules of locks, pins and eviction."""

from __future__ import annotations

import pytest

from tests.radix.bench import Bench, ints

# -- holding


def test_a_locked_node_is_never_evicted(bench: Bench) -> None:
    node = bench.add(1, 2, 3, 4)
    bench.add(1, 2, 3, 4, 5)
    bench.tree.lock(node)
    assert bench.tree.num_evictable == 1
    assert bench.tree.clear() == 1
    assert bench.length(1, 2, 3, 4) == 4
    bench.tree.unlock(node)
    assert bench.tree.clear() == 1


def test_a_lock_is_released_only_by_as_many_unlocks(bench: Bench) -> None:
    node = bench.add(1, 2, 3, 4)
    bench.tree.lock(node)
    bench.tree.lock(node)
    bench.tree.unlock(node)
    assert bench.tree.clear() == 0
    bench.tree.unlock(node)
    with pytest.raises(AssertionError):
        bench.tree.unlock(node)


def test_a_lock_up_to_a_position_holds_no_more_than_that(bench: Bench) -> None:
    whole = bench.add(*range(12))
    node = bench.tree.lock(whole, 6)
    assert (node.end, whole.begin, whole.locks) == (6, 6, 0)
    assert bench.tree.num_evictable == 1  # of two: one of them refs the end of what is locked
    assert bench.tree.clear() == 1
    assert bench.length(*range(12)) == 6
    bench.check()
    bench.tree.unlock(node)


def test_a_lock_at_the_end_of_a_node_cuts_nothing(bench: Bench) -> None:
    node = bench.add(1, 2, 3, 4, 5)
    assert bench.tree.lock(node, 5) is node
    assert bench.tree.num_nodes == 1
    bench.tree.unlock(node)


def test_an_evicted_node_cannot_be_locked(bench: Bench) -> None:
    node = bench.add(1, 2, 3, 4)
    bench.tree.clear()
    with pytest.raises(AssertionError):
        bench.tree.lock(node)


def test_the_root_can_be_locked_pinned_and_unlocked(bench: Bench) -> None:
    root = bench.tree.match(ints(1), "someone").node
    bench.tree.lock(root)
    bench.tree.pin(root)
    assert bench.tree.match(ints(1), "someone").node is root
    bench.tree.unlock(root)
    bench.tree.unpin(root)


def test_a_salt_that_holds_nothing_leaves_nothing_behind(bench: Bench) -> None:
    bench.add(1, 2, 3, 4, salt="gone")
    for number in range(100):
        bench.length(1, salt=f"only asked for {number}")
    bench.tree.clear()
    assert not bench.tree._refs.used_roots
    assert not bench.tree._refs._roots


def test_an_eviction_takes_no_more_of_a_leaf_than_was_asked_for(bench: Bench) -> None:
    bench.add(1, 2, 3, 4)
    bench.add(*range(10, 26))
    assert bench.tree.evict(2) == 2  # all of the older leaf, and one page of the other
    assert bench.length(1, 2, 3, 4) == 0
    assert bench.length(*range(10, 26)) == 12


def test_pinned_nodes_are_evicted_last(bench: Bench) -> None:
    pinned = bench.add(1, 1, 1, 1)
    bench.tree.pin(pinned)
    bench.add(2, 2, 2, 2)
    assert (bench.tree.num_evictable, bench.tree.num_pinned) == (2, 1)
    assert bench.tree.evict(1) == 1
    assert (bench.length(1, 1, 1, 1), bench.length(2, 2, 2, 2)) == (4, 0)
    assert bench.tree.evict(1) == 1
    assert bench.length(1, 1, 1, 1) == 0
    bench.tree.unpin(pinned)


def test_a_pin_outlives_its_node_and_stays_on_the_rest_of_the_path(bench: Bench) -> None:
    upper = bench.add(1, 2, 3, 4)
    lower = bench.add(1, 2, 3, 4, 5)
    bench.tree.pin(lower)
    bench.tree.evict(1)
    assert not lower.alive
    assert upper.pins_here == 1
    bench.tree.unpin(lower)
    assert upper.pins == 0


def test_of_two_pinned_nodes_the_lower_goes_first(bench: Bench) -> None:
    upper = bench.add(1, 2, 3, 4)
    lower = bench.add(1, 2, 3, 4, 5)
    bench.tree.pin(upper)
    bench.tree.pin(lower)
    assert bench.tree.evict(1) == 1
    assert (upper.alive, lower.alive) == (True, False)
    bench.tree.unpin(upper)
    bench.tree.unpin(lower)


def test_what_was_not_pinned_cannot_be_unpinned(bench: Bench) -> None:
    node = bench.add(1, 2, 3, 4)
    with pytest.raises(AssertionError):
        bench.tree.unpin(node)


# -- evicting


def test_the_least_recently_used_leaf_goes_first(bench: Bench) -> None:
    for first in (1, 2, 3):
        bench.add(first, 0, 0, 0)
    bench.length(1, 0, 0, 0)
    bench.tree.evict(1)
    assert [bench.length(first, 0, 0, 0) for first in (1, 2, 3)] == [4, 0, 4]


def test_a_parent_goes_by_its_own_last_use_once_its_children_went(bench: Bench) -> None:
    bench.add(1, 1, 1, 1)
    bench.add(1, 1, 1, 1, 2)
    bench.add(3, 3, 3, 3)
    bench.length(1, 1, 1, 1)  # the parent alone
    bench.tree.evict(2)
    assert (bench.length(1, 1, 1, 1), bench.length(3, 3, 3, 3)) == (4, 0)


def test_a_long_leaf_loses_no_more_than_is_asked_for(bench: Bench) -> None:
    bench.add(*range(14))
    assert bench.tree.evict(1) == 1
    assert bench.length(*range(14)) == 12
    assert bench.tree.evict(2) == 2
    assert bench.length(*range(14)) == 4


def test_a_parent_inherits_the_page_in_which_it_ends(bench: Bench) -> None:
    parent = bench.add(1, 2)
    bench.add(1, 2, 3, 4, 5, 6)
    assert parent.pages == []
    assert bench.tree.evict(2) == 2
    assert bench.length(1, 2, 3, 4) == 0


def test_a_locked_parent_keeps_one_page_of_its_last_child_and_the_count_knows(bench: Bench) -> None:
    parent = bench.add(1, 2)
    bench.add(1, 2, 3, 4, 5, 6)
    bench.tree.lock(parent)
    assert bench.tree.num_cached == 2
    assert bench.tree.num_evictable == 1
    assert bench.tree.clear() == 1
    assert bench.length(1, 2, 3) == 2
    assert len(parent.pages) == 1
    bench.tree.unlock(parent)


def test_evict_says_what_it_freed_when_it_cannot_free_enough(bench: Bench) -> None:
    bench.add(1, 2, 3, 4, 5)
    assert bench.tree.evict(9) == 2
    assert bench.tree.evict(1) == 0
