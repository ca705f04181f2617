"""Who holds the pages of a tree: locks and pins as reference counts along paths, and the pages that
nobody holds.

Keeps the counters, the roots in use, and the number of pages of the tree; `eviction` has the order
in which unlocked nodes go. Does not know the tokens of a node, and never changes the shape of the
tree.

A lock or pin is counted at its node (`locks_here`) and along the whole path to the root (`locks`).
A node that leaves the tree passes its own counts to its parent (`unlink`). Its `parent` still leads
to what is left of the path, so every lock and pin can be given back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol
from weakref import WeakValueDictionary

from lmprog.radix.eviction import EvictionOrder, EvictionPolicy
from lmprog.radix.node import Node


class PageAllocator:
    """The pages `0 .. num_pages` of the KV pool, as numbers. Allocating and freeing `n` pages costs
    O(n). A page belongs to whoever allocated it until it is freed; freeing one twice is a bug.
    """

    def __init__(self, num_pages: int) -> None:
        assert num_pages >= 0, f"a pool of {num_pages} pages"
        self.num_pages = self.num_numbers = num_pages
        self._free = list(
            range(num_pages - 1, -1, -1)
        )  # a stack: the page freed last is allocated first
        self._allocated: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_taken(self) -> int:
        return len(self._allocated)

    def free_pages(self) -> list[int]:
        """Their numbers, in ascending order."""
        return sorted(self._free)

    @property
    def longest(self) -> int:
        """Pages of the longest path: the copy of a partly filled one takes one."""
        return self.num_pages - 1

    def obtainable(self, num_evictable: int) -> int:
        """Pages that are free, or could be if so many were evicted."""
        return len(self._free) + num_evictable

    def cost(self, count: int) -> int:
        """What `count` pages of one path take, in free pages."""
        return count

    def give_way(self) -> bool:
        """Whether more pages are free, since something was given up that the tree can spare."""
        return False

    def trim(self) -> None:
        """What only might be of use is free."""

    def allocate(self, count: int) -> list[int] | None:
        """`count` pages; None, and nothing is allocated, when fewer are free."""
        assert count >= 0, f"{count} pages requested"
        if count > len(self._free):
            return None
        rest = len(self._free) - count
        pages = self._free[rest:]
        pages.reverse()
        del self._free[rest:]
        self._allocated.update(pages)
        return pages

    def free(self, pages: Iterable[int]) -> None:
        """`pages` are free again."""
        back = list(pages)
        rest = len(self._allocated) - len(back)
        self._allocated.difference_update(back)
        assert len(self._allocated) == rest, f"a page was freed twice: {back}"
        self._free.extend(reversed(back))

    def taken(self) -> set[int]:
        """Those that are somebody's."""
        return set(self._allocated)

    def prefer_low(self) -> None:
        """The lowest free pages are allocated first, so that those in use lie close together."""
        self._free.sort(reverse=True)

    def keep_only(self, held: Iterable[int]) -> None:
        """Every page but those `held`, which are allocated, is free."""
        kept = set(held)
        assert kept <= self._allocated, "a page is held though it is free"
        self.free(sorted(self._allocated - kept))

    def check(self, held: Iterable[int]) -> None:
        """`held` are the pages of all owners: with the free ones they must be all pages, each
        once.
        """
        owned = list(held)
        twice = len(owned) - len(set(owned))
        assert not twice, f"{twice} pages have two owners"
        assert set(owned) == self._allocated, (
            f"leaked, or owned though free: {sorted(set(owned) ^ self._allocated)[:16]}"
        )
        free = set(self._free)
        assert len(free) == len(self._free), "a page is free twice"
        assert not free & self._allocated, "a page is free and taken"
        assert free | self._allocated == set(range(self.num_numbers)), "a page is lost"


class TreeWatcher(Protocol):
    """Told after each change of which tokens can be matched. It must not change the tree."""

    def added(self, leaf: Node) -> None:
        """The tree has the tokens of this new leaf."""
        ...

    def was_split(self, upper: Node, lower: Node) -> None:
        """`lower` has lost its first tokens to the new node `upper` above it."""
        ...

    def shortened(self, node: Node) -> None:
        """The node has lost its last tokens."""
        ...

    def removed(self, node: Node) -> None:
        """Nothing of this node, which was in the tree, can be matched any more. Its children are
        removed, too, before or after it."""
        ...


class References:
    """All counters of a tree, its eviction order and the roots in use."""

    def __init__(self, page_size: int, pages: PageAllocator, policy: EvictionPolicy | None) -> None:
        self._page_size = page_size
        self._pages = pages
        self.order = EvictionOrder(policy)
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
        if self.order.policy is not None:
            self.order.policy.removed(node)
        if self.watcher is not None:
            self.watcher.removed(node)
        node.pins = node.pins_here = 0
        node.children = {}
        node.tail_child = None
        self.update_reserve(node)
