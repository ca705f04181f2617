"""The second tier on the fake engine's pages: what comes back, and what never does."""

from __future__ import annotations

import random
from array import array

import pytest

from lmprog.radix import PageAllocator, RadixTree, end_of_rest
from lmprog.runtime.tier.page_store import KnownPage, PageCosts, page_keys, root_of
from lmprog.runtime.tier.second_tier import SecondTier
from lmprog.runtime.tier.stored_states import rebuild
from tests.tier.tiered_pool import LONG, PAGE, TieredPool, text

Patch = pytest.MonkeyPatch


def test_an_evicted_path_comes_back_to_the_token() -> None:
    pool = TieredPool()
    pool.compute(LONG)
    pool.tree.clear()
    assert pool.tree.match(LONG).length == 0
    assert pool.bring_back(LONG) == 14


def test_who_has_the_end_of_an_evicted_path_sees_how_much_of_it_is_stored() -> None:
    pool = TieredPool(num_handles=4)
    pool.compute(LONG)
    end = pool.tree.match(LONG).node
    pool.tree.evict(2)
    assert end.kept_at is not None
    assert (end_of_rest(end), end_of_rest(end.kept_at)) == (8, 14)
    pool.tree.clear()
    assert (end_of_rest(end), end_of_rest(end.kept_at)) == (0, 14)
    pool.compute(text(7, 1, 2, 3))
    pool.tree.clear()
    assert end_of_rest(end.kept_at) == 12, "the tier needed a page"
    assert pool.bring_back(LONG) == 12
    again = pool.tree.match(LONG).node
    assert again.kept_at is not None
    assert end_of_rest(again.kept_at) == 12


def test_a_prefix_that_ends_inside_a_stored_page_comes_back_to_the_token() -> None:
    pool = TieredPool()
    pool.compute(LONG)
    pool.tree.clear()
    assert pool.bring_back(array("i", [*LONG[:6], 9, 9, 9])) == 6


def test_only_what_the_pool_lacks_is_loaded() -> None:
    pool = TieredPool()
    pool.compute(LONG)
    pool.tree.evict(2)
    assert pool.tree.match(LONG).length == 8
    assert pool.bring_back(LONG) == 14
    assert pool.tier.counters.loaded == 2


def test_two_paths_that_part_inside_a_page_both_come_back() -> None:
    pool = TieredPool()
    other = array("i", [*LONG[:6], 20, 21, 22, 23])
    pool.compute(LONG)
    pool.compute(other)
    pool.tree.clear()
    assert pool.bring_back(LONG) == 14
    assert pool.bring_back(other) == 10


def test_after_a_restart_pages_come_back_before_any_cost_of_a_token_was_measured() -> None:
    """Nothing is computed where everything is loaded, so that cost may stay unknown for long."""
    pool = TieredPool()
    other = array("i", range(50, 62))
    pool.compute(LONG)
    pool.compute(other)
    pool.tree.clear()
    pool.tier = SecondTier(pool.store, pool.tree, pool.pages, lambda: 0.0, lambda: pool.now)
    assert pool.bring_back(LONG) == 14
    pool.store.costs = PageCosts(0.001, 0.001)  # measured by the first load
    assert pool.bring_back(other) == 12


def test_salts_have_nothing_in_common() -> None:
    pool = TieredPool()
    pool.compute(LONG, "one")
    pool.tree.clear()
    assert pool.bring_back(LONG, "two") == 0
    assert pool.bring_back(LONG, "one") == 14


def test_what_is_private_behind_a_public_prefix_is_not_stored() -> None:
    pool = TieredPool()
    private = array("i", [*LONG[:9], -30_000, 1, 2])
    pool.compute(private)
    pool.tree.clear()
    assert pool.bring_back(private) == 8
    assert pool.tier.num_pages == 2


def test_a_discarded_path_never_comes_back_not_even_after_a_restart() -> None:
    pool = TieredPool()
    pool.compute(LONG)
    pool.tree.clear()
    pool.tier.discard(LONG, "")
    assert pool.bring_back(LONG) == 0
    pool.tier = pool.opened()
    assert pool.bring_back(LONG) == 0


def test_the_pages_before_a_lost_one_come_back_and_the_rest_is_forgotten() -> None:
    pool = TieredPool()
    pool.compute(LONG)
    pool.tree.clear()
    third = next(h for h, one in pool.store.kept.items() if one.key.index == 2)
    pool.store.kept[third].contents = None
    assert pool.bring_back(LONG) == 8
    assert pool.tier.counters.lost == 2
    assert pool.tier.num_pages == 2


def test_a_path_that_was_discarded_while_it_was_loaded_is_dropped() -> None:
    pool = TieredPool()
    pool.compute(LONG)
    pool.tree.clear()
    assert pool.tier.fetch(LONG, "", 14, pool.free) is not None
    pool.tier.discard(LONG, "")
    assert pool.bring_back(LONG) == 0
    assert pool.pages.num_free == 16


def test_nothing_is_loaded_where_others_need_the_pages() -> None:
    pool = TieredPool()
    pool.compute(LONG)
    pool.tree.clear()
    assert pool.tier.fetch(LONG, "", 14, lambda count: False) is None
    assert pool.tier.pages_held() == []
    assert pool.tree.num_evictable == pool.tree.num_cached
    assert pool.tier.fetch(LONG, "", 14, lambda count: count == 4) is not None


def test_the_same_path_is_loaded_once_for_many() -> None:
    pool = TieredPool()
    pool.compute(LONG)
    pool.tree.clear()
    tickets = {pool.tier.fetch(LONG, "", 14, pool.free) for _ in range(5)}
    assert len(tickets) == 1
    assert len(pool.tier.pages_held()) == 4


def test_pages_that_others_computed_meanwhile_are_kept_once() -> None:
    pool = TieredPool()
    pool.compute(LONG)
    pool.tree.clear()
    assert pool.tier.fetch(LONG, "", 14, pool.free) is not None
    pool.compute(LONG)
    assert pool.bring_back(LONG) == 14
    assert pool.tree.num_cached == 4


def test_what_costs_more_to_store_than_to_compute_is_not_stored() -> None:
    pool = TieredPool()
    pool.store.costs = PageCosts(4.0, 0.1)
    pool.compute(LONG)
    pool.tree.clear()
    assert pool.tier.num_pages == 0
    pool.store.costs = PageCosts(3.3, 0.1)  # the last page is half full
    pool.compute(LONG)
    pool.tree.clear()
    assert pool.tier.num_pages == 4


def test_pages_that_never_come_back_are_not_stored_where_storing_costs_something() -> None:
    pool = TieredPool()
    pool.store.costs = PageCosts(1.0, 0.1)
    for number in range(900):
        pool.compute(text(number, 1, 2, 3))
        pool.tree.clear()
    stored = pool.tier.counters.stored
    assert stored < 700
    pool.store.costs = PageCosts(0.01, 0.01)  # cheap enough even so
    pool.compute(text(901, 1, 2, 3))
    pool.tree.clear()
    assert pool.tier.counters.stored == stored + 1


def test_a_load_that_hangs_is_abandoned_and_nothing_is_loaded_until_it_ends() -> None:
    pool = TieredPool()
    pool.compute(LONG)
    pool.tree.clear()
    free = pool.pages.num_free
    ticket = pool.tier.fetch(LONG, "", 14, pool.free)
    assert ticket is not None
    pool.store._pending[0].turns_left = 3
    pool.now = 28.9  # a second and twice 14 for the tokens
    pool.tier.collect()
    assert pool.tier.is_loading(ticket)
    pool.now = 29.1
    pool.tier.collect()
    assert not pool.tier.is_loading(ticket)
    assert (pool.pages.num_free, pool.tier.counters.abandoned) == (free, 4)
    assert pool.tier.fetch(LONG, "", 14, pool.free) is None
    assert pool.tier.cost_of_return() == 1.0, "what does not come back must be computed"
    for _ in range(3):
        pool.tier.collect()
    assert pool.tree.num_cached == 0, "what came too late was dropped"
    assert pool.bring_back(LONG) == 14


def test_costs_are_measured_again_now_and_then() -> None:
    pool = TieredPool()
    pool.store.costs = PageCosts(50.0, 50.0)
    for number in range(64):
        pool.compute(text(number, 1, 2, 3))
        pool.tree.clear()
    assert pool.tier.num_pages == 1


def test_a_full_tier_forgets_what_was_used_longest_ago() -> None:
    pool = TieredPool(num_handles=4)
    for number in range(3):
        pool.compute(text(number, 1, 2, 3, 4, 5, 6, 7))
        pool.tree.clear()
    assert [pool.bring_back(text(number, 1, 2, 3, 4, 5, 6, 7)) for number in range(3)] == [0, 8, 8]


def test_a_path_longer_than_the_tier_keeps_its_beginning() -> None:
    pool = TieredPool(num_handles=2)
    pool.compute(LONG)
    pool.tree.clear()
    assert pool.bring_back(LONG) == 8


def test_a_store_that_refuses_leaves_a_shorter_path(monkeypatch: Patch) -> None:
    pool = TieredPool()
    answers = iter([True, False])
    original = pool.store.store
    monkeypatch.setattr(pool.store, "store", lambda *what: next(answers) and original(*what))
    pool.compute(LONG)
    pool.tree.evict(1)
    assert pool.tier.num_pages == 1


def test_after_a_restart_everything_whole_is_known_and_the_rest_is_not() -> None:
    pool = TieredPool()
    other = array("i", [*LONG[:6], 20, 21, 22, 23])
    for tokens, salt in ((LONG, ""), (other, ""), (LONG, "salt")):
        pool.compute(tokens, salt)
    pool.tree.clear()
    end_of_other = next(h for h, one in pool.store.kept.items() if one.key.tokens[0] == 22)
    del pool.store.kept[end_of_other]
    num_kept = len(pool.store.kept)
    pool.tier = pool.opened()
    assert pool.tier.counters.found == num_kept
    assert pool.bring_back(LONG) == 14
    assert pool.bring_back(LONG, "salt") == 14


def test_pages_without_those_before_them_are_free_after_a_restart() -> None:
    pool = TieredPool()
    pool.compute(LONG)
    pool.tree.clear()
    first = next(h for h, one in pool.store.kept.items() if one.key.index == 0)
    del pool.store.kept[first]
    pool.tier = pool.opened()
    assert pool.tier.num_pages == 0
    pool.tier.check()


def known_pages(*paths: tuple[int, ...]) -> list[KnownPage]:
    """The pages of each path, one page written after the other, on handles in that order."""
    keys = [key for path in paths for key in page_keys(root_of(""), text(*path).tobytes(), PAGE)]
    return [KnownPage(handle, key, age=handle) for handle, key in enumerate(keys)]


def rebuilt(known: list[KnownPage]) -> RadixTree:
    handles = PageAllocator(16)
    index = RadixTree(PAGE, handles)
    rebuild(index, handles, known)
    index.check()
    handles.check(index.pages_held())
    return index


@pytest.mark.parametrize("path", [(1, 2, 3, 4), (1, 2), (1, 2, 3, 4, 5, 6, 7, 8), (1, 2, 3, 4, 5)])
def test_of_pages_stored_twice_the_later_count_after_a_restart(path: tuple[int, ...]) -> None:
    known = known_pages(path, path)
    half = len(known) // 2
    for order in (known, known[::-1]):
        held = rebuilt(order).pages_held()
        assert sorted(held) == [one.handle for one in known[half:]]


def test_what_was_written_first_is_evicted_first_after_a_restart() -> None:
    known = known_pages((1, 2, 3), (4, 5, 6), (7, 8, 9))
    for order in (known, known[::-1]):
        index = rebuilt(order)
        index.evict(1)
        assert sorted(index.pages_held()) == [1, 2]


def test_a_random_life_breaks_no_invariant_and_gives_no_wrong_slot() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        pool = TieredPool(
            num_pages=24, num_handles=rng.choice([3, 10, 40]), faults=rng.choice([0, 0.1])
        )
        for _ in range(60):
            tokens = text(*rng.choices([1, 2], k=rng.randrange(1, 24)))
            match rng.randrange(5):
                case 0:
                    pool.tree.evict(rng.randrange(1, 8))
                case 1:
                    pool.tier.discard(tokens, "")
                case 2:
                    pool.bring_back(tokens, turns=rng.choice([0, 1, 9]))
                case 3 if not pool.tier.pages_held():
                    pool.tier = pool.opened()
                case _ if not pool.tier.pages_held():
                    pool.compute(tokens)
