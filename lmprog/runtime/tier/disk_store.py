"""A second tier on a file, or on whatever answers as late as one: a thread writes and reads it, so
that the loop never waits for a disk or a network.

The thread does everything in the order in which it was asked, so a load sees what was stored before
it; only questions what there is (`find`) come first. Contents are copied from and to the pool's
pages by the loop alone, between two steps; on their way they are in buffers, a bounded number of
which is used again and again. What cannot be written or read costs a line in the log and is not
kept; it is never an error.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue

from lmprog.linux import is_runnable
from lmprog.runtime.tier.page_store import (
    TOKEN_BYTES,
    Contents,
    KnownPage,
    LoadEnd,
    PageCosts,
    PageKey,
    PageMemory,
    PageRecords,
    RecordFormat,
    parts_of,
)

MAGIC = b"lmprog-kv-pages\n"
VERSION = 3
HEADER_BYTES = 4096

_HEADER = struct.Struct(f"<{len(MAGIC)}sIII32s")


class FileInUse(OSError):
    """Another process has locked the file."""


class PageFile:
    """An open, locked file. Raises OSError for what the disk does, and for nothing it contains.

    A header, then one record of fixed size for each handle. A record has the key of its page, a
    checksum over that, the page's contents and a checksum over those. So a record that was half
    written when the process or the machine died is known as such, and nothing that was read is
    believed without its checksums. The header names what the pages were made by (`identity`); a
    file made by anything else is begun anew. A lock keeps other processes out.
    """

    is_shared = False

    def __init__(self, place: Path, identity: bytes, page_size: int, page_bytes: int) -> None:
        """`identity`: 32 bytes."""
        self._format = RecordFormat(page_size, page_bytes)
        self.record_bytes = self._format.record_bytes
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(place, flags, 0o600)
        try:
            self._lock(place)
            header = _HEADER.pack(MAGIC, VERSION, page_size, page_bytes, identity)
            self.is_new = os.pread(self._file, len(header), 0) != header
            if self.is_new:
                os.ftruncate(self._file, 0)
                self._write([header.ljust(HEADER_BYTES, b"\0")], 0)
        except OSError:
            self.close()
            raise

    def _lock(self, place: Path) -> None:
        if os.fstat(self._file).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "belongs to another user", str(place))
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FileInUse(error.errno, "is in use by another process", str(place)) from error

    def resize(self, num_handles: int) -> None:
        """Gives back what lies behind that many records."""
        most = HEADER_BYTES + num_handles * self.record_bytes
        if os.fstat(self._file).st_size > most:
            os.ftruncate(self._file, most)

    def known(self) -> Iterator[KnownPage]:
        """The records whose keys are whole. Their contents are looked at when they are read."""
        size = os.fstat(self._file).st_size - HEADER_BYTES
        for handle in range(-(-size // self.record_bytes)):
            meta = os.pread(self._file, self._format.meta_bytes, self._place_of(handle))
            if (found := self._format.parsed(meta)) is not None:
                age, key, _ = found
                yield KnownPage(handle, key, age)

    def count(self, keys: Sequence[PageKey]) -> int:
        """Nobody else writes here."""
        return 0

    def first(self, keys: Sequence[PageKey]) -> int | None:
        return None

    def write(self, handle: int, key: PageKey, age: int, contents: Contents) -> None:
        """One record."""
        self._write([self._format.meta(key, age, contents), contents], self._place_of(handle))

    def read(self, handle: int, key: PageKey, into: bytearray) -> bool:
        """See `PageRecords`."""
        meta = bytearray(self._format.meta_bytes)
        num_read = os.preadv(self._file, [meta, into], self._place_of(handle))
        is_whole = num_read == len(meta) + len(into)
        return is_whole and self._format.holds(bytes(meta), key, into)

    def erase(self, handles: Sequence[int], keys: Sequence[PageKey]) -> None:
        """The records are none any more."""
        for handle in handles:
            self._write([bytes(self._format.meta_bytes)], self._place_of(handle))

    def close(self) -> None:
        os.close(self._file)

    def _place_of(self, handle: int) -> int:
        return HEADER_BYTES + handle * self.record_bytes

    def _write(self, parts: Sequence[Contents], place: int) -> None:
        """The parts, one after the other."""
        written, wanted = os.pwritev(self._file, parts, place), sum(map(len, parts))
        if written != wanted:
            raise OSError(f"only {written:,} of {wanted:,} bytes could be written")


log = logging.getLogger("lmprog")

KEPT_BYTES = 4 << 20
"""Of buffers that nobody uses; the others are given back to the system."""

MOST_STAGED_BYTES = 32 << 20
"""Contents in memory on the way to the file, and as much on the way back; at least one page."""
RETRY_SECONDS = 10.0
"""After a page could not be written, so long none is tried."""
MOST_LOST = 4
"""After so many loads in turn that gave no page a shared store is left alone for as long."""
LOCK_SECONDS = 0.001
"""So long the thread of a shared store gets Python's lock before something late is given up."""
CLOSE_SECONDS = 5.0
"""What is not written so long after the end is given up."""
MEASURED = 16
"""Pages last copied, written, read. The fastest of them counts: the others waited for processors.
"""
FEW_MEASURED = 4
"""With fewer the cost is not known, and counts as none: the first page of all takes longest."""


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
    """See `PageStore`. The records are its own from now on."""

    def __init__(self, records: PageRecords, memory: PageMemory, num_handles: int) -> None:
        """Knows of `num_handles` records at most."""
        self.num_handles = num_handles
        self.is_shared = records.is_shared
        self._memory = memory
        self._records = records
        self._known = list(records.known())
        self._age = max((one.age for one in self._known), default=0)
        self._num_loads = 0
        self._abandoned: set[int] = set()
        self._refused_until = 0.0
        self._num_lost = 0
        """Loads in turn that gave no page."""
        self._measures: dict[str, deque[float]] = {
            what: deque(maxlen=MEASURED) for what in ("copy", "write", "read", "enter")
        }
        self._best = dict.fromkeys(self._measures, 0.0)
        self._writing = StagingBuffers(memory.page_bytes, MOST_STAGED_BYTES)
        self._reading = StagingBuffers(memory.page_bytes, MOST_STAGED_BYTES)
        self._read: deque[tuple[int, int, bytearray] | LoadEnd] = deque()
        """Loads, pages and their contents, and after the last page of a load its end."""
        self._questions: deque[Callable[[], None]] = deque()
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

    def find(self, keys: Sequence[PageKey], states: Sequence[PageKey] = ()) -> int | None:
        if not self.is_shared or time.monotonic() < self._refused_until:
            return None
        self._num_loads += 1
        ticket = self._num_loads
        self._questions.append(lambda: self._find(ticket, keys, states))
        self._todo.put(lambda: None)
        return ticket

    def load(self, handles: Sequence[int], pages: Sequence[int], keys: Sequence[PageKey]) -> int:
        self._num_loads += 1
        ticket, wanted = self._num_loads, list(zip(handles, pages, keys, strict=True))
        if self.is_shared and time.monotonic() < self._refused_until:
            self._read.append(LoadEnd(ticket, 0))  # it is asked again what there is, later
            return ticket
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

    def abandon(self, ticket: int, *, is_patient: bool = False) -> bool:
        if is_patient and self.is_shared and self._is_held_up(ticket):
            return False
        self._abandoned.add(ticket)
        return True

    def _is_held_up(self, ticket: int) -> bool:
        """Whether the thread waits for a processor, or has waited for Python's lock, which it gets
        here for a moment, and has just done it.
        """
        time.sleep(LOCK_SECONDS)
        ended = [one.ticket for one in list(self._read) if isinstance(one, LoadEnd)]
        return ticket in ended or is_runnable(self._thread.native_id or 0)

    def forget(self, handles: Sequence[int], keys: Sequence[PageKey]) -> None:
        self._todo.put(lambda: self._erase(handles, keys))

    def close(self) -> None:
        self._todo.put(None)
        self._thread.join(CLOSE_SECONDS)

    # --- in the thread

    def _work(self) -> None:
        while (do := self._todo.get()) is not None:
            while self._questions:
                self._questions.popleft()()
            do()
        self._records.close()

    def _write(self, handle: int, key: PageKey, age: int, contents: bytearray) -> None:
        began = time.perf_counter()
        try:
            if not self._records.count([key]):  # else another one has stored it
                self._records.write(handle, key, age, contents)
                self._measured("write", began)
        except OSError as error:
            self._failed("written", error)
        finally:
            self._writing.give(contents)

    def _find(self, ticket: int, keys: Sequence[PageKey], states: Sequence[PageKey]) -> None:
        count = part = 0
        try:
            if ticket not in self._abandoned:
                count = self._records.count(keys)
                while count and states and not self._records.count([states[count - 1]]):
                    count -= 1
                if not states and count < len(keys):
                    parts = parts_of(keys[count])
                    at = self._records.first(parts) if parts else None
                    part = 0 if at is None else len(parts[at].tokens) // TOKEN_BYTES
        except OSError as error:
            self._failed("looked for", error)
        finally:
            self._read.append(LoadEnd(ticket, count, part))

    def _load(self, ticket: int, wanted: list[tuple[int, int, PageKey]]) -> None:
        num_good = 0
        try:
            for handle, page, key in wanted:
                if ticket in self._abandoned:
                    break
                contents = self._read_page(handle, key)
                if contents is None:
                    if not self.is_shared:  # there others make room for their own pages
                        log.warning("a page of the second tier is not what was stored; it is lost")
                    break
                self._read.append((ticket, page, contents))
                num_good += 1
            self._num_lost = 0 if num_good else self._num_lost + 1
            if self.is_shared and self._num_lost >= MOST_LOST:
                self._num_lost = 0
                raise OSError(f"{MOST_LOST} loads in turn gave nothing of what is there")
        except OSError as error:
            self._failed("read", error)
        finally:
            self._read.append(LoadEnd(ticket, num_good))

    def _read_page(self, handle: int, key: PageKey) -> bytearray | None:
        contents = self._reading.take(None)
        assert contents is not None, "it waits until there is one"
        began, is_good = time.perf_counter(), False
        try:
            is_good = self._records.read(handle, key, contents)
        finally:
            if not is_good:
                self._reading.give(contents)
        if not is_good:
            return None
        self._measured("read", began)
        return contents

    def _erase(self, handles: Sequence[int], keys: Sequence[PageKey]) -> None:
        try:
            self._records.erase(handles, keys)
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
        if len(measures) >= FEW_MEASURED:
            self._best[what] = min(measures)
