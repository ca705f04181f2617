"""The prefix tree: which tokens are computed, in which pages, and which nodes are locked or pinned.

Knows tokens, pages and counters. Knows neither branches, steps, the contents of a page nor the
time. `node` says which pages a node owns, `references` what is evicted first; `TreeShape` adds,
splits and removes nodes. What the tree returns are tuples, because a step makes several for each
sequence, and a frozen dataclass takes four times as long to make.

Callers must:

- lock a match before using its pages;
- never write to a page of the tree: a branch that must write into the page in which it ends takes
  the page back (`take_tail`), or copies its slots to a page of its own;
- `discard` what a failed step inserted. A node may be inserted before its step has computed it, so
  a copy of slots that the same step computes must be written by the same row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from lmprog.radix.audit import PartialAudit, audit, check_counters, check_pages, pages_of
from lmprog.radix.eviction import EvictionPolicy
from lmprog.radix.node import TOKEN_BYTES, Node, Tokens, can_end_at, common_run, subtree
from lmprog.radix.references import PageAllocator, References, TreeWatcher


class Match(NamedTuple):
    """The longest known prefix. `length` may lie inside `node`.

    `pages` are the `length // page_size` whole pages. `partial` holds the last `length % page_size`
    matched tokens in its first slots; None when there are none.
    """

    node: Node
    length: int
    pages: list[int]
    partial: int | None


class Inserted(NamedTuple):
    """The inserted tokens end in `node`.

    The tree owns `pages[first_taken:]` now; the owner of those before has not changed.
    """

    node: Node
    first_taken: int


class Tail(NamedTuple):
    """The caller owns `page` now, and its lock has moved to `node`."""

    page: int
    node: Node


class TreeShape:
    """The nodes below the roots of `refs`: walked along tokens, added, split, removed. Keeps which
    node owns which page; does not decide what is kept or evicted.
    """

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
        if refs.order.policy is not None:
            refs.order.policy.added(child)
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
        upper.kind, upper.past = node.kind, node.past and node.past.up_to(at)
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


class RadixTree:
    """All computed prefixes. Prefixes of different salts never share a page."""

    def __init__(
        self, page_size: int, pages: PageAllocator, policy: EvictionPolicy | None = None
    ) -> None:
        """`policy` says what is evicted first; None: what was used least recently."""
        assert page_size >= 1, f"a page of {page_size} slots"
        self._page_size = page_size
        self._pages = pages
        self._refs = References(page_size, pages, policy)
        self._shape = TreeShape(page_size, self._refs)
        self._audit = PartialAudit(page_size, self._refs)
        self.on_evict: Callable[[Node, int], object] | None = None
        """Told of a leaf, and how many pages at its end are evicted next, while it has them all."""
        self.useless_tail: Callable[[int], tuple[Node, int] | None] | None = None
        """Names a leaf that is not locked, and how many pages at its end are of no use, if it knows
        one, for pages of that size: they go first."""

    @property
    def watcher(self) -> TreeWatcher | None:
        """Told of every change of which tokens there are; None: nobody."""
        return self._refs.watcher

    @watcher.setter
    def watcher(self, watcher: TreeWatcher | None) -> None:
        self._refs.watcher = watcher

    @property
    def page_size(self) -> int:
        """Slots of a page."""
        return self._page_size

    @property
    def num_nodes(self) -> int:
        """Nodes in the tree, roots not counted."""
        return self._shape.num_nodes

    @property
    def num_cached(self) -> int:
        """Pages that the tree owns, including those of discarded nodes that are still locked."""
        return self._refs.num_cached

    @property
    def num_evictable(self) -> int:
        """Pages that `evict` could free now, those of pinned nodes included."""
        return self._refs.order.num_pages - self._refs.num_reserved

    @property
    def num_pinned(self) -> int:
        """Pages of nodes that are pinned and not locked: `evict` takes them last."""
        return self._refs.order.num_pinned

    # -- matching and inserting

    def match(self, tokens: Tokens, salt: str = "", limit: int | None = None) -> Match:
        """The longest prefix of `tokens[:limit]` in the tree, exact to the token. Counts as a
        use.
        """
        end = len(tokens) if limit is None else min(limit, len(tokens))
        found = self._shape.find(self._refs.root(salt), tokens, tokens.tobytes(), end)
        self._refs.order.touch(found.node)
        return found

    def insert(self, tokens: Tokens, pages: Sequence[int], salt: str = "") -> Inserted:
        """Insert `tokens` with their page table: a page for each `page_size` positions, the last
        one perhaps partly filled.

        The tree takes over the pages of tokens that it did not have. If the known prefix ends
        inside a page, the caller's page there must hold all slots of that page from the first on,
        and must not be one of the tree's. The result is not locked.
        """
        size = self._page_size
        assert len(pages) == -(-len(tokens) // size), (
            f"{len(pages)} pages of {size} for {len(tokens)} tokens"
        )
        key = tokens.tobytes()
        found = self._shape.find(self._refs.root(salt), tokens, key, len(tokens))
        node, length, first_taken = found.node, found.length, len(pages)
        if length < len(tokens):
            if length < node.end:
                node = self._shape.split(node, length)
            first_taken = length // size
            node = self._shape.add_leaf(
                node, key[length * TOKEN_BYTES :], list(pages[first_taken:])
            )
        self._refs.order.touch(node)
        return Inserted(node, first_taken)

    def partial_page(self, node: Node, length: int) -> int | None:
        """The page of the tree that holds the last `length % page_size` tokens of the path to
        position `length`.

        The position is in `node` or above it (the node may have been split). None when there are no
        such tokens. It may be another page than at the time of the match, since evictions move the
        end of a path.
        """
        while length <= node.begin and node.parent is not None:
            node = node.parent
        return node.partial_page(length, self._page_size)

    # -- locks and pins

    def lock(self, node: Node, length: int | None = None) -> Node:
        """Protect the path from the root to `length`, a position of `node` (None: its end), from
        eviction until the returned node is unlocked. Locks are counted.

        A node is split at `length`, so that only the used part is locked.
        """
        if length is not None and node.begin < length < node.end:
            node = self._shape.split(node, length)
            self._refs.order.touch(node)
        self._refs.lock(node)
        return node

    def unlock(self, node: Node) -> None:
        """Undo one `lock(node)`. Counts as a use of its path. The node may have been discarded."""
        self._refs.unlock(node)

    def pin(self, node: Node) -> None:
        """Evict the path from the root to `node` only when nothing unpinned is left, until
        `unpin(node)`. Pins are counted.

        When a pinned node is evicted, what is left of its path stays pinned.
        """
        self._refs.pin(node)

    def unpin(self, node: Node) -> None:
        """Undo one `pin(node)`, whatever has happened to the node since."""
        self._refs.unpin(node)

    def take_tail(self, node: Node, length: int) -> Tail | None:
        """Give the page in which `node` ends at `length` to the caller, who holds its only lock.

        The tokens in that page leave the tree, and the caller's lock moves to what is left of the
        path (`Tail.node`). If the node has children, which have these tokens on pages of their own,
        the tokens stay. None, and nothing happens, if `length` is not the node's end, or is a page
        boundary, or if another holder may need the page.
        """
        rest = length % self._page_size
        if not rest or not node.alive or node.end != length:
            return None
        if node.children:
            if node.end_page is None or node.locks_here != 1:
                return None
            page, node.end_page = node.end_page, None
            self._refs.num_cached -= 1
            self._refs.update_reserve(node)
            return Tail(page, node)
        if node.locks != 1 or not can_end_at(node, length - rest):
            return None
        page = node.pages.pop()
        self._refs.num_cached -= 1
        rest_of_path = self._shape.repair(node, locks_follow=True)
        while node is not rest_of_path:  # all of it was removed, and its one lock has moved up
            self._refs.discarded.discard(node)
            node.locks = node.locks_here = 0
            assert node.parent is not None
            node = node.parent
        return Tail(page, rest_of_path)

    def ended(self, node: Node, prompt_end: int) -> None:
        """A request whose prompt is the path to `prompt_end` ended in `node`: policies learn from
        that. Counts as a use of the path.
        """
        order = self._refs.order
        if order.policy is not None:
            left_behind = order.policy.ended(node, prompt_end, order.now)
            for other in left_behind:
                if not other.locks:
                    order.remove(other)
                    order.add(other)
            order.touch(node)  # behind those below it

    # -- evicting and discarding

    def evict(self, count: int) -> int:
        """Free at least `count` pages, or all that can be freed; returns the number freed.

        In the policy's order, leaves before their parents, from the end of a leaf, and no more of
        it than requested.
        """
        freed = 0
        while freed < count:
            tail = self.useless_tail and self.useless_tail(self._page_size)
            if tail:
                node, most = tail[0], min(tail[1], count - freed)
            else:
                victim, most = self._refs.order.next_victim(), count - freed
                if victim is None:
                    break
                node = victim
            if self.on_evict is not None:
                self.on_evict(node, min(most, len(node.pages)))
            freed += self._shape.evict_from(node, most)
        return freed

    def give_up(self, node: Node, begin: int) -> int:
        """Free what is cached at and below `node`, and above it back to position `begin` as far as
        nothing else continues there; nothing where somebody holds a lock or a pin on it.

        Returns the number of pages freed. Whole pages before `begin` stay.
        """
        while not node.alive and node.parent is not None:
            node = node.parent
        if node.parent is None or node.locks or node.pins or node.end <= begin:
            return 0
        freed = 0
        for below in reversed([*subtree(node)][1:]):
            if below.alive:  # it may have gone with its last child
                freed += self._shape.evict_from(below, len(below.pages))
        while node.parent is not None and not (node.children or node.locks or node.pins):
            above, kept = node.parent, 0
            if node.begin < begin:
                kept = -(-begin // self._page_size) - node.begin // self._page_size
            if node.end <= begin or len(node.pages) <= kept:
                break
            freed += self._shape.evict_from(node, len(node.pages) - kept)
            node = above
            while not node.alive and node.parent is not None:
                node = node.parent
        return freed

    def clear(self) -> int:
        """Evict everything that is not locked, even if pinned; returns the number of pages
        freed.
        """
        return self.evict(self.num_cached + 1)

    def discard(self, node: Node, start: int | None = None) -> None:
        """Mark the contents of `node`, or of its path from position `start` on, as wrong: never
        match them again.

        Everything that continues from there is discarded too. Pages are freed at once, or when the
        last lock at or below their node is released. Holders of discarded tokens find `node.alive`
        false and must only unlock. Tokens before `start` are discarded too where only the discarded
        pages held them (less than a page of them). Give `start` whenever others may have split the
        node since it was inserted: what a split puts above `node` is wrong as well. Discarding
        twice is allowed.
        """
        top = node
        if start is not None:
            while top.begin > start and top.parent is not None:
                top = top.parent
            if top.end <= start:
                return
        if not top.alive or top.parent is None:
            return
        if start is not None and top.begin < start:
            self._refs.order.touch(self._shape.split(top, start))
        doomed = list(subtree(top))
        parent = self._refs.unlink(top)
        self._shape.num_nodes -= len(doomed)
        for dead in doomed:
            self._refs.discard(dead)
        self._shape.repair(parent)

    # -- inspection

    def tick(self, now: float) -> None:
        """Sets the time recorded for uses (`Node.used`), for views of the tree and policies."""
        self._refs.order.now = now

    def roots(self) -> list[Node]:
        """One for each salt in use; they have no tokens."""
        return list(self._refs.used_roots.values())

    def walk(self) -> Iterator[Node]:
        """Every node but the roots, parents first. The tree must not change meanwhile."""
        for root in self.roots():
            for child in root.children.values():
                yield from subtree(child)

    def oldest_first(self) -> Iterator[Node]:
        """Unlocked nodes, those first that `evict` takes first as far as that is known: the policy
        decides anew for each. The tree must not change meanwhile.
        """
        return self._refs.order.oldest_first()

    def newest_first(self) -> Iterator[Node]:
        """Unlocked nodes, the one used last first. The tree must not change meanwhile."""
        return self._refs.order.newest_first()

    def pages_below(self, top: Node) -> list[int]:
        """The pages of `top` and of everything below it."""
        return pages_of([*subtree(top)])

    def pages_held(self) -> list[int]:
        """The pages of the tree, in no particular order."""
        return pages_of([*self.walk(), *self._refs.discarded])

    def check_node(self, node: Node) -> None:
        """Check one node; AssertionError if an invariant is broken."""
        check_counters(node)
        if node.parent is not None:
            check_pages(node, self._page_size)

    def check_more(self, num_nodes: int) -> bool:
        """Check about so many nodes, from where the last call stopped; whether all were checked
        since the first. AssertionError if an invariant of a node is broken.
        """
        return self._audit.go_on(num_nodes)

    def check(self) -> None:
        """Check all invariants; AssertionError at the first broken one."""
        num_nodes = audit(self._page_size, self._refs)
        assert num_nodes == self._shape.num_nodes, (
            f"{num_nodes} nodes, {self._shape.num_nodes} counted"
        )
