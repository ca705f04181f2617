"""The prefix tree of pages: what has been computed, who stands on it, what is forgotten first.

Integers only: it knows tokens and page numbers, and neither tensors, text, branches nor clocks.
"""

from lmprog.radix.node import Node, Tokens
from lmprog.radix.pages import PageAllocator
from lmprog.radix.tree import RadixTree
from lmprog.radix.tree_results import Inserted, Match, Tail
from lmprog.radix.tree_view import Picture, pages_of, path, picture_of

__all__ = ["Inserted", "Match", "Node", "PageAllocator", "Picture", "RadixTree", "Tail", "Tokens"]
__all__ += ["pages_of", "path", "picture_of"]
