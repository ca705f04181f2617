"""A second tier on a file: a thread writes and reads it, so that the loop never waits for a disk.

The thread does everything in the order in which it was asked, so a load sees what was stored before
it. Contents are copied from and to the pool's pages by the loop alone, between two steps; on their
way they are in buffers, a bounded number of which is used again and again. What cannot be written
or read costs a line in the log and is not kept; it is never an error.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import TypeAlias

from lmprog.runtime.tier.page_store import (
    ID_BYTES,
    TOKEN_BYTES,
    KnownPage,
    LoadEnd,
    PageCosts,
    PageKey,
    PageMemory,
)

MAGIC = b"lmprog-kv-pages\n"
VERSION = 2
HEADER_BYTES = 4096
ALIGNMENT = 64
SUM_BYTES = 16
SUMMED_BYTES = 1 << 16
"""Contents are summed in blocks of this size."""

Contents: TypeAlias = "bytes | bytearray"

_HEADER = struct.Struct(f"<{len(MAGIC)}sIII32s")
_META = struct.Struct(f"<QI{ID_BYTES}sI{SUM_BYTES}s")
"""Age, index, parent, number of tokens, sum of the contents; then the tokens, then a sum."""


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

    def __init__(self, place: Path, identity: bytes, page_size: int, page_bytes: int) -> None:
        """`identity`: 32 bytes."""
        self.page_bytes = page_bytes
        self._meta_bytes = _aligned(_META.size + page_size * TOKEN_BYTES + SUM_BYTES)
        self.record_bytes = self._meta_bytes + _aligned(page_bytes)
        self._room = page_size * TOKEN_BYTES
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
            meta = os.pread(self._file, self._meta_bytes, self._place_of(handle))
            if (found := self._parsed(meta)) is not None:
                age, key, _ = found
                yield KnownPage(handle, key, age)

    def write(self, handle: int, key: PageKey, age: int, contents: Contents) -> None:
        """One record."""
        sums = _sum(_block_sums(contents))
        head = _META.pack(age, key.index, key.parent, len(key.tokens), sums)
        head += key.tokens.ljust(self._room, b"\0")
        meta = (head + _sum(head)).ljust(self._meta_bytes, b"\0")
        self._write([meta, contents], self._place_of(handle))

    def read(self, handle: int, key: PageKey, into: bytearray) -> bool:
        """Reads the contents of a page that holds `key`; False where the record is not that, or
        torn. Then `into` may hold anything.
        """
        meta = bytearray(self._meta_bytes)
        num_read = os.preadv(self._file, [meta, into], self._place_of(handle))
        found = self._parsed(bytes(meta))
        if found is None or not key.is_served_by(found[1]):
            return False
        is_whole = num_read == self._meta_bytes + self.page_bytes
        return is_whole and _sum(_block_sums(into)) == found[2]

    def erase(self, handle: int) -> None:
        """The record is none any more."""
        self._write([bytes(self._meta_bytes)], self._place_of(handle))

    def close(self) -> None:
        os.close(self._file)

    def _parsed(self, meta: bytes) -> tuple[int, PageKey, bytes] | None:
        """Age, key and sum of the contents; None where the sum is wrong."""
        body, end = meta[: _META.size + self._room], _META.size + self._room
        if meta[end : end + SUM_BYTES] != _sum(body):
            return None
        age, index, parent, length, contents_sum = _META.unpack_from(body)
        tokens = body[_META.size : _META.size + length]
        return age, PageKey(index, parent, tokens), contents_sum

    def _place_of(self, handle: int) -> int:
        return HEADER_BYTES + handle * self.record_bytes

    def _write(self, parts: Sequence[Contents], place: int) -> None:
        """The parts, one after the other."""
        written, wanted = os.pwritev(self._file, parts, place), sum(map(len, parts))
        if written != wanted:
            raise OSError(f"only {written:,} of {wanted:,} bytes could be written")


def _sum(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=SUM_BYTES).digest()


def _block_sums(contents: Contents) -> bytes:
    """The CRC of each block, which takes a fifth of the time of a cryptographic sum of all."""
    whole = memoryview(contents)
    starts = range(0, len(whole), SUMMED_BYTES)
    blocks = [zlib.crc32(whole[start : start + SUMMED_BYTES]) for start in starts]
    return struct.pack(f"<{len(blocks)}I", *blocks)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


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
