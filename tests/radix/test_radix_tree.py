"""The rules of the prefix tree, each by an example. Pages have four slots unless a test says otherwise."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import pytest

from lmprog.radix import Inserted, Match, Node, PageAllocator, RadixTree, Tail


class Bench:
    """A tree with its allocator. `add` inserts as a branch would: pages that the tree has first, then fresh ones."""

    def __init__(self, num_pages: int = 32, page_size: int = 4) -> None:
        self.size = page_size
        self.pages = PageAllocator(num_pages)
        self.tree = RadixTree(page_size, self.pages)
        self.held: list[int] = []

    def fresh(self, count: int) -> list[int]:
        taken = self.pages.take(count)
        assert taken is not None
        return taken

    def add(self, *tokens: int, salt: str = "") -> Node:
        table = self.tree.match(ints(*tokens), salt).pages
        table += self.fresh(-(-len(tokens) // self.size) - len(table))
        return self.tree.insert(ints(*tokens), table, salt).node

    def length(self, *tokens: int, salt: str = "") -> int:
        return self.tree.match(ints(*tokens), salt).length

    def check(self) -> None:
        self.tree.check()
        self.pages.check([*self.tree.pages_held(), *self.held])


def ints(*tokens: int) -> array[int]:
    return array("i", tokens)


@pytest.fixture
def bench() -> Iterator[Bench]:
    it = Bench()
    yield it
    it.check()


# -- matching


def test_an_empty_tree_matches_nothing(bench: Bench) -> None:
    found = bench.tree.match(ints(1, 2, 3))
    assert (found.length, found.pages, found.partial) == (0, [], None)


def test_a_match_is_exact_to_the_token_inside_a_page(bench: Bench) -> None:
    node = bench.add(1, 2, 3, 4, 5, 6, 7)
    found = bench.tree.match(ints(1, 2, 3, 4, 5, 6, 9))
    assert found == Match(node, 6, [node.pages[0]], node.pages[1])


def test_a_match_stops_at_its_limit(bench: Bench) -> None:
    node = bench.add(1, 2, 3, 4, 5, 6, 7)
    assert bench.tree.match(ints(1, 2, 3, 4, 5, 6, 7), limit=4) == Match(node, 4, node.pages[:1], None)
    assert bench.tree.match(ints(1, 2, 3, 4, 5, 6, 7), limit=99).length == 7


def test_a_match_reads_a_memoryview_as_well(bench: Bench) -> None:
    bench.add(1, 2, 3)
    assert bench.tree.match(memoryview(ints(0, 1, 2, 3))[1:]).length == 3


def test_negative_tokens_and_large_ones_are_tokens_like_others(bench: Bench) -> None:
    bench.add(-1, 2**31 - 1, -(2**31))
    assert bench.length(-1, 2**31 - 1, -(2**31)) == 3
    assert bench.length(-1, 2**31 - 1, 0) == 2


def test_a_match_changes_no_node(bench: Bench) -> None:
    bench.add(1, 2, 3, 4, 5, 6)
    bench.length(1, 2, 9)
    assert bench.tree.num_nodes == 1


def test_salts_share_nothing(bench: Bench) -> None:
    bench.add(1, 2, 3, 4, salt="a")
    assert bench.length(1, 2, 3, 4, salt="b") == 0
    other = bench.add(1, 2, 3, 4, salt="b")
    assert bench.tree.match(ints(1, 2, 3, 4), "b").pages == other.pages
    assert bench.tree.match(ints(1, 2, 3, 4), "a").pages != other.pages


# -- inserting


def test_what_is_known_already_takes_no_pages(bench: Bench) -> None:
    node = bench.add(1, 2, 3, 4, 5, 6)
    bench.held = bench.fresh(2)
    assert bench.tree.insert(ints(1, 2, 3, 4, 5, 6), bench.held) == Inserted(node, 2)


def test_tokens_that_end_inside_a_node_do_not_split_it(bench: Bench) -> None:
    node = bench.add(1, 2, 3, 4, 5, 6)
    assert bench.tree.insert(ints(1, 2, 3), node.pages[:1]) == Inserted(node, 1)
    assert bench.tree.num_nodes == 1


def test_only_new_pages_are_taken_over(bench: Bench) -> None:
    first = bench.add(1, 2, 3, 4, 5, 6, 7, 8)
    mine = bench.fresh(2)
    inserted = bench.tree.insert(ints(1, 2, 3, 4, 5, 9, 9, 9, 9), [first.pages[0], *mine])
    assert inserted.first_taken == 1
    assert inserted.node.pages == mine


def test_a_node_that_begins_inside_a_page_owns_that_page(bench: Bench) -> None:
    left, right = bench.add(1, 2, 3, 4, 5, 6), bench.add(1, 2, 3, 4, 5, 7)
    upper = left.parent
    assert upper is right.parent
    assert upper is not None
    assert [len(node.pages) for node in (upper, left, right)] == [1, 1, 1]
    assert [(node.begin, node.end) for node in (upper, left, right)] == [(0, 5), (5, 6), (5, 6)]


def test_after_a_split_the_object_is_the_lower_part_and_the_holds_reach_both(bench: Bench) -> None:
    node = bench.add(1, 2, 3, 4, 5, 6)
    bench.tree.lock(node)
    bench.tree.pin(node)
    bench.add(1, 2, 9)
    upper = node.parent
    assert upper is not None
    assert (node.begin, upper.end) == (2, 2)
    assert (upper.locks, upper.locks_here, upper.pins, upper.pins_here) == (1, 0, 1, 0)
    bench.tree.unlock(node)
    bench.tree.unpin(node)


def test_a_branch_that_was_matched_inside_a_node_finds_its_last_page_after_a_split(bench: Bench) -> None:
    node = bench.add(1, 2, 3, 4, 5, 6, 7, 8)
    bench.tree.lock(node)
    bench.add(1, 2, 3, 4, 5, 6, 9)
    assert node.begin == 6
    page = bench.tree.partial_page(node, 5)
    assert page == bench.tree.match(ints(1, 2, 3, 4, 5)).partial
    bench.tree.unlock(node)


def test_a_leaf_gives_its_part_filled_page_back_with_its_first_child(bench: Bench) -> None:
    leaf = bench.add(1, 2, 3, 4, 5, 6)
    child = bench.add(1, 2, 3, 4, 5, 6, 7)
    assert (len(leaf.pages), len(child.pages), bench.tree.num_cached) == (1, 1, 2)
    assert bench.tree.match(ints(1, 2, 3, 4, 5, 6)).partial == child.pages[0]


def test_the_part_filled_page_stays_for_those_who_stand_there(bench: Bench) -> None:
    leaf = bench.add(1, 2, 3, 4, 5, 6)
    page = leaf.pages[1]
    bench.tree.lock(leaf)
    bench.add(1, 2, 3, 4, 5, 6, 7)
    assert page in bench.tree.pages_held()
    assert bench.tree.partial_page(leaf, 6) == page
    bench.tree.unlock(leaf)
    assert page not in bench.tree.pages_held()


def test_a_page_of_the_tree_cannot_be_given_to_it_as_new(bench: Bench) -> None:
    leaf = bench.add(1, 2, 3, 4, 5, 6)
    with pytest.raises(AssertionError):
        bench.tree.insert(ints(1, 2, 3, 4, 5, 6, 7), leaf.pages)
    leaf.pages.append(1)  # the failed call had begun; a broken invariant is not survived in earnest


def test_the_page_table_must_fit_the_tokens(bench: Bench) -> None:
    with pytest.raises(AssertionError):
        bench.tree.insert(ints(1, 2, 3, 4, 5), [0])


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
    assert bench.tree.num_evictable == 1  # of two: one of them holds the end of what is locked
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


def test_the_root_can_be_locked_pinned_and_let_go(bench: Bench) -> None:
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
    assert not bench.tree._holds.used_roots
    assert not bench.tree._holds._roots


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


def test_what_was_discarded_can_be_inserted_anew_while_the_old_is_still_locked(bench: Bench) -> None:
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
    child = bench.add(1, 2, 3, 4, 5, 6, 7)  # has the only page that holds 5 and 6
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


# -- looking


def test_a_walk_gives_parents_before_children_of_all_salts(bench: Bench) -> None:
    bench.add(1, 2, 3, salt="a")
    bench.add(1, 2, 4, salt="a")
    bench.add(5, salt="b")
    walked = [(node.salt, list(node.tokens)) for node in bench.tree.walk()]
    assert walked[0] == ("a", [1, 2])
    assert sorted(walked) == [("a", [1, 2]), ("a", [3]), ("a", [4]), ("b", [5])]
    assert bench.tree.num_nodes == 4


def test_a_path_of_many_thousand_nodes_is_no_trouble() -> None:
    bench = Bench(num_pages=1500, page_size=1)
    tokens, table = ints(), []
    for token in range(1500):
        tokens.append(token)
        table += bench.fresh(1)
        node = bench.tree.insert(tokens, table).node
    bench.tree.lock(node)
    bench.tree.unlock(node)
    assert bench.tree.num_nodes == len(list(bench.tree.walk())) == 1500
    assert bench.length(*range(1500)) == 1500
    bench.check()
    bench.tree.discard(node, 10)
    assert bench.tree.clear() == 10


@pytest.mark.parametrize("spoil", ["locks", "pins", "end", "pages"])
def test_check_finds_a_broken_counter(spoil: str) -> None:
    bench = Bench()
    node = bench.add(1, 2, 3, 4)
    if spoil == "pages":
        node.pages.append(9)
    else:
        setattr(node, spoil, getattr(node, spoil) + 1)
    with pytest.raises(AssertionError):
        bench.tree.check()
