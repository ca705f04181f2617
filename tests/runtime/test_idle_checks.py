"""A large tree is checked in idle turns, a few nodes in each."""

from __future__ import annotations

from array import array

import pytest

from lmprog.radix import audit
from lmprog.radix.node import Node
from lmprog.runtime.loop import MAX_CHECKED_NODES
from tests.runtime.talk import Talk

NUM_PATHS = 300


def large() -> Talk:
    talk = Talk(num_pages=4_096)
    for first in range(NUM_PATHS):
        for last in range(2):
            tokens = array("i", [first, 1, 2, 3, last, 5, 6, 7])
            pages = talk.scheduler.pages.allocate(2)
            assert pages is not None
            inserted = talk.scheduler.tree.insert(tokens, pages)
            talk.scheduler.pages.free(pages[: inserted.first_taken])
    talk.scheduler.check()
    talk.scheduler.stats.steps += 1
    return talk


def test_each_idle_turn_checks_few_nodes_until_all_are_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    talk, seen = large(), list[Node]()
    check = audit.check_pages
    monkeypatch.setattr(
        audit, "check_pages", lambda node, size: (seen.append(node), check(node, size))
    )
    turns = 0
    while talk.loop._checked_at != talk.scheduler.stats.steps:
        before = len(seen)
        talk.loop.step()
        turns += 1
        assert len(seen) - before <= MAX_CHECKED_NODES
    assert {*seen} == {*talk.scheduler.tree.walk()}
    assert len(seen) == talk.scheduler.tree.num_nodes > 2 * NUM_PATHS
    talk.loop.step()
    assert len(seen) == talk.scheduler.tree.num_nodes, "and then not again"


@pytest.mark.parametrize("number", [0, 1, 2, 100, 500, 800])
def test_a_fault_in_a_large_tree_is_found_once_and_the_runtime_goes_on(number: int) -> None:
    talk = large()
    node = [*talk.scheduler.tree.walk()][number]
    node.pins += 1
    for _ in range(2 * talk.scheduler.tree.num_nodes // MAX_CHECKED_NODES + 4):
        talk.loop.step()
    # a leaf's own counter and its parent's sum are both wrong
    assert 1 <= talk.scheduler.stats.invariant_failures <= 2
    assert talk.loop._checked_at == talk.scheduler.stats.steps


def test_nodes_that_are_evicted_during_the_walk_are_no_fault() -> None:
    talk = large()
    for _ in range(60):
        talk.loop.step()
        talk.scheduler.tree.evict(17)
    assert talk.scheduler.stats.invariant_failures == 0
