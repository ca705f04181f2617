"""A bounded look at the tree: complete where there is room, the largest first where there is not;
no use.
"""

from __future__ import annotations

import heapq
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmprog.radix import Node, path, view_tree
from tests.radix.bench import Bench

lives = st.lists(
    st.tuples(
        st.lists(st.integers(0, 3), min_size=1, max_size=12),
        st.sampled_from(["", "a"]),
        st.sampled_from(["add", "lock", "pin", "discard"]),
    ),
    max_size=12,
)


def lived(life: list[tuple[list[int], str, str]]) -> Bench:
    """A tree after a random life, some of its nodes still held, some discarded while held."""
    bench = Bench(num_pages=400)
    for tokens, salt, what in life:
        node = bench.add(*tokens, salt=salt)
        if what in ("lock", "discard"):
            bench.tree.lock(node)
        if what == "pin":
            bench.tree.pin(node)
        if what == "discard":
            bench.tree.discard(node)
    return bench


@given(lives)
def test_with_room_for_all_the_sums_are_the_tree_s_own_counts(
    life: list[tuple[list[int], str, str]],
) -> None:
    tree = lived(life).tree
    seen = view_tree(tree, 1000)
    nodes = list(tree.walk())
    assert {id(node) for node in seen.nodes} == {id(node) for node in nodes}
    assert seen.nodes_left_out == 0
    assert seen.num_tokens == sum(node.end - node.begin for node in nodes)
    assert seen.num_pages + seen.pages_left_out == tree.num_cached == len(tree.pages_held())


@given(lives, st.integers(0, 6))
def test_parents_come_first_and_of_what_can_come_the_largest(
    life: list[tuple[list[int], str, str]], most: int
) -> None:
    tree = lived(life).tree
    seen = view_tree(tree, most)
    assert len(seen.nodes) == min(most, tree.num_nodes)
    assert len(seen.nodes) + seen.nodes_left_out == tree.num_nodes
    for index, (node, parent) in enumerate(zip(seen.nodes, seen.parents, strict=True)):
        assert parent < index
        above = node.parent
        assert above is not None
        assert above is seen.nodes[parent] if parent >= 0 else above.parent is None
    for index, node in enumerate(seen.nodes):
        shown = {id(one) for one in seen.nodes[:index]}
        could_come = [one for one in tree.walk() if id(one) not in shown and is_reached(one, shown)]
        assert node.end - node.begin == max(one.end - one.begin for one in could_come)


def is_reached(node: Node, shown: set[int]) -> bool:
    return node.parent is not None and (node.parent.parent is None or id(node.parent) in shown)


def test_looking_is_no_use(bench: Bench) -> None:
    old, new = bench.add(1, 1, 1, 1), bench.add(2, 2, 2, 2)
    view_tree(bench.tree, 1)
    assert bench.tree.evict(1) == 1
    assert (old.alive, new.alive) == (False, True)


def test_a_node_remembers_the_moment_of_its_last_use(bench: Bench) -> None:
    bench.tree.tick(1.0)
    first = bench.add(1, 2, 3, 4)
    other = bench.add(7, 7, 7, 7)
    bench.tree.tick(5.0)
    longer = bench.add(1, 2, 3, 4, 5, 6, 7, 8)
    assert [node.used for node in path(longer)] == [5.0, 5.0]
    assert (first.used, other.used) == (5.0, 1.0)
    bench.tree.lock(other)
    bench.tree.tick(9.0)
    bench.tree.unlock(other)
    assert other.used == 9.0


def test_a_node_keeps_its_number_when_it_is_split(bench: Bench) -> None:
    whole, other = bench.add(1, 2, 3, 4), bench.add(9)
    assert (whole.number, other.number) == (1, 2)
    bench.add(1, 2, 7)
    assert [
        (node.number, list(node.tokens))
        for node in sorted(bench.tree.walk(), key=lambda node: node.number)
    ] == [
        (1, [1, 2]),
        (2, [9]),
        (3, [3, 4]),
        (4, [7]),
    ]


def test_the_work_is_bounded_however_many_children_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(num_pages=3000, page_size=1)
    for token in range(2000):
        bench.add(token)
    pushed = itertools.count()
    push = heapq.heappush
    monkeypatch.setattr(heapq, "heappush", lambda *given: (next(pushed), push(*given)))
    seen = view_tree(bench.tree, 10)
    assert (len(seen.nodes), seen.nodes_left_out) == (10, 1990)
    assert next(pushed) == 140
