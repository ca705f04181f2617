"""A double of everything around the prefix tree: a memory whose slots tell their whole past, and
sequences that use it.

A slot contains a hash of the salt and of all tokens up to its own, as keys and values do in effect.
A page is wiped when it is handed out. So any page that is shared wrongly, freed too early or filled
by halves shows in what a sequence reads. Beside the tree goes a plain dict of all prefixes that it
should know. `Sequences.check` compares all with all.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from lmprog.radix import Match, Node, PageAllocator, RadixTree

Content = int


@dataclass
class Sequence:
    salt: str
    tokens: array[int]
    node: Node
    claimed: int  # so much of it is the tree's, and locked
    table: list[int] = field(
        default_factory=list
    )  # whole pages first; then the part-filled one if the sequence may read it
    own: set[int] = field(default_factory=set)


def ints(*tokens: int) -> array[int]:
    return array("i", tokens)


class Sequences:
    def __init__(self, page_size: int, num_pages: int) -> None:
        self.size = page_size
        self.pages = PageAllocator(num_pages)
        self.tree = RadixTree(page_size, self.pages)
        self.memory: list[Content | None] = [None] * (num_pages * page_size)
        self.known: dict[
            str, dict[Content, int]
        ] = {}  # salt -> content of a known prefix -> its length
        self.sequences: list[Sequence] = []
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

    def write(self, sequence: Sequence, start: int) -> None:
        """Compute the sequence's tokens from `start` on, into its own pages."""
        size = self.size
        past = self.contents(sequence.salt, sequence.tokens)
        for i in range(start, len(sequence.tokens)):
            assert sequence.table[i // size] in sequence.own, "a page of the tree would be written"
            self.memory[sequence.table[i // size] * size + i % size] = past[i]

    def copy(self, source: int, target: int, count: int) -> None:
        size = self.size
        self.memory[target * size : target * size + count] = self.memory[
            source * size : source * size + count
        ]

    def take(self, count: int) -> list[int] | None:
        missing = count - self.pages.num_free
        if missing > 0:
            could = self.tree.num_evictable
            freed = self.evict(missing)
            assert freed == min(missing, could), "num_evictable is what evict can free"
        taken = self.pages.allocate(count)
        for page in taken or ():
            self.memory[page * self.size : (page + 1) * self.size] = [None] * self.size
        return taken

    # -- what a scheduler does

    def start(self, tokens: array[int], salt: str = "", keep: bool = True) -> Sequence | None:
        """A new sequence: finds its prefix, computes the rest, and puts it into the tree if
        `keep`.
        """
        match = self.tree.match(tokens, salt)
        self.check_match(match, tokens, salt)
        exact = (
            sum(tokens) % 2 == 0
        )  # locks no more than it found, or the whole node in which that ends
        node = self.tree.lock(match.node, match.length if exact else None)
        assert node.end == match.length or not exact
        sequence = Sequence(salt, tokens, node, match.length, list(match.pages))
        if match.length < len(tokens) and not self._continue(sequence, match.length, None):
            self.tree.unlock(node)
            return None
        self.sequences.append(sequence)
        if keep:
            self.keep(sequence)
        return sequence

    def extend(self, sequence: Sequence, more: array[int]) -> bool:
        """The sequence computes `more` tokens; False when there is no memory for them."""
        length = len(sequence.tokens)
        tail = None
        if length % self.size and not (
            len(sequence.table) > length // self.size and sequence.table[-1] in sequence.own
        ):
            tail = self.tree.take_tail(sequence.node, length)
            del sequence.table[length // self.size :]
            if tail is not None:
                self.forget_all_but_the_tree()
                sequence.node, sequence.claimed = tail.node, min(sequence.claimed, tail.node.end)
                sequence.table.append(tail.page)
                sequence.own.add(tail.page)
        sequence.tokens = sequence.tokens + more
        if not self._continue(sequence, length, sequence.node):
            sequence.tokens = sequence.tokens[:length]
            return False
        return True

    def _continue(self, sequence: Sequence, start: int, node: Node | None) -> bool:
        count = -(-len(sequence.tokens) // self.size) - len(sequence.table)
        taken = self.take(count)
        if taken is None:
            return False
        rest = start % self.size
        if rest and len(sequence.table) == start // self.size:
            source = self.tree.partial_page(
                node or sequence.node, start
            )  # asked for after evictions: they may move it
            assert source is not None
            self.copy(source, taken[0], rest)
        sequence.table += taken
        sequence.own.update(taken)
        self.write(sequence, start)
        return True

    def keep(self, sequence: Sequence, let_go_first: bool = False) -> None:
        """Everything of the sequence goes into the tree. Nothing is evicted meanwhile, so it may
        let go before.
        """
        length = len(sequence.tokens)
        table = list(sequence.table)
        if (
            len(table) * self.size < length
        ):  # all of it was found, and it ends in a page of the tree
            page = self.tree.partial_page(sequence.node, length)
            assert page is not None
            table.append(page)
        if let_go_first:
            self.tree.unlock(sequence.node)
        inserted = self.tree.insert(sequence.tokens, table, sequence.salt)
        taken = set(table[inserted.first_taken :])
        assert taken <= sequence.own, "the tree took what was not the sequence's"
        assert inserted.node.end >= length
        sequence.own -= taken
        self.tree.lock(inserted.node)
        if not let_go_first:
            self.tree.unlock(sequence.node)
        elif set(sequence.table[length // self.size :]) - sequence.own - taken:
            del sequence.table[
                length // self.size :
            ]  # the tree kept that page only as long as the sequence stood there
        sequence.node, sequence.claimed = inserted.node, length
        prefixes = self.known.setdefault(sequence.salt, {})
        prefixes.update(
            {past: i + 1 for i, past in enumerate(self.contents(sequence.salt, sequence.tokens))}
        )

    def swap(self, sequence: Sequence) -> None:
        """A kept sequence gives back pages of its own that the tree has, too."""
        match = self.tree.match(sequence.tokens, sequence.salt)
        if match.length < len(sequence.tokens):
            return
        whole = len(match.pages)
        back = {page for page in sequence.table[:whole] if page in sequence.own}
        sequence.table[:whole] = match.pages
        sequence.own -= back
        self.pages.free(back)
        self.tree.lock(match.node)
        self.tree.unlock(sequence.node)
        if (
            match.node is not sequence.node
            and sequence.table[whole:]
            and sequence.table[whole] not in sequence.own
        ):
            del sequence.table[whole:]
        sequence.node = match.node

    def drop(self, sequence: Sequence) -> None:
        self.sequences.remove(sequence)
        self.tree.unlock(sequence.node)
        self.pages.free(sequence.own)

    def evict(self, count: int) -> int:
        freed = self.tree.evict(count)
        self.forget_all_but_the_tree()
        return freed

    def discard(self, sequence: Sequence, start: int | None) -> None:
        """The step that computed the sequence from `start` on failed. Sequences that stood on that
        go, at once or later.
        """
        node = sequence.node
        first = node.begin if start is None else start
        path = self.path_tokens(node) if node.alive else None
        self.tree.discard(node, start)
        self.forget_all_but_the_tree()
        if path is not None and first < len(path):
            assert not node.alive
            assert self.tree.match(path, sequence.salt).length <= first

    # -- comparing

    @staticmethod
    def path_tokens(node: Node) -> array[int]:
        tokens = ints()
        while node.parent is not None:
            tokens = array("i", node.tokens) + tokens
            node = node.parent
        return tokens

    def forget_all_but_the_tree(self) -> None:
        """After pages left the tree: what it still knows must have been known before; the rest is
        forgotten.
        """
        left: dict[str, dict[Content, int]] = {}
        for node, past in self._pasts():
            prefixes = left.setdefault(node.salt, {})
            prefixes.update({one: node.begin + i + 1 for i, one in enumerate(past)})
        for salt, prefixes in left.items():
            assert prefixes.items() <= self.known[salt].items(), (
                "the tree knows what was never computed"
            )
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
        self.pages.check(
            [
                *self.tree.pages_held(),
                *(page for sequence in self.sequences for page in sequence.own),
            ]
        )
        for sequence in self.sequences:
            if sequence.node.alive:
                length = min(len(sequence.tokens), len(sequence.table) * self.size)
                assert self.read(sequence.table, length) == self.contents(
                    sequence.salt, sequence.tokens[:length]
                )
                assert self.longest(sequence.tokens, sequence.salt) >= sequence.claimed, (
                    "locked, yet gone"
                )
        size, memory = self.size, self.memory
        paths: dict[Node, list[Content]] = {}
        for node, pasts in self._pasts():
            parent = node.parent
            assert parent is not None
            path = paths[node] = [*paths.get(parent, []), *pasts]
            first = node.begin // size * size
            for i in range(first, min(node.end, first + len(node.pages) * size)):
                assert memory[node.pages[(i - first) // size] * size + i % size] == path[i], (
                    f"slot {i} of {node}"
                )
            page = node.partial_page(node.end, size)
            if page is not None:
                whole = node.end // size * size
                assert memory[page * size : page * size + node.end - whole] == path[whole:], (
                    f"the end of {node}"
                )
