"""What is stored ahead of its eviction: a burst of evictions finds it in a tier that takes little at
a time; and it costs little where that is of no use.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from typing import Any

import pytest

from lmprog.radix import Node
from lmprog.runtime.tier import storing
from lmprog.runtime.tier.page_store import PageKey, root_of
from lmprog.simulation.fake_engine import FakeStore
from tests.tier.tiered_pool import TieredPool, text

Patch = pytest.MonkeyPatch
PATHS = [text(*range(start, start + 8)) for start in range(100, 900, 100)]  # two pages each


def filled(most_staged: int | None = None, num_handles: int = 64) -> TieredPool:
    """A full pool of eight paths; its store takes so many pages between two steps."""
    pool = TieredPool(num_pages=16, num_handles=num_handles)
    pool.store.most_staged = most_staged
    for tokens in PATHS:
        pool.compute(tokens)
    return pool


def step(pool: TieredPool, ahead: int = 16, seconds: float = 1.0) -> None:
    """What a step does for the tier: what has come is collected, and evictions are thought of."""
    pool.tier.collect()
    pool.tier.storing.save_ahead(ahead)
    pool.tier.storing.begin(seconds)
    pool.check()


def counted(pool: TieredPool, monkeypatch: Patch) -> list[PageKey]:
    """The pages that the store is asked to take from now on, in that order."""
    asked: list[PageKey] = []
    original = pool.store.store

    def store(handle: int, page: int, key: PageKey, wait: float = 0.0) -> bool:
        asked.append(key)
        return original(handle, page, key, wait)

    monkeypatch.setattr(pool.store, "store", store)
    return asked


def test_a_burst_of_evictions_beyond_what_the_store_takes_is_lost_without_storing_ahead() -> None:
    pool = filled(most_staged=3)
    pool.tree.clear()
    assert pool.tier.counters.stored == 3
    assert pool.tier.counters.refused == 13


def test_a_burst_finds_what_was_stored_ahead_some_pages_in_each_step() -> None:
    pool = filled(most_staged=3)
    for _ in range(6):
        step(pool)
    counters = pool.tier.counters
    assert (counters.stored, counters.stored_ahead, counters.refused) == (16, 16, 0)
    pool.tree.clear()
    assert (counters.stored, counters.refused) == (16, 0)
    assert [pool.bring_back(tokens) for tokens in PATHS] == [8] * 8


def test_what_is_evicted_next_is_stored_first_and_no_more_than_is_asked_for() -> None:
    pool = filled()
    pool.tree.match(PATHS[0])  # used last
    step(pool, ahead=6)
    pool.tree.evict(6)
    assert pool.tier.counters.stored == 6
    assert [pool.bring_back(tokens) for tokens in PATHS[1:4]] == [8, 8, 8]


def test_pinned_paths_are_stored_after_those_that_nobody_stands_on() -> None:
    pool = filled()
    pool.tree.pin(pool.tree.match(PATHS[0]).node)
    step(pool, ahead=14)
    assert pool.tier.index.match(PATHS[0], root_of("").hex()).length == 0
    step(pool, ahead=16)
    assert pool.tier.counters.stored_ahead == 16


def test_a_step_looks_at_no_more_nodes_than_the_pages_that_are_asked_for(
    monkeypatch: Patch,
) -> None:
    pool = filled()
    step(pool)
    seen: list[Node] = []
    order = pool.tree.oldest_first

    def oldest_first() -> Iterator[Node]:
        for node in order():
            seen.append(node)
            yield node

    monkeypatch.setattr(pool.tree, "oldest_first", oldest_first)
    step(pool, ahead=4)
    assert len(seen) == 2
    step(pool, ahead=0)
    assert len(seen) == 2


def test_nothing_is_stored_ahead_where_no_eviction_ever_finds_the_store_full(
    monkeypatch: Patch,
) -> None:
    monkeypatch.setattr(storing, "AHEAD_STEPS", 3)
    pool = TieredPool(num_pages=16)
    for _ in range(3):
        step(pool)
    for tokens in PATHS:
        pool.compute(tokens)
    step(pool)
    assert pool.tier.counters.stored == 0
    pool.store.most_staged = 3
    pool.tree.evict(4)
    assert pool.tier.counters.refused == 1
    step(pool)
    assert pool.tier.counters.stored_ahead == 3


def test_storing_ahead_ends_when_its_part_of_the_step_is_over(monkeypatch: Patch) -> None:
    pool = filled()
    step(pool, ahead=0, seconds=10.0)
    original = pool.store.store

    def store(*what: Any) -> bool:
        pool.now += 0.5 * storing.AHEAD_PART * 10.0
        return original(*what)

    monkeypatch.setattr(pool.store, "store", store)
    pool.tier.storing.save_ahead(16)
    assert pool.tier.counters.stored_ahead == 3


def test_evictions_wait_for_room_for_a_part_of_a_step_and_not_longer(monkeypatch: Patch) -> None:
    pool = filled(most_staged=0)
    step(pool, ahead=0, seconds=10.0)
    original = pool.store.store

    def store(handle: int, page: int, key: PageKey, wait: float = 0.0) -> bool:
        assert wait <= storing.WAITED_PART * 10.0
        if wait:
            pool.now += 0.4  # a page is written in that time
            pool.store.most_staged = pool.store._num_staged + 1
        return original(handle, page, key, wait)

    monkeypatch.setattr(pool.store, "store", store)
    pool.tree.clear()
    assert (pool.tier.counters.stored, pool.tier.counters.refused) == (3, 13)
    pool.check()


def test_what_short_steps_did_not_wait_is_left_for_a_long_one_up_to_a_bound(
    monkeypatch: Patch,
) -> None:
    pool = filled(most_staged=0)
    waits: list[float] = []
    original = pool.store.store

    def store(handle: int, page: int, key: PageKey, wait: float = 0.0) -> bool:
        waits.append(wait)
        return original(handle, page, key, wait)

    monkeypatch.setattr(pool.store, "store", store)
    step(pool, ahead=0, seconds=0.01)
    pool.tree.evict(2)
    assert max(waits) == pytest.approx(storing.WAITED_PART * 0.01)
    for _ in range(99):
        step(pool, ahead=0, seconds=0.01)
    pool.tree.evict(2)
    assert max(waits) == pytest.approx(storing.SAVED_WAIT)


@pytest.mark.parametrize("nth", range(1, 17))
def test_after_the_nth_page_was_refused_it_is_stored_in_the_next_step(
    nth: int, monkeypatch: Patch
) -> None:
    pool = filled()
    calls, original = 0, FakeStore.store

    def store(self: FakeStore, *what: Any) -> bool:
        nonlocal calls
        calls += 1
        return calls != nth and original(self, *what)

    monkeypatch.setattr(FakeStore, "store", store)
    step(pool)
    assert pool.tier.counters.stored_ahead == nth - 1
    step(pool)
    assert pool.tier.counters.stored_ahead == 16
    pool.tree.clear()
    assert [pool.bring_back(tokens) for tokens in PATHS] == [8] * 8


def test_of_a_page_that_was_torn_nothing_wrong_comes_back() -> None:
    pool = filled()
    step(pool)
    torn = next(h for h, one in pool.store.kept.items() if one.key.tokens == PATHS[2][4:].tobytes())
    pool.store.kept[torn].contents = None
    pool.tree.clear()
    assert [pool.bring_back(tokens) for tokens in PATHS[:4]] == [8, 8, 4, 8]


def test_a_path_that_went_on_since_it_was_stored_ahead_is_stored_again_from_there(
    monkeypatch: Patch,
) -> None:
    pool = TieredPool()
    pool.compute(PATHS[0])
    step(pool)
    longer = array("i", [*PATHS[0], 1, 2, 3, 4])
    pool.compute(longer)
    asked = counted(pool, monkeypatch)
    step(pool)
    assert [one.index for one in asked] == [2]
    pool.tree.clear()
    assert pool.bring_back(longer) == 12


def test_a_random_life_with_a_slow_tier_breaks_no_invariant_and_gives_no_wrong_slot() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        pool = TieredPool(24, rng.choice([3, 10, 40]), rng.choice([0, 0.1]))
        pool.store.most_staged = rng.choice([0, 1, 3, None])
        for _ in range(60):
            tokens = text(*rng.choices([1, 2], k=rng.randrange(1, 24)))
            match rng.randrange(5):
                case 0:
                    pool.tree.evict(rng.randrange(1, 8))
                case 1:
                    step(pool, rng.randrange(30), rng.random())
                case 2:
                    pool.bring_back(tokens, turns=rng.choice([0, 1, 9]))
                case 3 if not pool.tier.pages_held():
                    pool.tier = pool.opened()
                case _ if not pool.tier.pages_held():
                    pool.compute(tokens)
