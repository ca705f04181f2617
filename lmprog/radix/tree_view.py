"""A bounded view of a prefix tree for monitoring: its largest nodes, and what was left out.

It changes nothing and does not count as a use. Its cost depends on what it shows and not on the
size of the tree; to show a part, that part's node is looked for first. Knows nodes; knows no text,
no sequences and no wire.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from lmprog.radix.node import Node
from lmprog.radix.tree import RadixTree

VISITED_PER_SHOWN = 4
VISITED_AT_LEAST = 100
"""Bound on the nodes visited: so many for each one shown, plus a constant."""


@dataclass(frozen=True, slots=True)
class TreeView:
    """The parent of `nodes[i]` is `nodes[parents[i]]`, or its salt's root where that is -1. Parents
    come first.
    """

    nodes: list[Node]
    parents: list[int]
    num_tokens: int
    """Of the nodes shown."""
    num_pages: int
    nodes_left_out: int
    pages_left_out: int
    """Pages that the tree refs elsewhere, those of discarded nodes that somebody still stands on
    included.
    """


def view_tree(tree: RadixTree, most: int, below: int = 0) -> TreeView:
    """At most `most` nodes: repeatedly the one with the most tokens whose parent is shown. With
    `below`, only the node of that number and those below it; none where it is gone.

    Of very many children only the newest are considered.
    """
    nodes: list[Node] = []
    parents: list[int] = []
    frontier: list[tuple[int, int, int, Node]] = []
    to_visit = VISITED_PER_SHOWN * most + VISITED_AT_LEAST
    num_seen = num_tokens = num_pages = 0

    def visit_children(node: Node, index: int) -> None:
        nonlocal num_seen
        for child in islice(reversed(node.children.values()), max(0, to_visit - num_seen)):
            num_seen += 1
            heapq.heappush(frontier, (child.begin - child.end, num_seen, index, child))

    if below:
        top = _numbered(tree, below)
        if top is not None:
            heapq.heappush(frontier, (0, 0, -1, top))
    else:
        for root in tree.roots():
            visit_children(root, -1)
    while frontier and len(nodes) < most:
        _, _, parent, node = heapq.heappop(frontier)
        visit_children(node, len(nodes))
        nodes.append(node)
        parents.append(parent)
        num_tokens += node.end - node.begin
        num_pages += pages_of(node)
    return TreeView(
        nodes,
        parents,
        num_tokens,
        num_pages,
        tree.num_nodes - len(nodes),
        tree.num_cached - num_pages,
    )


def _numbered(tree: RadixTree, number: int) -> Node | None:
    """The node of that number, if the tree still has it."""
    todo = list(tree.roots())
    while todo:
        node = todo.pop()
        if node.number == number:
            return node
        todo.extend(node.children.values())
    return None


def pages_of(node: Node) -> int:
    """Number of pages that `node` owns, its end page included."""
    return len(node.pages) + (node.end_page is not None)


def path(node: Node) -> Iterator[Node]:
    """`node` and its ancestors, without the root."""
    while node.parent is not None:
        yield node
        node = node.parent
