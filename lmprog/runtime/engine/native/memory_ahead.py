"""Has the system give the memory of pages before a step writes to them.

The first write to each huge page of the system's takes milliseconds, and running streams would wait
for it in the middle of a step. Pages are allocated from the lowest on, those that were freed first
(`radix.pages`), so what comes next lies behind the highest page ever written: its memory is asked
for in a thread, while steps go on. Knows numbers of pages; what is in them stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

TOKENS_AHEAD = 1024
"""So much memory is asked for ahead, at most."""


class MemoryAhead:
    """`populate(first, last)` has the memory of these pages given; False: the system cannot, and is
    not asked again. One thread calls the methods.
    """

    def __init__(
        self, populate: Callable[[int, int], bool], num_pages: int, page_size: int
    ) -> None:
        self._populate = populate
        self._num_pages = num_pages
        self._num_ahead = max(1, TOKENS_AHEAD // page_size)
        self._given = 0  # pages below were asked for
        self._asked: Future[bool] | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._is_possible = True

    def reach(self, page: int) -> None:
        """A step writes to pages up to this one. Asks for more memory once half of what was asked
        for ahead is written to.
        """
        if page + 1 + self._num_ahead // 2 <= self._given or self._given == self._num_pages:
            return
        if self._asked is not None:
            if not self._asked.done():
                return
            self._is_possible = self._asked.result()
        if self._is_possible:
            first, self._given = self._given, min(page + 1 + self._num_ahead, self._num_pages)
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "kv-memory")
            self._asked = self._thread.submit(self._populate, first, self._given)

    def restart(self) -> None:
        """Memory of pages is about to be given back: nothing counts as given. Returns when nothing
        is being given any more.
        """
        if self._asked is not None:
            self._asked.result()
        self._given = 0

    def close(self) -> None:
        """Ends the thread."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
