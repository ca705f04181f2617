"""The shape of the prefix tree: walks along tokens, adds leaves, splits nodes, removes what is not
needed.

Keeps which node owns which page (see `node`). Does not decide what is kept or evicted.
"""

from __future__ import annotations

from lmprog.radix.node import TOKEN_BYTES, Node, Tokens, common_run
from lmprog.radix.references import References
from lmprog.radix.tree_results import Match


class TreeShape:
    """The nodes below the roots of `refs`."""

    def __init__(self, page_size: int, refs: References) -> None:
        self._page_size = page_size
        self._refs = refs
        self.num_nodes = 0
        self._num_named = 0

    def find(self, root: Node, tokens: Tokens, key: bytes, limit: int) -> Match:
        """The longest prefix of `tokens[:limit]` below `root`; `key` is `tokens` as bytes. Whole
        nodes are compared by one memcmp each.
        """
        node, length = root, 0
        pages: list[int] = []
        while length < limit:
            child = node.children.get(tokens[length])
            if child is None:
                break
            node = child
            pages += child.pages
            if child.end <= limit and key.startswith(child.key, length * TOKEN_BYTES):
                length = child.end
            else:
                length = min(limit, length + common_run(child.key, key, length))
                break
        partial = node.partial_page(length, self._page_size)
        del pages[length // self._page_size :]
        return Match(node, length, pages, partial)

    def add_leaf(self, parent: Node, key: bytes, pages: list[int]) -> Node:
        """Add a leaf below `parent`, which from then on owns only pages that it fills."""
        refs = self._refs
        if parent.end % self._page_size and not parent.children:
            page = parent.pages.pop()
            assert page != pages[0], "the caller inserted a page of the tree"
            if parent.locks_here:
                parent.end_page = page  # lock holders may read it in this very step
            else:
                refs.order.resized(parent, -1)
                refs.free([page])
        child = self._named(Node(parent, parent.salt, parent.end, key, pages))
        parent.children[child.first_token] = child
        if parent.tail_child is None:
            parent.tail_child = child
        refs.adopt(pages)
        refs.order.add(child)
        refs.update_reserve(parent)
        if parent.parent is None:
            refs.used_roots[parent.salt] = parent
        self.num_nodes += 1
        if refs.watcher is not None:
            refs.watcher.added(child)
        return child

    def _named(self, node: Node) -> Node:
        self._num_named += 1
        node.number = self._num_named
        return node

    def split(self, node: Node, at: int) -> Node:
        """Cut `node` in two at position `at`; returns the new upper part, which the caller touches.

        Locks and pins refer to the end of `node`, so the object stays the lower part.
        """
        parent = node.parent
        assert parent is not None
        assert node.begin < at < node.end
        cut = (at - node.begin) * TOKEN_BYTES
        own = at // self._page_size - node.begin // self._page_size
        upper = Node(parent, node.salt, node.begin, node.key[:cut], node.pages[:own])
        upper.locks, upper.pins, upper.number = node.locks, node.pins, node.number
        self._named(node)
        parent.children[upper.first_token] = upper
        if parent.tail_child is node:
            parent.tail_child = upper
        node.parent, node.begin, node.key = upper, at, node.key[cut:]
        if not node.locks:
            self._refs.order.resized(node, -own)
        del node.pages[:own]
        upper.children[node.first_token] = upper.tail_child = node
        if not node.locks:
            self._refs.order.add(upper)
        self.num_nodes += 1
        if self._refs.watcher is not None:
            self._refs.watcher.was_split(upper, node)
        return upper

    def repair(self, node: Node, locks_follow: bool = False) -> Node:
        """`node` may have lost its last child. As a leaf it needs a page for its end, or must be
        shortened to a page boundary.

        Returns the node that is left: `node`, or its first ancestor of which something is left.
        Lock holders of removed tokens find their node not alive, unless `locks_follow`: then their
        locks move to what is left.
        """
        size = self._page_size
        while not node.children and node.end % size:
            if node.end_page is not None:
                node.pages.append(node.end_page)
                node.end_page = None
                break
            boundary = node.end - node.end % size
            if boundary > node.begin:
                if not node.locks or locks_follow:
                    self._shorten(node, boundary)
                    break
                self.split(node, boundary)
            parent = self._refs.unlink(node)
            self._refs.discard(node)
            self.num_nodes -= 1
            node = parent
        self._refs.update_reserve(node)
        if node.parent is None:
            self._refs.drop_if_unused(node)
        return node

    def evict_from(self, node: Node, want: int) -> int:
        """Free up to `want` pages from the end of the unlocked leaf `node`. It is removed when
        nothing of it is left.
        """
        refs = self._refs
        kept = len(node.pages) - want
        if kept > 0:
            pages = node.pages[kept:]
            del node.pages[kept:]
            self._shorten(node, (node.begin // self._page_size + kept) * self._page_size)
            refs.order.resized(node, -want)
            refs.free(pages)
            return want
        parent = node.parent
        assert parent is not None
        if len(parent.children) == 1 and parent.end % self._page_size and parent.end_page is None:
            # the parent ends in this page, and is about to be a leaf
            parent.end_page = node.pages.pop(0)
            refs.order.resized(node, -1)
            if not parent.locks:
                refs.order.resized(parent, 1)
        freed = len(node.pages)
        refs.unlink(node)
        refs.discard(node)
        self.num_nodes -= 1
        self.repair(parent)
        return freed

    def _shorten(self, node: Node, end: int) -> None:
        node.shorten(end)
        if self._refs.watcher is not None:
            self._refs.watcher.shortened(node)
