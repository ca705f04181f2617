"""The prefix tree: which tokens are computed, in which pages, and who stands on them.

It knows tokens, pages and counters. It does not know branches, steps, what a page contains, or what
time it is. The shape of a node and which pages it owns is told in `node`; what is evicted first in
`eviction`.

Three duties of whoever uses it:

- Pages of a match are safe only once its node is locked.
- Pages of the tree are never written. A branch that must write into the page in which it ends takes
  that page back (`take_tail`), or copies its slots to a page of its own.
- Contents are taken on trust: a node may be inserted before its step has computed it. Who copies
  from a page that this very step fills must fill its copy from the same source; and a step that
  failed must `discard` what it inserted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lmprog.radix.audit import audit, pages_of
from lmprog.radix.holds import Holds
from lmprog.radix.node import TOKEN_BYTES, Node, Tokens, can_end_at, common_run, subtree
from lmprog.radix.pages import PageAllocator
from lmprog.radix.tree_results import Inserted, Match, Tail


class RadixTree:
    """All computed prefixes. Prefixes of different salts never share a page."""

    def __init__(self, page_size: int, pages: PageAllocator) -> None:
        assert page_size >= 1, f"a page of {page_size} slots"
        self._page_size = page_size
        self._pages = pages
        self._holds = Holds(page_size, pages)
        self._num_nodes = 0
        self._num_named = 0

    @property
    def num_nodes(self) -> int:
        """Nodes in the tree, roots not counted."""
        return self._num_nodes

    @property
    def num_cached(self) -> int:
        """Pages that the tree holds, those of discarded nodes that are still locked included."""
        return self._holds.num_cached

    @property
    def num_evictable(self) -> int:
        """Pages that `evict` could free now, those of pinned nodes included."""
        return self._holds.order.num_pages - self._holds.num_owed

    @property
    def num_pinned(self) -> int:
        """Pages of nodes that are pinned and not locked: `evict` takes them last."""
        return self._holds.order.num_pinned

    # -- finding and keeping

    def match(self, tokens: Tokens, salt: str = "", limit: int | None = None) -> Match:
        """The longest prefix of `tokens[:limit]` that the tree knows, exact to the token. Counts as
        a use of it.
        """
        end = len(tokens) if limit is None else min(limit, len(tokens))
        found = self._find(self._holds.root(salt), tokens, tokens.tobytes(), end)
        self._holds.order.renew(found.node)
        return found

    def insert(self, tokens: Tokens, pages: Sequence[int], salt: str = "") -> Inserted:
        """Keep `tokens`, whose page table is `pages`: a page for each `page_size` positions, the
        last perhaps partial.

        The tree takes over the pages of the tokens that it did not know yet. If the known part ends
        inside a page, the caller's page there must hold all of its slots from its first on, and
        must not be one of the tree's. Nobody stands on the result until it is locked.
        """
        size = self._page_size
        assert len(pages) == -(-len(tokens) // size), (
            f"{len(pages)} pages of {size} for {len(tokens)} tokens"
        )
        key = tokens.tobytes()
        found = self._find(self._holds.root(salt), tokens, key, len(tokens))
        node, length, first_taken = found.node, found.length, len(pages)
        if length < len(tokens):
            if length < node.end:
                node = self._split(node, length)
            first_taken = length // size
            node = self._grow(node, key[length * TOKEN_BYTES :], list(pages[first_taken:]))
        self._holds.order.renew(node)
        return Inserted(node, first_taken)

    def partial_page(self, node: Node, length: int) -> int | None:
        """The page of the tree that holds the last `length % page_size` tokens of the path to
        position `length`.

        The position is in `node` or above it (others may have split the node). None when there are
        no such tokens. It may be another page than at the time of the match: evictions move what is
        left of a path.
        """
        while length <= node.begin and node.parent is not None:
            node = node.parent
        return node.partial_page(length, self._page_size)

    # -- standing somewhere

    def lock(self, node: Node, length: int | None = None) -> Node:
        """Nothing of the path from the root to `length`, a position of `node` (None: its end), is
        evicted until the node that this returns is unlocked. Locks are counted.

        A node is cut at `length`, so that no more is held than is stood on.
        """
        if length is not None and node.begin < length < node.end:
            node = self._split(node, length)
            self._holds.order.renew(node)
        self._holds.lock(node)
        return node

    def unlock(self, node: Node) -> None:
        """Take back one `lock(node)`. Counts as a use of its path. The node may have been discarded
        since.
        """
        self._holds.unlock(node)

    def pin(self, node: Node) -> None:
        """The path from the root to `node` is evicted only when nothing else is left, until
        `unpin(node)`. Counted.

        A pin outlives its node: if the node is evicted, what is left of its path stays pinned.
        """
        self._holds.pin(node)

    def unpin(self, node: Node) -> None:
        """Take back one `pin(node)`, whatever has become of the node since."""
        self._holds.unpin(node)

    def take_tail(self, node: Node, length: int) -> Tail | None:
        """Hand the page in which `node` ends at `length` to the caller, who stands there alone and
        has locked it once.

        The tokens in that page leave the tree, and the caller's lock moves to what is left of the
        path (`Tail.node`). If others went on from here, each on a page of its own, the tokens stay.
        None, and nothing happens, if `length` is not the node's end, or is a page boundary, or if
        somebody else may need the page.
        """
        rest = length % self._page_size
        if not rest or not node.alive or node.end != length:
            return None
        if node.children:
            if node.spare is None or node.locks_here != 1:
                return None
            page, node.spare = node.spare, None
            self._holds.num_cached -= 1
            self._holds.reckon(node)
            return Tail(page, node)
        if node.locks != 1 or not can_end_at(node, length - rest):
            return None
        page = node.pages.pop()
        self._holds.num_cached -= 1
        standing = self._mend(node, standers_follow=True)
        while node is not standing:  # it went whole, and its one lock has moved up
            self._holds.condemned.discard(node)
            node.locks = node.locks_here = 0
            assert node.parent is not None
            node = node.parent
        return Tail(page, standing)

    # -- forgetting

    def evict(self, count: int) -> int:
        """Give at least `count` pages back to the allocator, or all that can be given; says how
        many it was.

        Least recently used first, leaves before their parents, from a leaf's end, no more of it
        than is asked for.
        """
        freed = 0
        while freed < count:
            node = self._holds.order.oldest()
            if node is None:
                break
            freed += self._evict_from(node, count - freed)
        return freed

    def clear(self) -> int:
        """Evict everything that is not locked, pinned or not; says how many pages that freed."""
        return self.evict(self._pages.num_pages + 1)

    def discard(self, node: Node, start: int | None = None) -> None:
        """The contents of `node`, or of its path from position `start` on, are wrong: never match
        them again.

        All that continues from there goes too. Pages go back at once, or when the last lock at or
        below their node is taken back. Whoever stands on discarded tokens finds `node.alive` false,
        and owes only the unlock. Tokens before `start` go too where only the discarded pages held
        them (less than a page of them). Give `start` whenever others may have split the node since
        it was inserted: what a split puts above `node` is wrong as well. Discarding twice is
        allowed.
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
            self._holds.order.renew(self._split(top, start))
        doomed = list(subtree(top))
        parent = self._holds.unlink(top)
        self._num_nodes -= len(doomed)
        for dead in doomed:
            self._holds.bury(dead)
        self._mend(parent)

    # -- looking at it

    def tick(self, now: float) -> None:
        """Uses are marked with this moment from now on (`Node.used`). The tree itself makes nothing
        of it.
        """
        self._holds.order.now = now

    def roots(self) -> list[Node]:
        """One for each salt in use; they have no tokens themselves."""
        return list(self._holds.used_roots.values())

    def walk(self) -> Iterator[Node]:
        """Every node, parents before their children, roots left out. The tree must not change
        meanwhile.
        """
        for root in self.roots():
            for child in root.children.values():
                yield from subtree(child)

    def pages_held(self) -> list[int]:
        """The pages that are the tree's, in no order."""
        return pages_of([*self.walk(), *self._holds.condemned])

    def check(self) -> None:
        """Walk all invariants; AssertionError at the first broken one."""
        num_nodes = audit(self._page_size, self._holds)
        assert num_nodes == self._num_nodes, f"{num_nodes} nodes, {self._num_nodes} counted"

    # -- the shape

    def _find(self, root: Node, tokens: Tokens, key: bytes, limit: int) -> Match:
        """`key` is `tokens` as bytes. Whole nodes are compared by one memcmp each."""
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

    def _grow(self, parent: Node, key: bytes, pages: list[int]) -> Node:
        """Add a leaf below `parent`, which from now on owns only pages that it fills."""
        holds = self._holds
        if parent.end % self._page_size and not parent.children:
            page = parent.pages.pop()
            assert page != pages[0], "the caller gave a page of the tree as its own"
            if parent.locks_here:
                parent.spare = page  # who stands there may be reading it in this very step
            else:
                holds.order.resized(parent, -1)
                holds.give([page])
        child = self._named(Node(parent, parent.salt, parent.end, key, pages))
        parent.children[child.first_token] = child
        if parent.heir is None:
            parent.heir = child
        holds.take_over(pages)
        holds.order.add(child)
        holds.reckon(parent)
        if parent.parent is None:
            holds.used_roots[parent.salt] = parent
        self._num_nodes += 1
        return child

    def _named(self, node: Node) -> Node:
        self._num_named += 1
        node.number = self._num_named
        return node

    def _split(self, node: Node, at: int) -> Node:
        """Cut `node` in two at position `at`; gives the new upper part, which the caller renews.

        Whoever holds `node` stands at its end, so the object stays the lower part.
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
        if parent.heir is node:
            parent.heir = upper
        node.parent, node.begin, node.key = upper, at, node.key[cut:]
        if not node.locks:
            self._holds.order.resized(node, -own)
        del node.pages[:own]
        upper.children[node.first_token] = upper.heir = node
        if not node.locks:
            self._holds.order.add(upper)
        self._num_nodes += 1
        return upper

    def _mend(self, node: Node, standers_follow: bool = False) -> Node:
        """`node` may have lost its last child: it is a leaf then, and needs a page for its end, or
        an end without one.

        Gives the node that is left: `node`, or the first ancestor of which something is left. Who
        stands on tokens that go finds their node dead, so that nobody is cut short unawares; unless
        `standers_follow` to what is left.
        """
        size = self._page_size
        while not node.children and node.end % size:
            if node.spare is not None:
                node.pages.append(node.spare)
                node.spare = None
                break
            boundary = node.end - node.end % size
            if boundary > node.begin:
                if not node.locks or standers_follow:
                    node.shorten(boundary)
                    break
                self._split(node, boundary)
            parent = self._holds.unlink(node)
            self._holds.bury(node)
            self._num_nodes -= 1
            node = parent
        self._holds.reckon(node)
        if node.parent is None:
            self._holds.retire(node)
        return node

    def _evict_from(self, node: Node, want: int) -> int:
        """Free up to `want` pages of the unlocked leaf `node`. It stays if that leaves something of
        it.
        """
        holds = self._holds
        kept = len(node.pages) - want
        if kept > 0:
            pages = node.pages[kept:]
            del node.pages[kept:]
            node.shorten((node.begin // self._page_size + kept) * self._page_size)
            holds.order.resized(node, -want)
            holds.give(pages)
            return want
        parent = node.parent
        assert parent is not None
        if len(parent.children) == 1 and parent.end % self._page_size and parent.spare is None:
            parent.spare = node.pages.pop(
                0
            )  # the parent ends in this page, and is about to be a leaf
            holds.order.resized(node, -1)
            if not parent.locks:
                holds.order.resized(parent, 1)
        freed = len(node.pages)
        holds.unlink(node)
        holds.bury(node)
        self._num_nodes -= 1
        self._mend(parent)
        return freed
