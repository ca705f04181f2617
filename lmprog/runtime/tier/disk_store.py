"""A second tier on a file: a thread writes and reads it, so that the loop never waits for a disk.

The thread does everything in the order in which it was asked, so a load sees what was stored before
it. Contents are copied from and to the pool's pages by the loop alone, between two steps; on their
way they are in buffers, a bounded number of which is used again and again. What cannot be written
or read costs a line in the log and is not kept; it is never an error.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from lmprog.runtime.tier.page_file import HEADER_BYTES, PageFile
from lmprog.runtime.tier.page_store import KnownPage, LoadEnd, PageCosts, PageKey, PageMemory

log = logging.getLogger("lmprog")

KEPT_BYTES = 4 << 20
"""Of buffers that nobody uses; the others are given back to the system."""

MOST_STAGED_BYTES = 32 << 20
"""Contents in memory on the way to the file, and as much on the way back; at least one page."""
RETRY_SECONDS = 10.0
"""After a page could not be written, so long none is tried."""
CLOSE_SECONDS = 5.0
"""What is not written so long after the end is given up."""
MEASURED = 16
"""Pages last copied, written, read. The fastest of them counts: the others waited for processors.
"""


class StagingBuffers:
    """Buffers of `size` bytes each, `most_bytes` of them at a time; at least one."""

    def __init__(self, size: int, most_bytes: int) -> None:
        self._size = size
        self._num_left = max(1, most_bytes // size)
        self._num_kept = max(1, KEPT_BYTES // size)
        self._unused: list[bytearray] = []
        self._changed = threading.Condition()

    def take(self, wait: float | None) -> bytearray | None:
        """A buffer with anything in it; None where none is free for `wait` seconds (None: it waits
        until there is one).
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._num_left, wait):
                return None
            self._num_left -= 1
            return self._unused.pop() if self._unused else bytearray(self._size)

    def give(self, buffer: bytearray) -> None:
        """Nobody uses the buffer any more."""
        with self._changed:
            self._num_left += 1
            if len(self._unused) < self._num_kept:
                self._unused.append(buffer)
            self._changed.notify()


class DiskStore:
    """See `PageStore`. The file is its own from now on."""

    def __init__(self, file: PageFile, memory: PageMemory, most_bytes: int) -> None:
        """The file grows to `most_bytes` at most, the header included."""
        self.num_handles = max(0, (most_bytes - HEADER_BYTES) // file.record_bytes)
        self._memory = memory
        self._file = file
        file.resize(self.num_handles)
        self._known = list(file.known())
        self._age = max((one.age for one in self._known), default=0)
        self._num_loads = 0
        self._abandoned: set[int] = set()
        self._refused_until = 0.0
        self._measures: dict[str, deque[float]] = {
            what: deque(maxlen=MEASURED) for what in ("copy", "write", "read", "enter")
        }
        self._best = dict.fromkeys(self._measures, 0.0)
        self._writing = StagingBuffers(memory.page_bytes, MOST_STAGED_BYTES)
        self._reading = StagingBuffers(memory.page_bytes, MOST_STAGED_BYTES)
        self._read: deque[tuple[int, int, bytearray] | LoadEnd] = deque()
        """Loads, pages and their contents, and after the last page of a load its end."""
        self._todo: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="lmprog-kv-disk", daemon=True)
        self._thread.start()

    def known(self) -> list[KnownPage]:
        known, self._known = self._known, []
        return known

    @property
    def costs(self) -> PageCosts:
        """The parts that the loop does are in them, too."""
        best = self._best
        return PageCosts(best["copy"] + best["write"], best["read"] + best["enter"])

    def store(self, handle: int, page: int, key: PageKey, wait: float = 0.0) -> bool:
        began = time.perf_counter()
        if time.monotonic() < self._refused_until or (contents := self._writing.take(wait)) is None:
            return False
        self._memory.read(page, contents)
        self._age += 1
        age = self._age
        self._todo.put(lambda: self._write(handle, key, age, contents))
        self._measured("copy", began)
        return True

    def load(self, handles: Sequence[int], pages: Sequence[int], keys: Sequence[PageKey]) -> int:
        self._num_loads += 1
        ticket, wanted = self._num_loads, list(zip(handles, pages, keys, strict=True))
        self._todo.put(lambda: self._load(ticket, wanted))
        return ticket

    def finished(self) -> list[LoadEnd]:
        ended = []
        while self._read:
            one = self._read.popleft()
            if isinstance(one, LoadEnd):
                ended.append(one)
                self._abandoned.discard(one.ticket)
                continue
            began = time.perf_counter()
            ticket, page, contents = one
            if ticket not in self._abandoned:
                self._memory.write(page, contents)
            self._reading.give(contents)
            self._measured("enter", began)
        return ended

    def abandon(self, ticket: int) -> None:
        self._abandoned.add(ticket)

    def forget(self, handles: Sequence[int]) -> None:
        self._todo.put(lambda: self._erase(handles))

    def close(self) -> None:
        self._todo.put(None)
        self._thread.join(CLOSE_SECONDS)

    # --- in the thread

    def _work(self) -> None:
        while (do := self._todo.get()) is not None:
            do()
        self._file.close()

    def _write(self, handle: int, key: PageKey, age: int, contents: bytearray) -> None:
        began = time.perf_counter()
        try:
            self._file.write(handle, key, age, contents)
            self._measured("write", began)
        except OSError as error:
            self._failed("written", error)
        finally:
            self._writing.give(contents)

    def _load(self, ticket: int, wanted: list[tuple[int, int, PageKey]]) -> None:
        num_good = 0
        try:
            for handle, page, key in wanted:
                if ticket in self._abandoned:
                    break
                contents = self._read_page(handle, key)
                if contents is None:
                    log.warning("a page of the second tier is not what was stored; it is dropped")
                    break
                self._read.append((ticket, page, contents))
                num_good += 1
        except OSError as error:
            self._failed("read", error)
        finally:
            self._read.append(LoadEnd(ticket, num_good))

    def _read_page(self, handle: int, key: PageKey) -> bytearray | None:
        contents = self._reading.take(None)
        assert contents is not None, "it waits until there is one"
        began, is_good = time.perf_counter(), False
        try:
            is_good = self._file.read(handle, key, contents)
        finally:
            if not is_good:
                self._reading.give(contents)
        if not is_good:
            return None
        self._measured("read", began)
        return contents

    def _erase(self, handles: Sequence[int]) -> None:
        try:
            for handle in handles:
                self._file.erase(handle)
        except OSError as error:
            self._failed("written", error)

    def _failed(self, what: str, error: OSError) -> None:
        now = time.monotonic()
        if now >= self._refused_until:
            log.warning("pages of the second tier cannot be %s: %s", what, error)
        self._refused_until = now + RETRY_SECONDS

    def _measured(self, what: str, began: float) -> None:
        """One of the parts; each is measured by one thread alone."""
        measures = self._measures[what]
        measures.append(time.perf_counter() - began)
        self._best[what] = min(measures)
