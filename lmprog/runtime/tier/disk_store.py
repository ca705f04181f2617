"""A second tier on a file: a thread writes and reads it, so that the loop never waits for a disk.

The thread does everything in the order in which it was asked, so a load sees what was stored before
it. Contents are copied from and to the pool's pages by the loop alone, between two steps. What
cannot be written or read costs a line in the log and is not kept; it is never an error.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from lmprog.runtime.tier.page_file import HEADER_BYTES, PageFile
from lmprog.runtime.tier.page_store import KnownPage, LoadEnd, PageKey, PageMemory

log = logging.getLogger("lmprog")

MOST_STAGED_BYTES = 32 << 20
"""Contents in memory on the way to the file, and as much on the way back; at least one page."""
RETRY_SECONDS = 10.0
"""After a page could not be written, so long none is tried."""
CLOSE_SECONDS = 5.0
"""What is not written so long after the end is given up."""
MEASURED = 16
"""Pages last written, and last read. The fastest of them counts: the others waited for processors.
"""


class BytesUnderWay:
    """Counts bytes under way in one direction."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0
        self._changed = threading.Condition()

    def try_add(self, num_bytes: int) -> bool:
        """False, and nothing is added, where it would be too much."""
        with self._changed:
            if self._bytes and self._bytes + num_bytes > self._most:
                return False
            self._bytes += num_bytes
            return True

    def add(self, num_bytes: int) -> None:
        """Waits until there is room."""
        with self._changed:
            while self._bytes and self._bytes + num_bytes > self._most:
                self._changed.wait()
            self._bytes += num_bytes

    def remove(self, num_bytes: int) -> None:
        with self._changed:
            self._bytes -= num_bytes
            self._changed.notify_all()


class DiskStore:
    """See `PageStore`. The file is its own from now on."""

    def __init__(self, file: PageFile, memory: PageMemory, most_bytes: int) -> None:
        """The file grows to `most_bytes` at most, the header included."""
        self.num_handles = max(0, (most_bytes - HEADER_BYTES) // file.record_bytes)
        self.seconds_per_page = 0.0
        self._memory = memory
        self._file = file
        file.resize(self.num_handles)
        self._known = list(file.known())
        self._age = max((one.age for one in self._known), default=0)
        self._num_loads = 0
        self._waits = False
        self._refused_until = 0.0
        self._measures: dict[str, deque[float]] = {
            what: deque(maxlen=MEASURED) for what in ("write", "read")
        }
        self._writing = BytesUnderWay(MOST_STAGED_BYTES)
        self._reading = BytesUnderWay(MOST_STAGED_BYTES)
        self._read: deque[tuple[int, bytes] | LoadEnd] = deque()
        """Pages with their contents, and after the last one of a load its end."""
        self._todo: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="lmprog-kv-disk", daemon=True)
        self._thread.start()

    def known(self) -> list[KnownPage]:
        known, self._known = self._known, []
        return known

    def store(self, handle: int, page: int, key: PageKey) -> bool:
        if time.monotonic() < self._refused_until:
            return False
        if self._waits:
            self._writing.add(self._memory.page_bytes)
        elif not self._writing.try_add(self._memory.page_bytes):
            return False
        contents = self._memory.read(page)
        self._age += 1
        age = self._age
        self._todo.put(lambda: self._write(handle, key, age, contents))
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
                continue
            page, contents = one
            self._memory.write(page, contents)
            self._reading.remove(len(contents))
        return ended

    def forget(self, handles: Sequence[int]) -> None:
        self._todo.put(lambda: self._erase(handles))

    def wait_for_room(self) -> None:
        self._waits = True

    def close(self) -> None:
        self._todo.put(None)
        self._thread.join(CLOSE_SECONDS)

    # --- in the thread

    def _work(self) -> None:
        while (do := self._todo.get()) is not None:
            do()
        self._file.close()

    def _write(self, handle: int, key: PageKey, age: int, contents: bytes) -> None:
        began = time.perf_counter()
        try:
            self._file.write(handle, key, age, contents)
            self._measured("write", began)
        except OSError as error:
            self._failed("written", error)
        finally:
            self._writing.remove(len(contents))

    def _load(self, ticket: int, wanted: list[tuple[int, int, PageKey]]) -> None:
        num_good = 0
        try:
            for handle, page, key in wanted:
                began = time.perf_counter()
                contents = self._file.read(handle, key)
                if contents is None:
                    log.warning("a page of the second tier is not what was stored; it is dropped")
                    break
                self._measured("read", began)
                self._reading.add(len(contents))
                self._read.append((page, contents))
                num_good += 1
        except OSError as error:
            self._failed("read", error)
        finally:
            self._read.append(LoadEnd(ticket, num_good))

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
        """Both add up to the cost of a page."""
        self._measures[what].append(time.perf_counter() - began)
        self.seconds_per_page = sum(min(some, default=0.0) for some in self._measures.values())
