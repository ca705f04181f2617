"""Rebuilds the index of a store that was opened again, from the keys of its pages.

Each page names what comes before it by its `parent`. A page counts if all before it are there too;
of two pages with the same contents the one written later counts. Knows keys and the tree's verbs.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from lmprog.radix import PageAllocator, RadixTree
from lmprog.runtime.tier.page_store import TOKEN_BYTES, KnownPage, PageKey


def rebuild(
    index: RadixTree, handles: PageAllocator, known: Sequence[KnownPage], page_size: int
) -> int:
    """Inserts the paths of `known` into the empty `index`, those written last as used last. Returns
    how many pages it has then.
    """
    newest: dict[PageKey, KnownPage] = {}
    for one in sorted(known, key=lambda one: one.age):
        newest.pop(one.key, None)  # it stands where the newest was written
        newest[one.key] = one
    by_age = list(newest.values())
    whole = {one.key.id: one for one in by_age if len(one.key.tokens) == page_size * TOKEN_BYTES}
    parents = {one.key.parent for one in by_age}
    handles.allocate(handles.num_pages)
    for one in by_age:
        is_last = len(one.key.tokens) < page_size * TOKEN_BYTES or one.key.id not in parents
        if is_last and (line := _path_to(one, whole)):
            tokens = array("i", b"".join(page.key.tokens for page in line))
            index.insert(tokens, [page.handle for page in line], line[0].key.parent.hex())
    handles.keep_only(index.pages_held())
    return index.num_cached


def _path_to(last: KnownPage, whole: dict[bytes, KnownPage]) -> list[KnownPage]:
    """The pages from the first to `last`; empty where one is missing."""
    line = [last]
    while line[-1].key.index:
        before = whole.get(line[-1].key.parent)
        if before is None or before.key.index != line[-1].key.index - 1:
            return []
        line.append(before)
    return line[::-1]
