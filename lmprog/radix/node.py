"""A node of the prefix tree: a run of tokens and the pages that hold their keys and values.

A node knows its place, its contents and its counters. The tree changes them.

Which pages a node owns. Position `i` of a path always lives in slot `pages[i // page_size] *
page_size + i % page_size` of the path's page table. A node covers the positions `begin .. end`, and
either may lie inside a page.

- A node owns the page in which it begins. The slots before its first token hold copies of its
  ancestors' last tokens, written when the node was computed. This makes sharing exact to the token
  for every page size.
- A node with children owns only pages that it fills to the end (`begin // page_size .. end //
  page_size`). The tokens after the last of those are also in the first page of each child. So the
  pages of a path, one after the other, are its page table.
- A leaf also owns the page in which it ends.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

Tokens: TypeAlias = "array[int] | memoryview"  # of 32-bit integers, format "i"

TOKEN_BYTES = 4


class Past(NamedTuple):
    """How the path to a node was used by requests that have ended."""

    at: float
    """When the last one ended."""
    turn: int
    """Requests that each went on where the one before it had ended; 0: none ended here."""
    prompt_end: int
    """Where the last one's prompt ended: who goes on has at least so many tokens."""
    users: int
    """Requests that did not go on from one before them."""
    end: int
    """Where the last one ended, as far as this node was on its way: it may be evicted since."""

    def up_to(self, position: int) -> Past:
        """Of a part of the path that ends at `position`, where the last request may go on."""
        turn = self.turn if position >= self.prompt_end else 0
        return self._replace(turn=turn, end=position)


class Node:
    """One node. `parent is None` marks the root of a salt; a root has no tokens and no pages."""

    __slots__ = (
        "__weakref__",
        "alive",
        "begin",
        "children",
        "end",
        "end_page",
        "kept_at",
        "key",
        "kind",
        "locks",
        "locks_here",
        "newer",
        "number",
        "older",
        "pages",
        "parent",
        "past",
        "pins",
        "pins_here",
        "reserves_page",
        "salt",
        "saved_to",
        "tail_child",
        "used",
    )

    older: Node
    newer: Node
    """Neighbours in the eviction order; set only while the node is queued there."""

    def __init__(
        self, parent: Node | None, salt: str, begin: int, key: bytes, pages: list[int]
    ) -> None:
        self.parent = parent
        self.salt = salt
        self.begin = begin
        self.end = begin + len(key) // TOKEN_BYTES
        # the tokens begin .. end, 4 bytes each: whole runs are compared by one memcmp
        self.key = key
        self.pages = pages
        # the page in which it ended before it got a child; kept while the node itself is locked
        self.end_page: int | None = None
        self.children: dict[int, Node] = {}  # by first token
        # the child from whose first page the tokens after the last whole page are read
        self.tail_child: Node | None = None
        self.locks = 0  # at this node or below
        self.locks_here = 0  # at this node itself
        self.pins = 0  # at this node or below
        self.pins_here = 0
        # identifies it in the tree; when a node is split, the upper part keeps the number
        self.number = 0
        # up to here the path was kept elsewhere too when that was looked up (`RadixTree.on_evict`)
        self.saved_to = 0
        # and, of a second tree, the node where all of the path is kept
        self.kept_at: Node | None = None
        # time of the last use (`RadixTree.tick`); not updated while it is locked
        self.used = 0.0
        # its queue in the eviction order, and what the policy that chose it knows of its uses
        self.kind = 0
        self.past: Past | None = None
        # evicting everything below it would have to leave one page to this node
        self.reserves_page = False
        # False: removed from the tree. `parent` still leads to what is left of the path
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
        assert self.begin <= length <= self.end, f"{length} is not a position of {self}"
        if not length % page_size:
            return None
        index = length // page_size - self.begin // page_size
        if index < len(self.pages):
            return self.pages[index]
        if self.end_page is not None:
            return self.end_page
        tail_child = self.tail_child
        while tail_child is not None and not tail_child.pages:
            tail_child = tail_child.tail_child
        assert tail_child is not None, f"no page refs the end of {self}"
        return tail_child.pages[0]

    def shorten(self, end: int) -> None:
        """Drop the tokens from `end` on. The caller adjusts the pages."""
        assert self.begin < end <= self.end
        self.key = self.key[: (end - self.begin) * TOKEN_BYTES]
        self.end = end

    def __repr__(self) -> str:
        state = "" if self.alive else " dead"
        counts = f"locks={self.locks} pins={self.pins}"
        shape = f"pages={self.pages} children={len(self.children)}"
        return f"<Node {self.begin}..{self.end}{state} {shape} {counts}>"


def end_of_rest(node: Node) -> int:
    """Where what is left of the path to `node`, alive or not, ends."""
    while not node.alive and node.parent is not None:
        node = node.parent
    return node.end


def can_end_at(node: Node, boundary: int) -> bool:
    """Whether only the one lock holder of `node` would lose tokens if its path were cut at
    `boundary`, in its last page.
    """
    while node.begin > boundary:
        parent = node.parent
        assert parent is not None
        if len(parent.children) > 1 or parent.end_page is not None:
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
    """Number of tokens at the start of `key` that equal those of `other` from token `offset` on.

    A binary search finds the first difference: each probe is one memcmp.
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
