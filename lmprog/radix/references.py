"""Who holds the pages of a tree: locks and pins as reference counts along paths, the order in which
unlocked nodes are evicted, and the pages that nobody holds.

Keeps the counters, the eviction order, the roots in use, and the number of pages of the tree. Does
not know the tokens of a node, and never changes the shape of the tree.

A lock or pin is counted at its node (`locks_here`) and along the whole path to the root (`locks`).
A node that leaves the tree passes its own counts to its parent (`unlink`). Its `parent` still leads
to what is left of the path, so every lock and pin can be given back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol
from weakref import WeakValueDictionary

from lmprog.radix.node import Node


class PageAllocator:
    """The pages `0 .. num_pages` of the KV pool, as numbers. Allocating and freeing `n` pages costs
    O(n). A page belongs to whoever allocated it until it is freed; freeing one twice is a bug.
    """

    def __init__(self, num_pages: int) -> None:
        assert num_pages >= 0, f"a pool of {num_pages} pages"
        self.num_pages = num_pages
        self._free = list(
            range(num_pages - 1, -1, -1)
        )  # a stack: the page freed last is allocated first
        self._allocated: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def free_pages(self) -> list[int]:
        """Their numbers, in ascending order."""
        return sorted(self._free)

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
        assert free | self._allocated == set(range(self.num_pages)), "a page is lost"


class EvictionOrder:
    """All unlocked nodes of a tree, not only leaves, in two LRU queues: unpinned ones go before
    pinned ones. Callers must remove a node before its pins change between none and some, and add it
    again afterwards.

    When a path is used, its nodes are touched from the lower end upwards. So a node is always
    behind its descendants in its queue, the head of a queue is always a leaf, and the next victim
    is found without a search.

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
