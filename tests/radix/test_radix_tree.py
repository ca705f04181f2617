"""Rules of matching and inserting, and what a walk and a check say."""

from __future__ import annotations

import random

import pytest

from lmprog.radix import Inserted, Match
from tests.radix.bench import Bench, ints

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
    assert bench.tree.match(ints(1, 2, 3, 4, 5, 6, 7), limit=4) == Match(
        node, 4, node.pages[:1], None
    )
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


def test_a_branch_that_was_matched_inside_a_node_finds_its_last_page_after_a_split(
    bench: Bench,
) -> None:
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


# -- giving up


def test_what_is_given_up_goes_back_to_where_it_was_forked(bench: Bench) -> None:
    stem = bench.add(1, 2, 3, 4, 5, 6)
    bench.tree.pin(stem)
    loser = bench.add(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
    winner = bench.add(1, 2, 3, 4, 5, 6, 21, 22, 23)
    bench.tree.pin(winner)
    free = bench.pages.num_free
    assert bench.tree.give_up(loser, 6) == bench.pages.num_free - free > 0
    assert bench.length(1, 2, 3, 4, 5, 6, 7) == 6
    assert bench.length(1, 2, 3, 4, 5, 6, 21, 22, 23) == 9
    bench.check()


def test_what_somebody_stands_on_is_not_given_up(bench: Bench) -> None:
    node = bench.add(1, 2, 3, 4, 5, 6, 7, 8)
    child = bench.add(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    bench.tree.lock(child)
    assert bench.tree.give_up(node, 0) == 0
    bench.tree.unlock(child)
    bench.tree.pin(node)
    assert bench.tree.give_up(node, 0) == 0
    bench.tree.unpin(node)
    assert bench.tree.give_up(node, 4) > 0, "with what was cached below it"
    assert bench.length(1, 2, 3, 4, 5, 6, 7, 8) == 4
    bench.check()
    assert bench.tree.give_up(node, 0) == 1
    assert bench.tree.num_cached == 0


def test_a_branch_above_is_kept_for_others(bench: Bench) -> None:
    bench.add(1, 2, 3, 4, 5)
    other = bench.add(1, 2, 3, 9, 9, 9)
    loser = bench.add(1, 2, 3, 4, 5, 6, 7)
    bench.tree.give_up(loser, 0)
    assert bench.length(1, 2, 3, 9, 9, 9) == 6
    assert other.alive
    bench.check()


@pytest.mark.parametrize("seed", range(20))
def test_giving_up_keeps_all_invariants(seed: int) -> None:
    dice = random.Random(seed)
    bench = Bench(num_pages=400, page_size=dice.choice([1, 3, 4]))
    nodes = []
    for _ in range(60):
        length = dice.randrange(1, 12)
        tokens = [dice.randrange(2) for _ in range(length)]
        if bench.length(*tokens) == length:
            continue  # nothing to add
        node = bench.add(*tokens)
        if dice.random() < 0.2:
            bench.tree.lock(node)
        if dice.random() < 0.2:
            bench.tree.pin(node)
        nodes.append((node, length))
        if dice.random() < 0.5:
            one, length = dice.choice(nodes)
            free = bench.pages.num_free
            freed = bench.tree.give_up(one, dice.randrange(length + 1))
            assert freed == bench.pages.num_free - free
        bench.check()
