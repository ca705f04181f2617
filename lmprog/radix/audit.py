"""All invariants of a prefix tree, checked by a walk over the whole of it.

For tests and idle moments: it costs time in proportion to the tree. It changes nothing.
"""

from __future__ import annotations

from lmprog.radix.holds import Holds
from lmprog.radix.node import Node


def audit(page_size: int, holds: Holds) -> int:
    """Raises AssertionError at the first broken invariant; gives the number of nodes, roots not
    counted.
    """
    roots = list(holds.used_roots.values())
    nodes: list[Node] = []
    for salt, root in holds.used_roots.items():
        assert (root.salt, root.parent, root.end, root.pages, root.spare) == (
            salt,
            None,
            0,
            [],
            None,
        )
        assert root.children or root.locks or root.pins, "an empty root was kept"
        assert holds.root(salt) is root
    todo = list(roots)
    while todo:
        node = todo.pop()
        _check_counters(node)
        for token, child in node.children.items():
            assert child.first_token == token, f"{child} is filed under {token}"
            assert (child.parent, child.begin, child.salt) == (node, node.end, node.salt)
            nodes.append(child)
            todo.append(child)
    owed = 0
    for node in nodes:
        _check_pages(node, page_size)
        owed += node.owes
    for node in holds.condemned:
        assert (node.alive, node.owes, node.children) == (False, False, {})
        assert node.locks > 0
    assert owed == holds.num_owed
    pages = pages_of([*nodes, *holds.condemned])
    assert len(pages) == len(set(pages)), "a page is in two nodes"
    assert len(pages) == holds.num_cached, f"{len(pages)} pages held, {holds.num_cached} counted"
    holds.order.check(nodes)
    return len(nodes)


def pages_of(nodes: list[Node]) -> list[int]:
    pages: list[int] = []
    for node in nodes:
        pages += node.pages
        if node.spare is not None:
            pages.append(node.spare)
    return pages


def _check_counters(node: Node) -> None:
    children = node.children.values()
    assert node.alive
    assert node.locks == node.locks_here + sum(child.locks for child in children), (
        f"locks of {node}"
    )
    assert node.pins == node.pins_here + sum(child.pins for child in children), f"pins of {node}"
    assert min(node.locks_here, node.pins_here) >= 0
    assert (node.heir is None) == (not node.children)
    assert node.heir is None or node.children[node.heir.first_token] is node.heir


def _check_pages(node: Node, page_size: int) -> None:
    inside = node.end % page_size > 0
    assert 4 * (node.end - node.begin) == len(node.key) > 0
    last = node.end // page_size + (inside and not node.children)
    assert len(node.pages) == last - node.begin // page_size, f"pages of {node}"
    assert node.spare is None or (inside and node.children and node.locks_here > 0), (
        f"spare page of {node}"
    )
    busy = any(child.locks for child in node.children.values())
    strays = node.locks_here == 0  # without a lock of its own, a locked node has a locked child
    assert not (node.locks and strays) or busy
    owes = node.locks > 0 and not busy and inside and bool(node.children) and node.spare is None
    assert node.owes == owes, f"what {node} owes"
