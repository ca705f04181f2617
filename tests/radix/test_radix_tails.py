"""Rules of taking a tail back and of discarding."""

from __future__ import annotations

import pytest

from lmprog.radix import Tail
from tests.radix.bench import Bench, ints

# -- taking the tail back


def test_the_only_stander_takes_the_last_page_back(bench: Bench) -> None:
    node = bench.add(1, 2, 3, 4, 5, 6)
    bench.tree.lock(node)
    page = node.pages[1]
    assert bench.tree.take_tail(node, 6) == Tail(page, node)
    bench.held = [page]
    assert bench.length(1, 2, 3, 4, 5, 6) == 4
    bench.tree.unlock(node)


def test_the_lock_moves_up_when_nothing_of_the_node_is_left(bench: Bench) -> None:
    upper = bench.add(1, 2, 3, 4)
    lower = bench.add(1, 2, 3, 4, 5)
    bench.tree.lock(lower)
    page = lower.pages[0]
    assert bench.tree.take_tail(lower, 5) == Tail(page, upper)
    bench.held = [page]
    assert not lower.alive
    assert (upper.locks, upper.locks_here) == (1, 1)
    bench.tree.unlock(upper)


def test_the_lock_may_move_to_the_root(bench: Bench) -> None:
    node = bench.add(1, 2)
    bench.tree.lock(node)
    page = node.pages[0]
    tail = bench.tree.take_tail(node, 2)
    bench.held = [page]
    assert tail is not None
    assert tail.node.parent is None
    bench.check()
    bench.tree.unlock(tail.node)


def test_the_tail_of_a_chain_inside_one_page_goes_whole(bench: Bench) -> None:
    bench.add(1, 2)
    lower = bench.add(1, 2, 3)
    bench.tree.lock(lower)
    tail = bench.tree.take_tail(lower, 3)
    assert tail is not None
    bench.held = [tail.page]
    assert bench.length(1, 2, 3) == 0
    bench.tree.unlock(tail.node)


def test_no_tail_is_taken_from_under_somebody_else(bench: Bench) -> None:
    upper = bench.add(1, 2)
    lower = bench.add(1, 2, 3)
    bench.tree.lock(upper)
    bench.tree.lock(lower)
    assert bench.tree.take_tail(lower, 3) is None  # `upper` would lose its end
    bench.tree.lock(lower)
    assert bench.tree.take_tail(lower, 3) is None
    for node in (upper, lower, lower):
        bench.tree.unlock(node)


def test_no_tail_is_taken_from_two_who_stand_on_the_same_node(bench: Bench) -> None:
    node = bench.add(1, 2, 3, 4, 5, 6)
    bench.tree.lock(node)
    bench.tree.lock(node)
    assert bench.tree.take_tail(node, 6) is None
    assert bench.length(1, 2, 3, 4, 5, 6) == 6
    bench.tree.unlock(node)
    bench.tree.unlock(node)


@pytest.mark.parametrize("length", [4, 5, 8])
def test_a_tail_is_taken_only_at_the_end_and_inside_a_page(bench: Bench, length: int) -> None:
    node = bench.add(*range(6 if length == 5 else 8))
    bench.tree.lock(node)
    assert bench.tree.take_tail(node, length) is None
    bench.tree.unlock(node)


def test_the_page_kept_for_the_only_stander_can_be_taken_and_no_tokens_go(bench: Bench) -> None:
    node = bench.add(1, 2, 3, 4, 5, 6)
    page = node.pages[1]
    bench.tree.lock(node)
    bench.add(1, 2, 3, 4, 5, 6, 7)
    assert bench.tree.take_tail(node, 6) == Tail(page, node)
    bench.held = [page]
    assert bench.length(1, 2, 3, 4, 5, 6) == 6
    bench.check()
    bench.tree.unlock(node)


def test_the_page_kept_for_two_standers_is_taken_by_neither(bench: Bench) -> None:
    node = bench.add(1, 2, 3, 4, 5, 6)
    bench.tree.lock(node)
    bench.tree.lock(node)
    bench.add(1, 2, 3, 4, 5, 6, 7)
    assert bench.tree.take_tail(node, 6) is None
    bench.tree.unlock(node)
    assert bench.tree.take_tail(node, 6) is not None
    bench.held = list(set(range(32)) - set(bench.pages._free) - set(bench.tree.pages_held()))
    bench.tree.unlock(node)


# -- discarding


def test_discarded_tokens_are_never_matched_again_and_their_pages_go_back(bench: Bench) -> None:
    node = bench.add(1, 2, 3, 4)
    bench.add(1, 2, 3, 4, 5, 6, 7, 8, 9)
    bench.tree.discard(node)
    assert bench.length(1, 2, 3, 4) == 0
    assert bench.pages.num_free == bench.pages.num_pages


def test_pages_of_a_discarded_node_wait_for_the_last_lock_below_it(bench: Bench) -> None:
    upper = bench.add(1, 2, 3, 4)
    lower = bench.add(1, 2, 3, 4, 5, 6, 7, 8)
    bench.tree.lock(lower)
    bench.tree.lock(lower)
    bench.tree.discard(upper)
    assert (bench.tree.num_nodes, bench.tree.num_cached, bench.tree.num_evictable) == (0, 2, 0)
    bench.tree.unlock(lower)
    bench.check()
    assert bench.tree.num_cached == 2
    bench.tree.unlock(lower)
    assert bench.tree.num_cached == 0


def test_what_was_discarded_can_be_inserted_anew_while_the_old_is_still_locked(
    bench: Bench,
) -> None:
    node = bench.add(1, 2, 3, 4)
    bench.tree.lock(node)
    bench.tree.discard(node)
    again = bench.add(1, 2, 3, 4)
    assert again is not node
    assert bench.tree.match(ints(1, 2, 3, 4)).pages == again.pages
    bench.check()
    bench.tree.unlock(node)
    assert bench.length(1, 2, 3, 4) == 4


def test_a_discard_from_a_position_takes_what_a_split_put_above(bench: Bench) -> None:
    bench.add(1, 2, 3, 4)
    failed = bench.add(1, 2, 3, 4, 5, 6, 7, 8)
    bench.add(1, 2, 3, 4, 5, 9)  # splits `failed` at 5
    bench.tree.discard(failed, 4)
    assert bench.length(1, 2, 3, 4, 5) == 4
    assert bench.tree.num_nodes == 1


def test_a_discard_from_a_position_splits_what_is_partly_right(bench: Bench) -> None:
    node = bench.add(*range(12))
    bench.tree.discard(node, 8)
    assert bench.length(*range(12)) == 8


def test_a_discard_may_cost_the_rest_of_a_page(bench: Bench) -> None:
    node = bench.add(*range(12))
    bench.tree.discard(node, 6)
    assert bench.length(*range(12)) == 4


def test_a_parent_that_kept_its_page_loses_nothing_by_a_discard_below(bench: Bench) -> None:
    parent = bench.add(1, 2, 3, 4, 5, 6)
    bench.tree.lock(parent)
    child = bench.add(1, 2, 3, 4, 5, 6, 7)
    bench.tree.discard(child)
    assert parent.alive
    assert bench.length(1, 2, 3, 4, 5, 6) == 6
    bench.tree.unlock(parent)


def test_who_stands_on_tokens_that_went_with_a_discard_finds_its_node_dead(bench: Bench) -> None:
    parent = bench.add(1, 2, 3, 4, 5, 6)
    child = bench.add(1, 2, 3, 4, 5, 6, 7)  # has the only page that refs 5 and 6
    bench.tree.lock(parent)
    bench.tree.discard(child)
    assert not parent.alive
    assert bench.length(1, 2, 3, 4, 5, 6) == 4
    bench.check()
    assert bench.tree.clear() == 0  # the whole page before is still locked
    bench.tree.unlock(parent)
    assert bench.tree.clear() == 1


def test_discarding_twice_or_nothing_is_allowed(bench: Bench) -> None:
    node = bench.add(1, 2, 3, 4)
    bench.tree.discard(node, 4)
    assert bench.length(1, 2, 3, 4) == 4
    bench.tree.discard(node)
    bench.tree.discard(node)
    bench.tree.discard(bench.tree.match(ints(7)).node)
    assert bench.tree.num_nodes == 0


def test_a_pin_below_a_discarded_node_moves_up(bench: Bench) -> None:
    upper = bench.add(1, 2, 3, 4)
    lower = bench.add(1, 2, 3, 4, 5)
    bench.tree.pin(lower)
    bench.tree.discard(lower)
    assert upper.pins_here == 1
    bench.tree.unpin(lower)
