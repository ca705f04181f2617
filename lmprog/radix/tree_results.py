"""Return values of the prefix tree: nodes and the pages that go with them."""

from __future__ import annotations

from dataclasses import dataclass

from lmprog.radix.node import Node


@dataclass(frozen=True, slots=True)
class Match:
    """The longest known prefix. `length` may lie inside `node`.

    `pages` are the `length // page_size` whole pages. `partial` holds the last `length % page_size`
    matched tokens in its first slots; None when there are none.
    """

    node: Node
    length: int
    pages: list[int]
    partial: int | None


@dataclass(frozen=True, slots=True)
class Inserted:
    """The inserted tokens end in `node`.

    The tree owns `pages[first_taken:]` now; the owner of those before has not changed.
    """

    node: Node
    first_taken: int


@dataclass(frozen=True, slots=True)
class Tail:
    """The caller owns `page` now, and its lock has moved to `node`."""

    page: int
    node: Node
