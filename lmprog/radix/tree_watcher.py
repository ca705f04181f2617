"""What the tree tells a watcher: which tokens it has now, and no longer has.

Nothing is called where nobody watches. A watcher must not change the tree.
"""

from __future__ import annotations

from typing import Protocol

from lmprog.radix.node import Node


class TreeWatcher(Protocol):
    """Told after each change of which tokens can be matched."""

    def added(self, leaf: Node) -> None:
        """The tree has the tokens of this new leaf."""
        ...

    def was_split(self, upper: Node, lower: Node) -> None:
        """`lower` has lost its first tokens to the new node `upper` above it."""
        ...

    def shortened(self, node: Node) -> None:
        """The node has lost its last tokens."""
        ...

    def removed(self, node: Node) -> None:
        """Nothing of this node, which was in the tree, can be matched any more. Its children are
        removed, too, before or after it."""
        ...
