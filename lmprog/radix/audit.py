"""Checks a prefix tree: all its invariants by a walk over it, in time proportional to its size, or
those of single nodes, a few nodes at a time.
"""

from __future__ import annotations

from lmprog.radix.node import Node
from lmprog.radix.references import References

MOST_CHILDREN = 512
"""Of nodes with more children a partial audit checks only the place in the tree."""
_CHILDREN_PER_NODE = 16
"""Children of a node that take as long to look at as a node."""


class PartialAudit:
    """Walks over a tree again and again, a few nodes at a time. The tree may change meanwhile: a
    node that comes behind the walk is checked in the next round.
    """

    def __init__(self, page_size: int, refs: References) -> None:
        self._page_size = page_size
        self._refs = refs
        self._todo: list[Node] = []
        self._is_under_way = False

    def go_on(self, num_nodes: int) -> bool:
        """Checks about so many nodes; whether the round is over. Raises AssertionError at a broken
        node, and goes on behind it the next time.
        """
        todo = self._todo
        if not self._is_under_way:
            self._is_under_way = True
            todo += self._refs.used_roots.values()
        while todo and num_nodes > 0:
            node = todo.pop()
            num_nodes -= 1 + len(node.children) // _CHILDREN_PER_NODE
            if node.alive:  # else it was removed since
                todo += node.children.values()
                self._check(node)
        self._is_under_way = bool(todo)
        return not todo

    def _check(self, node: Node) -> None:
        parent = node.parent
        if parent is not None:
            assert parent.children.get(node.first_token) is node, f"{node} is not in its place"
            assert (node.begin, node.salt) == (parent.end, parent.salt), f"place of {node}"
        if len(node.children) <= MOST_CHILDREN:
            check_counters(node)
            if parent is not None:
                check_pages(node, self._page_size)


def audit(page_size: int, refs: References) -> int:
    """Raises AssertionError at the first broken invariant; returns the number of nodes, without
    roots.
    """
    roots = list(refs.used_roots.values())
    nodes: list[Node] = []
    for salt, root in refs.used_roots.items():
        assert (root.salt, root.parent, root.end, root.pages, root.end_page) == (
            salt,
            None,
            0,
            [],
            None,
        )
        assert root.children or root.locks or root.pins, "an empty root was kept"
        assert refs.root(salt) is root
    todo = list(roots)
    while todo:
        node = todo.pop()
        check_counters(node)
        for token, child in node.children.items():
            assert child.first_token == token, f"{child} is stored under {token}"
            assert (child.parent, child.begin, child.salt) == (node, node.end, node.salt)
            nodes.append(child)
            todo.append(child)
    owed = 0
    for node in nodes:
        check_pages(node, page_size)
        owed += node.reserves_page
    for node in refs.discarded:
        assert (node.alive, node.reserves_page, node.children) == (False, False, {})
        assert node.locks > 0
    assert owed == refs.num_reserved
    pages = pages_of([*nodes, *refs.discarded])
    assert len(pages) == len(set(pages)), "a page is in two nodes"
    assert len(pages) == refs.num_cached, f"{len(pages)} pages held, {refs.num_cached} counted"
    refs.order.check(nodes)
    return len(nodes)


def pages_of(nodes: list[Node]) -> list[int]:
    pages: list[int] = []
    for node in nodes:
        pages += node.pages
        if node.end_page is not None:
            pages.append(node.end_page)
    return pages


def check_counters(node: Node) -> None:
    """Locks, pins and children of one node."""
    locks, pins, tail_child = node.locks_here, node.pins_here, node.tail_child
    assert node.alive
    assert locks >= 0
    assert pins >= 0
    for child in node.children.values():
        locks += child.locks
        pins += child.pins
    assert node.locks == locks, f"locks of {node}"
    assert node.pins == pins, f"pins of {node}"
    assert (tail_child is None) == (not node.children)
    assert tail_child is None or node.children[tail_child.first_token] is tail_child


def check_pages(node: Node, page_size: int) -> None:
    """The pages of one node that is not a root."""
    inside = node.end % page_size > 0
    assert 4 * (node.end - node.begin) == len(node.key) > 0
    last = node.end // page_size + (inside and not node.children)
    assert len(node.pages) == last - node.begin // page_size, f"pages of {node}"
    assert node.end_page is None or (inside and node.children and node.locks_here > 0), (
        f"end_page page of {node}"
    )
    if not node.children or not node.locks:
        assert not node.reserves_page, f"page reserve of {node}"
        assert not node.locks or node.locks_here, f"locks of {node}"
        return
    busy = any(child.locks for child in node.children.values())
    assert node.locks_here or busy, f"without a lock of its own, a child of {node} has it"
    reserves_page = not busy and inside and node.end_page is None
    assert node.reserves_page == reserves_page, f"page reserve of {node}"
