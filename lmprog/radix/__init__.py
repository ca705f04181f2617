"""The prefix tree of pages: computed prefixes, locks, pins and eviction order.

Integers only: it knows tokens and page numbers, and neither tensors, text, branches nor clocks.
"""

from lmprog.radix.node import Node, Tokens, end_of_rest
from lmprog.radix.references import PageAllocator
from lmprog.radix.tree import Inserted, Match, RadixTree, Tail
from lmprog.radix.tree_view import TreeView, pages_of, path, view_tree

__all__ = ["Inserted", "Match", "Node", "PageAllocator", "RadixTree", "Tail", "Tokens", "TreeView"]
__all__ += ["end_of_rest", "pages_of", "path", "view_tree"]
