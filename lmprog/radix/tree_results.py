"""Return values of the prefix tree: nodes and the pages that go with them.

They are tuples, because a step makes several for each sequence, and a frozen dataclass takes four
times as long to make.
"""

from __future__ import annotations

from typing import NamedTuple

from lmprog.radix.node import Node


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
