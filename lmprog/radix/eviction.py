"""The order in which unlocked nodes are evicted: two LRU queues, unpinned nodes before pinned ones.

The queues hold *all* unlocked nodes, not only leaves. When a path is used, its nodes are touched
from the lower end upwards. So a node is always behind its descendants in its queue, the head of a
queue is always a leaf, and the next victim is found without a search. Knows no time, no tokens and
no page numbers; it counts pages.
"""

from __future__ import annotations

from collections.abc import Iterator

from lmprog.radix.node import Node


class EvictionOrder:
    """The unlocked nodes of a tree. Callers must remove a node before its pins change between none
    and some, and add it again afterwards.

    The queues are linked through the nodes themselves (`older`, `newer`), which matters when a tree
    is far larger than the processor's cache.
    """

    def __init__(self) -> None:
        self._plain = _queue()
        self._pinned = _queue()
        self.num_pages = 0  # of all nodes here
        self.num_pinned = 0  # of the pinned ones
        self.now = 0.0  # written to `Node.used`; the order itself never reads it

    def add(self, node: Node) -> None:
        """`node` is unlocked, and was used just now."""
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
        """`node`, which is queued, owns `by` pages more than before."""
        self.num_pages += by
        if node.pins:
            self.num_pinned += by

    def touch(self, node: Node) -> None:
        """The path from the root to `node` was used just now. Locked nodes and roots are not
        queued.
        """
        plain, pinned, now = self._plain, self._pinned, self.now
        while (parent := node.parent) is not None:
            if not node.locks:
                older, newer = node.older, node.newer
                older.newer, newer.older = newer, older
                node.used = now
                _append(pinned if node.pins else plain, node)
            node = parent

    def next_victim(self) -> Node | None:
        """The leaf to evict next; it stays queued. None when every node is locked."""
        for end in (self._plain, self._pinned):
            if end.newer is not end:
                return end.newer
        return None

    def oldest_first(self) -> Iterator[Node]:
        """All nodes as they will be evicted; the order must not change meanwhile."""
        yield from _oldest_first(self._plain)
        yield from _oldest_first(self._pinned)

    def newest_first(self) -> Iterator[Node]:
        """All nodes, pinned ones before the others; the order must not change meanwhile."""
        for end in (self._pinned, self._plain):
            node = end.older
            while node is not end:
                yield node
                node = node.older

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
    """An empty queue: a ring of one sentinel node. The least recently used is its `newer`."""
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
