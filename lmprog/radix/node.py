"""A node of the prefix tree: a stretch of tokens and the pages that hold their keys and values.

It knows its place, its contents and its counters, and changes none of them by itself: the tree
does, and keeps the counters of whole paths in step.

Which pages a node owns. Position `i` of a path always lives in slot `pages[i // page_size] *
page_size + i % page_size` of the path's page table. A node covers the positions `begin .. end`, and
either may lie inside a page.

- The page in which a node begins is the node's own, and holds every slot of that page up to the
  node's tokens: copies of its ancestors' last few tokens come first, written by whoever computed
  the node. This is what makes sharing exact to the token for every page size.
- A node with children owns only pages that it fills to the end (`begin // page_size .. end //
  page_size`). Its tokens after the last of those are readable from the first page of any child. So
  the pages of a path, laid one after the other, are its page table, with nothing twice.
- A leaf owns the page in which it ends, too.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from typing import TypeAlias

Tokens: TypeAlias = "array[int] | memoryview"  # of 32-bit integers, format "i"

TOKEN_BYTES = 4


class Node:
    """One node. `parent is None` marks the root of a salt; a root has no tokens and no pages."""

    __slots__ = (
        "__weakref__",
        "alive",
        "begin",
        "children",
        "end",
        "heir",
        "key",
        "locks",
        "locks_here",
        "newer",
        "number",
        "older",
        "owes",
        "pages",
        "parent",
        "pins",
        "pins_here",
        "salt",
        "spare",
        "used",
    )

    older: Node
    newer: Node
    """Neighbors in the order of eviction, set only while the node is in it (`eviction`)."""

    def __init__(
        self, parent: Node | None, salt: str, begin: int, key: bytes, pages: list[int]
    ) -> None:
        self.parent = parent
        self.salt = salt
        self.begin = begin
        self.end = begin + len(key) // TOKEN_BYTES
        self.key = (
            key  # the tokens begin .. end, 4 bytes each: whole runs are compared by one memcmp
        )
        self.pages = pages
        self.spare: int | None = (
            None  # the page in which it ended, kept for those who stand here though a child came
        )
        self.children: dict[int, Node] = {}  # by first token
        self.heir: Node | None = (
            None  # the child from whose first page the tokens after the last whole page are read
        )
        self.locks = 0  # hard holds at this node or below
        self.locks_here = 0  # of those, the ones at this node itself
        self.pins = 0  # soft holds at this node or below
        self.pins_here = 0
        self.number = (
            0  # the tree's name for it; a node that is split leaves its name to its upper part
        )
        self.used = (
            0.0  # moment of its last use (`RadixTree.tick`); tells nothing while it is locked
        )
        self.owes = (
            False  # the tree's: evicting all that is below would have to leave one page here
        )
        # False: taken out of the tree. `parent` then still leads to what is left of the path
        self.alive = True

    @property
    def tokens(self) -> memoryview:
        """The tokens `begin .. end`; read-only, format "i"."""
        return memoryview(self.key).cast("i")

    @property
    def first_token(self) -> int:
        return int.from_bytes(self.key[:TOKEN_BYTES], sys.byteorder, signed=True)

    def partial_page(self, length: int, page_size: int) -> int | None:
        """The page whose first slots hold the last `length % page_size` tokens of the path to
        `length`.

        None when there are no such tokens. `length` is a position of this node.
        """
        assert self.begin <= length <= self.end, f"{length} is no position of {self}"
        if not length % page_size:
            return None
        index = length // page_size - self.begin // page_size
        if index < len(self.pages):
            return self.pages[index]
        if self.spare is not None:
            return self.spare
        heir = self.heir
        while heir is not None and not heir.pages:
            heir = heir.heir
        assert heir is not None, f"no page holds the end of {self}"
        return heir.pages[0]

    def shorten(self, end: int) -> None:
        """Forget the tokens from `end` on. The pages are the caller's to mend."""
        assert self.begin < end <= self.end
        self.key = self.key[: (end - self.begin) * TOKEN_BYTES]
        self.end = end

    def __repr__(self) -> str:
        state = "" if self.alive else " dead"
        holds = f"locks={self.locks} pins={self.pins}"
        return f"<Node {self.begin}..{self.end}{state} pages={self.pages} children={len(self.children)} {holds}>"


def can_end_at(node: Node, boundary: int) -> bool:
    """Would nobody but its one holder lose tokens if the path to `node` were cut at `boundary`, in
    its last page?
    """
    while node.begin > boundary:
        parent = node.parent
        assert parent is not None
        if len(parent.children) > 1 or parent.spare is not None:
            return True
        if parent.locks > 1:
            return False
        node = parent
    return True


def subtree(top: Node) -> Iterator[Node]:
    """`top` and everything below it, parents before their children."""
    todo = [top]
    while todo:
        node = todo.pop()
        yield node
        todo.extend(node.children.values())


def common_run(key: bytes, other: bytes, offset: int) -> int:
    """How many tokens at the start of `key` are also in `other` from its token `offset` on.

    Halving finds the first difference: each probe is one memcmp, and all together read a token once
    or twice.
    """
    low, high = 0, min(len(key), len(other) - offset * TOKEN_BYTES) // TOKEN_BYTES
    start = offset * TOKEN_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        left, right = low * TOKEN_BYTES, middle * TOKEN_BYTES
        if key[left:right] == other[start + left : start + right]:
            low = middle
        else:
            high = middle - 1
    return low
