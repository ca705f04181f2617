"""What is forgotten first: the order in which unlocked nodes are evicted.

Two queues, least recently used first: nodes that nobody pinned, then the pinned ones. Both hold *all* unlocked nodes,
not the leaves only. Whenever a path is used it is renewed from its lower end upwards, so a node is always behind its
own descendants in its queue, and the head of the queue is a leaf: the next to go is found without a search, and a
parent whose last child went stands where its own last use put it. It knows no time, no tokens and no page numbers; it
counts pages.
"""

from __future__ import annotations

from collections import OrderedDict

from lmprog.radix.node import Node


class EvictionOrder:
    """The unlocked nodes of a tree. A node is removed before its pins change between none and some, and added after."""

    def __init__(self) -> None:
        self._plain: OrderedDict[Node, None] = OrderedDict()
        self._pinned: OrderedDict[Node, None] = OrderedDict()
        self.num_pages = 0  # of all nodes here
        self.num_pinned = 0  # of the pinned ones

    def add(self, node: Node) -> None:
        """`node` is unlocked, and used just now."""
        self.resized(node, len(node.pages))
        (self._pinned if node.pins else self._plain)[node] = None

    def remove(self, node: Node) -> None:
        self.resized(node, -len(node.pages))
        del (self._pinned if node.pins else self._plain)[node]

    def resized(self, node: Node, by: int) -> None:
        """`node`, which is here, owns `by` pages more than before."""
        self.num_pages += by
        if node.pins:
            self.num_pinned += by

    def renew(self, node: Node) -> None:
        """The path from the root to `node` was used just now. Locked nodes and the root are not here and stay out."""
        to_end, pinned_to_end = self._plain.move_to_end, self._pinned.move_to_end
        parent = node.parent
        while parent is not None:
            if not node.locks:
                if node.pins:
                    pinned_to_end(node)
                else:
                    to_end(node)
            node, parent = parent, parent.parent

    def oldest(self) -> Node | None:
        """The leaf to evict next, which stays here until removed; None when every node is locked."""
        for queue in (self._plain, self._pinned):
            if queue:
                return next(iter(queue))
        return None

    def check(self, nodes: list[Node]) -> None:
        """`nodes` are all nodes of the tree, roots left out."""
        pinned = {node for node in nodes if node.pins and not node.locks}
        plain = {node for node in nodes if not node.pins and not node.locks}
        assert set(self._pinned) == pinned, "the queue of the pinned nodes"
        assert set(self._plain) == plain, "the queue of the nodes without pins"
        assert self.num_pinned == sum(len(node.pages) for node in pinned)
        assert self.num_pages == self.num_pinned + sum(len(node.pages) for node in plain)
        for queue in (self._plain, self._pinned):
            seen: set[Node] = set()
            for node in queue:
                assert node.parent not in seen, f"{node} would be evicted after its parent"
                seen.add(node)
