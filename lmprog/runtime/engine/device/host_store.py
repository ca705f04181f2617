"""A second tier of pages in the host's pinned memory, beside a device.

The kernel `kv_copy` writes and reads that memory where it is. A page goes there in the order of all
other work; it comes back beside the next step, layer by layer, and a layer waits for its own part.
The host waits for nothing: it has only begun it when `store` and `finished` return. What was stored
is never read by the host. Knows pages and handles; decides nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from lmprog.runtime.engine.device.device_memory import DeviceMemoryFull
from lmprog.runtime.engine.device.tree_attention import TreeAttention
from lmprog.runtime.tier.page_store import KnownPage, LoadEnd, PageCosts, PageKey

log = logging.getLogger("lmprog")

_MEASURED = 3
"""Pages stored and loaded when it is opened; the fastest counts."""


class HostStore:
    """See `PageStore`. The memory is taken at once."""

    is_shared = False

    def __init__(self, attention: TreeAttention, num_bytes: int) -> None:
        """As many pages as `num_bytes` hold, perhaps none."""
        self._attention = attention
        self._driver = attention.driver
        size = attention.bytes_per_page
        self.num_handles = num_bytes // size
        self._contents = self._driver.pinned(max(1, self.num_handles) * size).view(-1, size)
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
        """The loads are begun here; whatever is begun afterwards finds their pages. Nothing is
        loaded where the device has no memory for them.
        """
        loads, self._loads = self._loads, []
        try:
            self._give([pair for _, pages in loads for pair in pages])
        except DeviceMemoryFull as error:
            log.warning("pages of the host find no memory on the device: %s", error)
            return [LoadEnd(ticket, 0) for ticket, _ in loads]
        return [LoadEnd(ticket, len(pages)) for ticket, pages in loads]

    def abandon(self, ticket: int, *, is_patient: bool = False) -> bool:
        self._loads = [(one, [] if one == ticket else pages) for one, pages in self._loads]
        return True

    def find(self, keys: Sequence[PageKey], states: Sequence[PageKey] = ()) -> int | None:
        return None

    def forget(self, handles: Sequence[int], keys: Sequence[PageKey]) -> None:
        for handle in handles:
            self._keys.pop(handle, None)

    def close(self) -> None:
        """Nothing of it outlives the runtime."""

    def _take(self, handle: int, page: int) -> None:
        self._attention.send_page(page, self._contents[handle])

    def _give(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Handles to pages."""
        if pairs:
            handles, pages = zip(*pairs, strict=True)
            self._attention.bring_pages(pages, self._contents, handles)

    def _measured(self) -> PageCosts:
        """With page 0, which nobody has written yet, and which keeps its contents."""
        return PageCosts(
            self._seconds(lambda: self._take(0, 0)), self._seconds(lambda: self._give([(0, 0)]))
        )

    def _seconds(self, move: Callable[[], None]) -> float:
        found = []
        for _ in range(_MEASURED):
            self._driver.event().wait()
            began = time.perf_counter()
            move()
            self._attention.join_pages()
            self._driver.event().wait()
            found.append(time.perf_counter() - began)
        return min(found)
