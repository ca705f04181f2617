"""A double of everything around the prefix tree: a memory whose slots tell their whole past, and lanes that use it.

A slot contains a hash of the salt and of all tokens up to its own, as keys and values do in effect. A page is wiped
when it is handed out. So any page that is shared wrongly, freed too early or filled by halves shows in what a lane
reads. Beside the tree goes a plain dict of all prefixes that it should know. `Lanes.check` compares all with all.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from lmprog.radix import Match, Node, PageAllocator, RadixTree

Content = int


@dataclass
class Lane:
    salt: str
    tokens: array[int]
    node: Node
    claimed: int  # so much of it is the tree's, and locked
    table: list[int] = field(
        default_factory=list
    )  # whole pages first; then the part-filled one if the lane may read it
    own: set[int] = field(default_factory=set)


def ints(*tokens: int) -> array[int]:
    return array("i", tokens)


class Lanes:
    def __init__(self, page_size: int, num_pages: int) -> None:
        self.size = page_size
        self.pages = PageAllocator(num_pages)
        self.tree = RadixTree(page_size, self.pages)
        self.memory: list[Content | None] = [None] * (num_pages * page_size)
        self.known: dict[str, dict[Content, int]] = {}  # salt -> content of a known prefix -> its length
        self.lanes: list[Lane] = []
        self.pins: list[Node] = []

    # -- the memory

    def contents(self, salt: str, tokens: array[int]) -> list[Content]:
        past, result = hash(salt), []
        for token in tokens:
            past = hash((past, token))
            result.append(past)
        return result

    def read(self, table: list[int], length: int) -> list[Content | None]:
        size = self.size
        return [self.memory[table[i // size] * size + i % size] for i in range(length)]

    def write(self, lane: Lane, start: int) -> None:
        """Compute the lane's tokens from `start` on, into its own pages."""
        size = self.size
        past = self.contents(lane.salt, lane.tokens)
        for i in range(start, len(lane.tokens)):
            assert lane.table[i // size] in lane.own, "a page of the tree would be written"
            self.memory[lane.table[i // size] * size + i % size] = past[i]

    def copy(self, source: int, target: int, count: int) -> None:
        size = self.size
        self.memory[target * size : target * size + count] = self.memory[source * size : source * size + count]

    def take(self, count: int) -> list[int] | None:
        missing = count - self.pages.num_free
        if missing > 0:
            could = self.tree.num_evictable
            freed = self.evict(missing)
            assert freed == min(missing, could), "num_evictable is what evict can free"
        taken = self.pages.take(count)
        for page in taken or ():
            self.memory[page * self.size : (page + 1) * self.size] = [None] * self.size
        return taken

    # -- what a scheduler does

    def start(self, tokens: array[int], salt: str = "", keep: bool = True) -> Lane | None:
        """A new lane: finds its prefix, computes the rest, and puts it into the tree if `keep`."""
        match = self.tree.match(tokens, salt)
        self.check_match(match, tokens, salt)
        exact = sum(tokens) % 2 == 0  # locks no more than it found, or the whole node in which that ends
        node = self.tree.lock(match.node, match.length if exact else None)
        assert node.end == match.length or not exact
        lane = Lane(salt, tokens, node, match.length, list(match.pages))
        if match.length < len(tokens) and not self._continue(lane, match.length, None):
            self.tree.unlock(node)
            return None
        self.lanes.append(lane)
        if keep:
            self.keep(lane)
        return lane

    def extend(self, lane: Lane, more: array[int]) -> bool:
        """The lane computes `more` tokens; False when there is no memory for them."""
        length = len(lane.tokens)
        tail = None
        if length % self.size and not (len(lane.table) > length // self.size and lane.table[-1] in lane.own):
            tail = self.tree.take_tail(lane.node, length)
            del lane.table[length // self.size :]
            if tail is not None:
                self.forget_all_but_the_tree()
                lane.node, lane.claimed = tail.node, min(lane.claimed, tail.node.end)
                lane.table.append(tail.page)
                lane.own.add(tail.page)
        lane.tokens = lane.tokens + more
        if not self._continue(lane, length, lane.node):
            lane.tokens = lane.tokens[:length]
            return False
        return True

    def _continue(self, lane: Lane, start: int, node: Node | None) -> bool:
        count = -(-len(lane.tokens) // self.size) - len(lane.table)
        taken = self.take(count)
        if taken is None:
            return False
        rest = start % self.size
        if rest and len(lane.table) == start // self.size:
            source = self.tree.partial_page(node or lane.node, start)  # asked for after evictions: they may move it
            assert source is not None
            self.copy(source, taken[0], rest)
        lane.table += taken
        lane.own.update(taken)
        self.write(lane, start)
        return True

    def keep(self, lane: Lane, let_go_first: bool = False) -> None:
        """Everything of the lane goes into the tree. Nothing is evicted meanwhile, so it may let go before."""
        length = len(lane.tokens)
        table = list(lane.table)
        if len(table) * self.size < length:  # all of it was found, and it ends in a page of the tree
            page = self.tree.partial_page(lane.node, length)
            assert page is not None
            table.append(page)
        if let_go_first:
            self.tree.unlock(lane.node)
        inserted = self.tree.insert(lane.tokens, table, lane.salt)
        taken = set(table[inserted.first_taken :])
        assert taken <= lane.own, "the tree took what was not the lane's"
        assert inserted.node.end >= length
        lane.own -= taken
        self.tree.lock(inserted.node)
        if not let_go_first:
            self.tree.unlock(lane.node)
        elif set(lane.table[length // self.size :]) - lane.own - taken:
            del lane.table[length // self.size :]  # the tree kept that page only as long as the lane stood there
        lane.node, lane.claimed = inserted.node, length
        prefixes = self.known.setdefault(lane.salt, {})
        prefixes.update({past: i + 1 for i, past in enumerate(self.contents(lane.salt, lane.tokens))})

    def swap(self, lane: Lane) -> None:
        """A kept lane gives back pages of its own that the tree has, too."""
        match = self.tree.match(lane.tokens, lane.salt)
        if match.length < len(lane.tokens):
            return
        whole = len(match.pages)
        back = {page for page in lane.table[:whole] if page in lane.own}
        lane.table[:whole] = match.pages
        lane.own -= back
        self.pages.give(back)
        self.tree.lock(match.node)
        self.tree.unlock(lane.node)
        if match.node is not lane.node and lane.table[whole:] and lane.table[whole] not in lane.own:
            del lane.table[whole:]
        lane.node = match.node

    def drop(self, lane: Lane) -> None:
        self.lanes.remove(lane)
        self.tree.unlock(lane.node)
        self.pages.give(lane.own)

    def evict(self, count: int) -> int:
        freed = self.tree.evict(count)
        self.forget_all_but_the_tree()
        return freed

    def discard(self, lane: Lane, start: int | None) -> None:
        """The step that computed the lane from `start` on failed. Lanes that stood on that go, at once or later."""
        node = lane.node
        first = node.begin if start is None else start
        path = self.path_tokens(node) if node.alive else None
        self.tree.discard(node, start)
        self.forget_all_but_the_tree()
        if path is not None and first < len(path):
            assert not node.alive
            assert self.tree.match(path, lane.salt).length <= first

    # -- comparing

    @staticmethod
    def path_tokens(node: Node) -> array[int]:
        tokens = ints()
        while node.parent is not None:
            tokens = array("i", node.tokens) + tokens
            node = node.parent
        return tokens

    def forget_all_but_the_tree(self) -> None:
        """After pages left the tree: what it still knows must have been known before; the rest is forgotten."""
        left: dict[str, dict[Content, int]] = {}
        for node, past in self._pasts():
            prefixes = left.setdefault(node.salt, {})
            prefixes.update({one: node.begin + i + 1 for i, one in enumerate(past)})
        for salt, prefixes in left.items():
            assert prefixes.items() <= self.known[salt].items(), "the tree knows what was never computed"
        self.known = left

    def _pasts(self) -> list[tuple[Node, list[Content]]]:
        ends: dict[Node, Content] = {}
        result = []
        for node in self.tree.walk():
            parent = node.parent
            assert parent is not None
            past = hash(node.salt) if parent.parent is None else ends[parent]
            pasts = []
            for token in node.tokens:
                past = hash((past, token))
                pasts.append(past)
            ends[node] = past
            result.append((node, pasts))
        return result

    def longest(self, tokens: array[int], salt: str) -> int:
        """What a match must find, by the dict."""
        prefixes = self.known.get(salt, {})
        length = 0
        for past in self.contents(salt, tokens):
            if past not in prefixes:
                break
            length += 1
        return length

    def check_match(self, match: Match, tokens: array[int], salt: str) -> None:
        assert match.length == self.longest(tokens, salt)
        assert len(match.pages) == match.length // self.size
        assert (match.partial is None) == (match.length % self.size == 0)
        table = match.pages if match.partial is None else [*match.pages, match.partial]
        assert self.read(table, match.length) == self.contents(salt, tokens[: match.length])

    def check(self) -> None:
        self.tree.check()
        self.pages.check([*self.tree.pages_held(), *(page for lane in self.lanes for page in lane.own)])
        for lane in self.lanes:
            if lane.node.alive:
                length = min(len(lane.tokens), len(lane.table) * self.size)
                assert self.read(lane.table, length) == self.contents(lane.salt, lane.tokens[:length])
                assert self.longest(lane.tokens, lane.salt) >= lane.claimed, "locked, yet gone"
        size, memory = self.size, self.memory
        paths: dict[Node, list[Content]] = {}
        for node, pasts in self._pasts():
            parent = node.parent
            assert parent is not None
            path = paths[node] = [*paths.get(parent, []), *pasts]
            first = node.begin // size * size
            for i in range(first, min(node.end, first + len(node.pages) * size)):
                assert memory[node.pages[(i - first) // size] * size + i % size] == path[i], f"slot {i} of {node}"
            page = node.partial_page(node.end, size)
            if page is not None:
                whole = node.end // size * size
                assert memory[page * size : page * size + node.end - whole] == path[whole:], f"the end of {node}"
