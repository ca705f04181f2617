"""Who stands where: locks, pins, and what they mean for the pages of a tree.

It keeps the counters along the paths, the queues of what may be evicted, the roots that are in use,
and the count of the tree's pages. It does not know what tokens are in a node, and never changes the
shape of the tree.

A lock or pin is counted at its node (`locks_here`) and along the whole path to the root (`locks`).
A node that leaves the tree hands its own holds up (`unlink`): its `parent` leads on to what is
left, so every hold can be given back.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakValueDictionary

from lmprog.radix.eviction import EvictionOrder
from lmprog.radix.node import Node
from lmprog.radix.pages import PageAllocator


class Holds:
    def __init__(self, page_size: int, pages: PageAllocator) -> None:
        self._page_size = page_size
        self._pages = pages
        self.order = EvictionOrder()
        self.used_roots: dict[str, Node] = {}  # those that have children, locks or pins
        self._roots: WeakValueDictionary[str, Node] = (
            WeakValueDictionary()
        )  # and the bare ones that a caller still has
        self.condemned: set[Node] = (
            set()
        )  # taken out of the tree while locked: pages go back with the last lock
        self.num_cached = 0
        self.num_owed = 0  # nodes with `owes`

    def root(self, salt: str) -> Node:
        root = self.used_roots.get(salt)
        if root is None:
            root = self._roots.get(salt)
            if root is None:
                root = self._roots[salt] = Node(None, salt, 0, b"", [])
        return root

    def retire(self, root: Node) -> None:
        """Forget `root` if nothing hangs on it."""
        if not (root.children or root.locks or root.pins):
            self.used_roots.pop(root.salt, None)

    def take_over(self, pages: Sequence[int]) -> None:
        """`pages` are the tree's from now on."""
        self.num_cached += len(pages)

    def give(self, pages: Sequence[int]) -> None:
        """Pages of the tree go back to the allocator."""
        self.num_cached -= len(pages)
        self._pages.give(pages)

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
            if walk.owes or walk is node:
                self.reckon(walk)
            walk = parent
        walk.locks += 1
        self.used_roots[walk.salt] = walk

    def unlock(self, node: Node) -> None:
        assert node.locks_here > 0, f"{node} was not locked"
        self._leave(node)
        walk = node
        while (parent := walk.parent) is not None:
            walk.locks -= 1
            if not walk.locks:
                self._let_go(walk)
            if walk.locks == walk.locks_here:
                self.reckon(walk)
            if parent.alive and not walk.alive:
                self._leave(parent)
            walk = parent
        walk.locks -= 1
        self.retire(walk)

    def _leave(self, node: Node) -> None:
        """One lock less at `node` itself; the counts along the path are the caller's to mend."""
        node.locks_here -= 1
        if node.spare is not None and not node.locks_here:
            page, node.spare = node.spare, None
            self.give([page])

    def _let_go(self, node: Node) -> None:
        """The last lock at or below `node` is gone."""
        if node.alive:
            self.order.add(node)
            return
        self.condemned.discard(node)
        self.give(node.pages if node.spare is None else [*node.pages, node.spare])
        node.pages, node.spare = [], None

    # -- pins

    def pin(self, node: Node) -> None:
        standing = self._living(node)
        standing.pins_here += 1
        root = self._count_pins(standing, 1)
        self.used_roots[root.salt] = root
        self.order.renew(standing)

    def unpin(self, node: Node) -> None:
        standing = self._living(node)
        assert standing.pins_here > 0, f"{node} was not pinned"
        standing.pins_here -= 1
        self.retire(self._count_pins(standing, -1))

    def _living(self, node: Node) -> Node:
        """`node`, or what is left of its path."""
        while not node.alive:
            assert node.parent is not None
            node = node.parent
        return node

    def _count_pins(self, node: Node, by: int) -> Node:
        """Add `by` to the pins of the path to `node`; gives its root. Nodes between the queues
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

    def reckon(self, node: Node) -> None:
        """Does `node` owe a page? Call this after any change to its holds, its end, its children or
        its spare page.

        A locked node that ends inside a page, keeps no page for its end, and has no locked child
        must keep one page of its last child when that is evicted. So of the pages below it, one
        less can be freed.
        """
        owes = (
            node.locks > 0
            and node.locks == node.locks_here
            and node.end % self._page_size > 0
            and len(node.children) > 0
            and node.spare is None
            and node.alive
        )
        if owes != node.owes:
            node.owes = owes
            self.num_owed += 1 if owes else -1

    def unlink(self, node: Node) -> Node:
        """Cut `node` from its parent, which answers for its holds from now on; gives the parent, to
        be reckoned.
        """
        parent = node.parent
        assert parent is not None, "a root cannot be taken out"
        del parent.children[node.first_token]
        if parent.heir is node:
            parent.heir = next(reversed(parent.children.values()), None)
        parent.locks_here += node.locks
        parent.pins_here += node.pins
        return parent

    def bury(self, node: Node) -> None:
        """`node`, cut off by itself or with what is above it, is dead. Its pages go back unless it
        is locked.
        """
        if node.locks:
            self.condemned.add(node)
        else:
            self.order.remove(node)
            self.give(node.pages)
            node.pages = []
        node.alive = False
        node.pins = node.pins_here = 0
        node.children = {}
        node.heir = None
        self.reckon(node)
