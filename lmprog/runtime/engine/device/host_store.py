"""A second tier of pages in the host's pinned memory, beside a device.

A page goes there and comes back by the kernel `kv_copy` and one copy, in the order of all other
work, so nobody waits: the host has only begun it when `store` and `finished` return, and the next
step finds what came before. What was stored is never read by the host. Knows pages and handles;
decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from lmprog.runtime.engine.device.tree_attention import TreeAttention
from lmprog.runtime.tier.page_store import KnownPage, LoadEnd, PageCosts, PageKey

_MEASURED = 3
"""Pages stored and loaded when it is opened; the fastest counts."""


class HostStore:
    """See `PageStore`. The memory is taken at once."""

    def __init__(self, attention: TreeAttention, num_bytes: int) -> None:
        """As many pages as `num_bytes` hold, perhaps none."""
        self._attention = attention
        self._driver = attention.driver
        size = attention.bytes_per_page
        self.num_handles = num_bytes // size
        self._contents = self._driver.pinned(max(1, self.num_handles) * size).view(-1, size)
        self._staging = self._driver.memory(size)
        self._keys: dict[int, PageKey] = {}
        self._loads: list[tuple[int, list[tuple[int, int]]]] = []
        """Tickets with the handles and pages of each."""
        self._num_loads = 0
        self.costs = self._measured() if self.num_handles else PageCosts(0.0, 0.0)

    def known(self) -> list[KnownPage]:
        return []

    def store(self, handle: int, page: int, key: PageKey, wait: float = 0.0) -> bool:
        self._keys[handle] = key
        self._take(handle, page)
        return True

    def load(self, handles: Sequence[int], pages: Sequence[int], keys: Sequence[PageKey]) -> int:
        """What is not stored under its key ends the load."""
        self._num_loads += 1
        good: list[tuple[int, int]] = []
        for handle, page, key in zip(handles, pages, keys, strict=True):
            kept = self._keys.get(handle)
            if kept is None or not key.is_served_by(kept):
                break
            good.append((handle, page))
        self._loads.append((self._num_loads, good))
        return self._num_loads

    def finished(self) -> list[LoadEnd]:
        """The loads are begun here, and are done before whatever is begun afterwards."""
        loads, self._loads = self._loads, []
        for _, pages in loads:
            for handle, page in pages:
                self._give(handle, page)
        return [LoadEnd(ticket, len(pages)) for ticket, pages in loads]

    def abandon(self, ticket: int) -> None:
        self._loads = [(one, [] if one == ticket else pages) for one, pages in self._loads]

    def forget(self, handles: Sequence[int]) -> None:
        for handle in handles:
            self._keys.pop(handle, None)

    def close(self) -> None:
        """Nothing of it outlives the runtime."""

    def _take(self, handle: int, page: int) -> None:
        self._attention.copy_page(page, self._staging, is_gather=True)
        self._driver.copy(self._contents[handle], self._staging)

    def _give(self, handle: int, page: int) -> None:
        self._driver.copy(self._staging, self._contents[handle])
        self._attention.copy_page(page, self._staging, is_gather=False)

    def _measured(self) -> PageCosts:
        """With page 0, which nobody has written yet, and which keeps its contents."""
        return PageCosts(self._seconds(self._take), self._seconds(self._give))

    def _seconds(self, move: Callable[[int, int], None]) -> float:
        found = []
        for _ in range(_MEASURED):
            self._driver.event().wait()
            began = time.perf_counter()
            move(0, 0)
            self._driver.event().wait()
            found.append(time.perf_counter() - began)
        return min(found)
