"""Allocates the pages of the KV pool.

Knows page numbers only. A page belongs to whoever allocated it until it is freed; freeing a page
twice is a bug in lmprog and raises.
"""

from __future__ import annotations

from collections.abc import Iterable


class PageAllocator:
    """The pages `0 .. num_pages`. Allocating and freeing `n` pages costs O(n)."""

    def __init__(self, num_pages: int) -> None:
        assert num_pages >= 0, f"a pool of {num_pages} pages"
        self.num_pages = num_pages
        self._free = list(
            range(num_pages - 1, -1, -1)
        )  # a stack: the page freed last is allocated first
        self._allocated: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def free_pages(self) -> list[int]:
        """Their numbers, in ascending order."""
        return sorted(self._free)

    def allocate(self, count: int) -> list[int] | None:
        """`count` pages; None, and nothing is allocated, when fewer are free."""
        assert count >= 0, f"{count} pages requested"
        if count > len(self._free):
            return None
        rest = len(self._free) - count
        pages = self._free[rest:]
        pages.reverse()
        del self._free[rest:]
        self._allocated.update(pages)
        return pages

    def free(self, pages: Iterable[int]) -> None:
        """`pages` are free again."""
        back = list(pages)
        rest = len(self._allocated) - len(back)
        self._allocated.difference_update(back)
        assert len(self._allocated) == rest, f"a page was freed twice: {back}"
        self._free.extend(reversed(back))

    def prefer_low(self) -> None:
        """The lowest free pages are allocated first, so that those in use lie close together."""
        self._free.sort(reverse=True)

    def keep_only(self, held: Iterable[int]) -> None:
        """Every page but those `held`, which are allocated, is free."""
        kept = set(held)
        assert kept <= self._allocated, "a page is held though it is free"
        self.free(sorted(self._allocated - kept))

    def check(self, held: Iterable[int]) -> None:
        """`held` are the pages of all owners: with the free ones they must be all pages, each
        once.
        """
        owned = list(held)
        twice = len(owned) - len(set(owned))
        assert not twice, f"{twice} pages have two owners"
        assert set(owned) == self._allocated, (
            f"leaked, or owned though free: {sorted(set(owned) ^ self._allocated)[:16]}"
        )
        free = set(self._free)
        assert len(free) == len(self._free), "a page is free twice"
        assert not free & self._allocated, "a page is free and taken"
        assert free | self._allocated == set(range(self.num_pages)), "a page is lost"
