"""Which pages of the KV pool are free, and which are handed out.

It knows page numbers only: not what is in a page, nor who holds it. Whoever takes a page owns it
until it is given back; a page given twice is a broken invariant of ours and stops the program.
"""

from __future__ import annotations

from collections.abc import Iterable


class PageAllocator:
    """Hands out the pages `0 .. num_pages`. Taking and giving `n` pages costs O(n) whatever the
    size of the pool.
    """

    def __init__(self, num_pages: int) -> None:
        assert num_pages >= 0, f"a pool of {num_pages} pages"
        self.num_pages = num_pages
        self._free = list(
            range(num_pages - 1, -1, -1)
        )  # a stack: the page freed last is handed out first
        self._taken: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int] | None:
        """`count` pages that are the caller's from now on; None when fewer are free, and nothing is
        taken then.
        """
        assert count >= 0, f"{count} pages asked for"
        if count > len(self._free):
            return None
        rest = len(self._free) - count
        pages = self._free[rest:]
        pages.reverse()
        del self._free[rest:]
        self._taken.update(pages)
        return pages

    def give(self, pages: Iterable[int]) -> None:
        """Take `pages` back from whoever held them."""
        back = list(pages)
        rest = len(self._taken) - len(back)
        self._taken.difference_update(back)
        assert len(self._taken) == rest, (
            f"a page given back was free already, or came twice: {back}"
        )
        self._free.extend(reversed(back))

    def check(self, held: Iterable[int]) -> None:
        """`held` are the pages of all owners together: with the free ones they are all pages, each
        once.
        """
        owned = list(held)
        twice = len(owned) - len(set(owned))
        assert not twice, f"{twice} pages have two owners"
        assert set(owned) == self._taken, (
            f"owned by nobody, or free: {sorted(set(owned) ^ self._taken)[:16]}"
        )
        free = set(self._free)
        assert len(free) == len(self._free), "a page is free twice"
        assert not free & self._taken, "a page is free and taken"
        assert free | self._taken == set(range(self.num_pages)), "a page is lost"
