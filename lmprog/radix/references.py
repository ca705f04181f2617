"""Locks and pins: reference counts along paths, and what they mean for the pages of a tree.

Keeps the counters, the eviction order, the roots in use, and the number of pages of the tree. Does
not know the tokens of a node, and never changes the shape of the tree.

A lock or pin is counted at its node (`locks_here`) and along the whole path to the root (`locks`).
A node that leaves the tree passes its own counts to its parent (`unlink`). Its `parent` still leads
to what is left of the path, so every lock and pin can be given back.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakValueDictionary

from lmprog.radix.eviction import EvictionOrder
from lmprog.radix.node import Node
from lmprog.radix.pages import PageAllocator
from lmprog.radix.tree_watcher import TreeWatcher


class References:
    """All counters of a tree, its eviction order and the roots in use."""

    def __init__(self, page_size: int, pages: PageAllocator) -> None:
        self._page_size = page_size
        self._pages = pages
        self.order = EvictionOrder()
        # roots that have children, locks or pins; then all, the unused ones that a caller keeps too
        self.used_roots: dict[str, Node] = {}
        self._roots: WeakValueDictionary[str, Node] = WeakValueDictionary()
        # removed while locked: their pages are freed with the last lock
        self.discarded: set[Node] = set()
        self.num_cached = 0
        self.num_reserved = 0  # nodes with `reserves_page`
        self.watcher: TreeWatcher | None = None

    def root(self, salt: str) -> Node:
        root = self.used_roots.get(salt)
        if root is None:
            root = self._roots.get(salt)
            if root is None:
                root = self._roots[salt] = Node(None, salt, 0, b"", [])
        return root

    def drop_if_unused(self, root: Node) -> None:
        """Forget `root` if it has no children, locks or pins."""
        if not (root.children or root.locks or root.pins):
            self.used_roots.pop(root.salt, None)

    def adopt(self, pages: Sequence[int]) -> None:
        """The tree owns `pages` from now on."""
        self.num_cached += len(pages)

    def free(self, pages: Sequence[int]) -> None:
        """Return pages of the tree to the allocator."""
        self.num_cached -= len(pages)
        self._pages.free(pages)

    # -- locks

    def lock(self, node: Node) -> None:
        assert node.alive, f"{node} is no longer in the tree"
        node.locks_here += 1
        remove = self.order.remove
        walk = node
        while (parent := walk.parent) is not None:
            if not walk.locks:
                remove(walk)
            walk.locks += 1
            if walk.reserves_page or walk is node:
                self.update_reserve(walk)
            walk = parent
        walk.locks += 1
        self.used_roots[walk.salt] = walk

    def unlock(self, node: Node) -> None:
        assert node.locks_here > 0, f"{node} was not locked"
        self._drop_lock_at(node)
        walk = node
        while (parent := walk.parent) is not None:
            walk.locks -= 1
            if not walk.locks:
                self._unlocked(walk)
            if walk.locks == walk.locks_here:
                self.update_reserve(walk)
            if parent.alive and not walk.alive:
                self._drop_lock_at(parent)
            walk = parent
        walk.locks -= 1
        self.drop_if_unused(walk)

    def _drop_lock_at(self, node: Node) -> None:
        """Remove one lock at `node` itself; the caller updates the counts along the path."""
        node.locks_here -= 1
        if node.end_page is not None and not node.locks_here:
            page, node.end_page = node.end_page, None
            self.free([page])

    def _unlocked(self, node: Node) -> None:
        """The last lock at or below `node` is gone."""
        if node.alive:
            self.order.add(node)
            return
        self.discarded.discard(node)
        self.free(node.pages if node.end_page is None else [*node.pages, node.end_page])
        node.pages, node.end_page = [], None

    # -- pins

    def pin(self, node: Node) -> None:
        target = self._nearest_alive(node)
        target.pins_here += 1
        root = self._count_pins(target, 1)
        self.used_roots[root.salt] = root
        self.order.touch(target)

    def unpin(self, node: Node) -> None:
        target = self._nearest_alive(node)
        assert target.pins_here > 0, f"{node} was not pinned"
        target.pins_here -= 1
        self.drop_if_unused(self._count_pins(target, -1))

    def _nearest_alive(self, node: Node) -> Node:
        """`node`, or what is left of its path."""
        while not node.alive:
            assert node.parent is not None
            node = node.parent
        return node

    def _count_pins(self, node: Node, by: int) -> Node:
        """Add `by` to the pins of the path to `node`; returns its root. Nodes that change queues
        count as used now.
        """
        order = self.order
        while (parent := node.parent) is not None:
            changes = not node.locks and (not node.pins or not node.pins + by)
            if changes:
                order.remove(node)
            node.pins += by
            if changes:
                order.add(node)
            node = parent
        node.pins += by
        return node

    # -- nodes that change or go

    def update_reserve(self, node: Node) -> None:
        """Recompute `node.reserves_page`, after any change to its counts, end, children or end
        page.

        A locked node that ends inside a page, has no page for its end, and has no locked child must
        keep one page of its last child when that is evicted. So one page fewer below it can be
        freed.
        """
        reserves_page = (
            node.locks > 0
            and node.locks == node.locks_here
            and node.end % self._page_size > 0
            and len(node.children) > 0
            and node.end_page is None
            and node.alive
        )
        if reserves_page != node.reserves_page:
            node.reserves_page = reserves_page
            self.num_reserved += 1 if reserves_page else -1

    def unlink(self, node: Node) -> Node:
        """Cut `node` from its parent, which takes over its counts. Returns the parent, whose
        reserve the caller must update.
        """
        parent = node.parent
        assert parent is not None, "a root cannot be taken out"
        del parent.children[node.first_token]
        if parent.tail_child is node:
            parent.tail_child = next(reversed(parent.children.values()), None)
        parent.locks_here += node.locks
        parent.pins_here += node.pins
        return parent

    def discard(self, node: Node) -> None:
        """`node`, unlinked by itself or with its ancestor, is no longer alive. Its pages are freed,
        or kept until its last lock is given back.
        """
        if node.locks:
            self.discarded.add(node)
        else:
            self.order.remove(node)
            self.free(node.pages)
            node.pages = []
        node.alive = False
        if self.watcher is not None:
            self.watcher.removed(node)
        node.pins = node.pins_here = 0
        node.children = {}
        node.tail_child = None
        self.update_reserve(node)
