"""A bounded look at a prefix tree: its largest nodes, each with its parent, and what was left out.

It changes nothing and counts as no use. It costs time in proportion to what it shows, not to the
tree: a tree of a million nodes is looked at as fast as one of a few thousand. Knows nodes; knows no
text, no sequences and no wire.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from lmprog.radix.node import Node
from lmprog.radix.tree import RadixTree

LOOKED_AT_PER_SHOWN = 4
LOOKED_AT_AT_LEAST = 100
"""Nodes that are looked at for each one shown, and besides, in a tree whose nodes have very many
children.
"""


@dataclass(frozen=True, slots=True)
class Picture:
    """`nodes[i]` hangs below `nodes[parents[i]]`, or below its salt's root where that is -1;
    parents come first.
    """

    nodes: list[Node]
    parents: list[int]
    num_tokens: int
    """Of the nodes shown."""
    num_pages: int
    nodes_left_out: int
    pages_left_out: int
    """Pages that the tree holds elsewhere, those of discarded nodes that somebody still stands on
    included.
    """


def picture_of(tree: RadixTree, most: int) -> Picture:
    """At most `most` nodes: of those whose parents are shown, always the one with the most tokens
    first.

    Among very many children those that came last are looked at.
    """
    nodes: list[Node] = []
    parents: list[int] = []
    frontier: list[tuple[int, int, int, Node]] = []
    to_look_at = LOOKED_AT_PER_SHOWN * most + LOOKED_AT_AT_LEAST
    num_seen = num_tokens = num_pages = 0

    def look_below(node: Node, index: int) -> None:
        nonlocal num_seen
        for child in islice(reversed(node.children.values()), max(0, to_look_at - num_seen)):
            num_seen += 1
            heapq.heappush(frontier, (child.begin - child.end, num_seen, index, child))

    for root in tree.roots():
        look_below(root, -1)
    while frontier and len(nodes) < most:
        _, _, parent, node = heapq.heappop(frontier)
        look_below(node, len(nodes))
        nodes.append(node)
        parents.append(parent)
        num_tokens += node.end - node.begin
        num_pages += pages_of(node)
    return Picture(
        nodes,
        parents,
        num_tokens,
        num_pages,
        tree.num_nodes - len(nodes),
        tree.num_cached - num_pages,
    )


def pages_of(node: Node) -> int:
    """Pages that `node` owns, the one it keeps for those who stand at its end included."""
    return len(node.pages) + (node.spare is not None)


def path(node: Node) -> Iterator[Node]:
    """`node` and what is above it, the root left out."""
    while node.parent is not None:
        yield node
        node = node.parent
