"""What is forgotten first: the order in which unlocked nodes are evicted.

Two queues, least recently used first: nodes that nobody pinned, then the pinned ones. Both hold
*all* unlocked nodes, not the leaves only. Whenever a path is used it is renewed from its lower end
upwards, so a node is always behind its own descendants in its queue, and the head of the queue is a
leaf: the next to go is found without a search, and a parent whose last child went stands where its
own last use put it. It knows no time, no tokens and no page numbers; it counts pages.
"""

from __future__ import annotations

from collections.abc import Iterator

from lmprog.radix.node import Node


class EvictionOrder:
    """The unlocked nodes of a tree. A node is removed before its pins change between none and some,
    and added after.

    The queues run through the nodes themselves (`older`, `newer`): no table is touched, which
    matters when a tree is far larger than the processor's cache.
    """

    def __init__(self) -> None:
        self._plain = _queue()
        self._pinned = _queue()
        self.num_pages = 0  # of all nodes here
        self.num_pinned = 0  # of the pinned ones
        self.now = 0.0  # what a use is marked with; the order goes by turns and never reads it

    def add(self, node: Node) -> None:
        """`node` is unlocked, and used just now."""
        count = len(node.pages)
        node.used = self.now
        self.num_pages += count
        if node.pins:
            self.num_pinned += count
            _append(self._pinned, node)
        else:
            _append(self._plain, node)

    def remove(self, node: Node) -> None:
        count = len(node.pages)
        self.num_pages -= count
        if node.pins:
            self.num_pinned -= count
        older, newer = node.older, node.newer
        older.newer, newer.older = newer, older
        del node.older, node.newer

    def resized(self, node: Node, by: int) -> None:
        """`node`, which is here, owns `by` pages more than before."""
        self.num_pages += by
        if node.pins:
            self.num_pinned += by

    def renew(self, node: Node) -> None:
        """The path from the root to `node` was used just now. Locked nodes and the root are not
        here and stay out.
        """
        plain, pinned, now = self._plain, self._pinned, self.now
        while (parent := node.parent) is not None:
            if not node.locks:
                older, newer = node.older, node.newer
                older.newer, newer.older = newer, older
                node.used = now
                _append(pinned if node.pins else plain, node)
            node = parent

    def oldest(self) -> Node | None:
        """The leaf to evict next, which stays here until removed; None when every node is
        locked.
        """
        for end in (self._plain, self._pinned):
            if end.newer is not end:
                return end.newer
        return None

    def check(self, nodes: list[Node]) -> None:
        """`nodes` are all nodes of the tree, roots left out."""
        pinned = {node for node in nodes if node.pins and not node.locks}
        plain = {node for node in nodes if not node.pins and not node.locks}
        assert self.num_pinned == sum(len(node.pages) for node in pinned)
        assert self.num_pages == self.num_pinned + sum(len(node.pages) for node in plain)
        for end, expected in ((self._plain, plain), (self._pinned, pinned)):
            seen: set[Node] = set()
            for node in _oldest_first(end):
                assert node.parent not in seen, f"{node} would be evicted after its parent"
                assert node.newer.older is node
                seen.add(node)
            assert seen == expected, "the queues hold the unlocked nodes"


def _queue() -> Node:
    """An empty queue: a ring of one node that stands for both its ends. The oldest is its
    `newer`.
    """
    end = Node(None, "", 0, b"", [])
    end.older = end.newer = end
    return end


def _append(end: Node, node: Node) -> None:
    newest = end.older
    node.older, node.newer = newest, end
    newest.newer = end.older = node


def _oldest_first(end: Node) -> Iterator[Node]:
    node = end.newer
    while node is not end:
        yield node
        node = node.newer
