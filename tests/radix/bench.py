"""A small tree with its allocator and a short way to write tokens: what the rules of the tree are
stated on.
"""

from __future__ import annotations

from array import array

from lmprog.radix import Node, PageAllocator, RadixTree
from lmprog.radix.eviction import EvictionPolicy


class Bench:
    """A tree with its allocator. `add` inserts as a branch would: pages that the tree has first,
    then fresh ones.
    """

    def __init__(
        self, num_pages: int = 32, page_size: int = 4, policy: EvictionPolicy | None = None
    ) -> None:
        self.size = page_size
        self.pages = PageAllocator(num_pages)
        self.tree = RadixTree(page_size, self.pages, policy)
        self.held: list[int] = []

    def fresh(self, count: int) -> list[int]:
        taken = self.pages.allocate(count)
        assert taken is not None
        return taken

    def add(self, *tokens: int, salt: str = "") -> Node:
        table = self.tree.match(ints(*tokens), salt).pages
        table += self.fresh(-(-len(tokens) // self.size) - len(table))
        return self.tree.insert(ints(*tokens), table, salt).node

    def length(self, *tokens: int, salt: str = "") -> int:
        return self.tree.match(ints(*tokens), salt).length

    def check(self) -> None:
        self.tree.check()
        self.pages.check([*self.tree.pages_held(), *self.held])


def ints(*tokens: int) -> array[int]:
    return array("i", tokens)
