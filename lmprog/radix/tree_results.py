"""What the prefix tree answers: values that name a node and the pages that go with it."""

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

    `pages[first_taken:]` are the tree's now, those before stay whose they were.
    """

    node: Node
    first_taken: int


@dataclass(frozen=True, slots=True)
class Tail:
    """`page` is the caller's now, and its lock has moved to `node`."""

    page: int
    node: Node
