"""Gives memory back to the system when a runtime has had no work for a while.

The cached prefixes that no branch stands on are given up (where there is a second tier, it has
them), the memory of all free pages and of free slots of states goes back, and so does what the
allocator of C keeps. Knows the scheduler's tree and pages, and who can return their memory; has no
clock of its own.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Sequence

from lmprog.runtime.scheduling.scheduler import Scheduler


class IdleMemory:
    """`give_back` returns the memory of pages, behind whose numbers are those of the parts of
    states. It happens once after `seconds` of each pause.
    """

    def __init__(
        self, scheduler: Scheduler, give_back: Callable[[Sequence[int]], None], seconds: float
    ) -> None:
        self._scheduler = scheduler
        self._give_back = give_back
        self._seconds = seconds
        self._steps = -1
        self._since = 0.0
        self._is_done = False

    def turn(self, now: float) -> None:
        """A turn without work."""
        steps = self._scheduler.stats.steps
        if steps != self._steps:
            self._steps, self._since, self._is_done = steps, now, False
        if self._is_done or now - self._since < self._seconds:
            return
        self._is_done = True
        tree = self._scheduler.tree
        self._scheduler.tables.scored.clear()
        self._scheduler.stats.evicted_pages += tree.evict(tree.num_evictable - tree.num_pinned)
        pages, states = self._scheduler.pages, self._scheduler.tables.states
        pages.trim()
        free = pages.free_pages()
        if states is not None:
            free += states.free_parts(pages.num_pages)
        self._give_back(free)
        pages.prefer_low()  # little memory is taken again for little work
        trim()


def trim() -> None:
    """Returns what Python and the allocator of C keep of freed memory; the latter where it is
    glibc's.
    """
    gc.collect()
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
