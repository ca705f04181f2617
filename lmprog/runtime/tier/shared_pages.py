"""Pages that several runtimes share: in one file of a machine, in a folder that many mount, or in a
Redis or Valkey server.

All know a page by the digest of its path (`PageKey.id`), so whoever computes it finds it, whoever
stored it. Nobody waits for anybody: there is no lock to read or to write under, since no record is
believed without its sums. A record that is overwritten while it is read, that a killed process left
half written, or that was made for another model is none. Files are read by system calls and not
mapped, so that one that is cut short is an error and not the end of the process. Of a
server contents are read straight into the buffers (`redis_server`).

docs/replicas.md describes the formats.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmprog.redis_server import RedisServer
from lmprog.runtime.tier.disk_store import FileInUse
from lmprog.runtime.tier.page_store import (
    ID_BYTES,
    Contents,
    KnownPage,
    PageKey,
    RecordFormat,
    aligned,
)

SHARED_MAGIC = b"lmprog-kv-share\n"
SHARED_VERSION = 2
SHARED_HEADER_BYTES = 4096
WAYS = 16
"""Records of a set: a page is in the one that its digest names, in any of its places."""
_SHARED_HEADER = struct.Struct(f"<{len(SHARED_MAGIC)}sIII32sQ")
_STAMPS = struct.Struct(f"<{WAYS}I")
_IDS_BYTES = WAYS * ID_BYTES
_SET_BYTES = _IDS_BYTES + _STAMPS.size
_NO_ID = bytes(ID_BYTES)
FRESH_SECONDS = 60
"""A page that was used so shortly before is not stamped again."""
OPEN_SECONDS = 5.0
"""So long another process may take to begin the file."""

SHARDS = 256
"""Folders of a folder, by the first byte of the digest. Each may take its share of the bytes."""
TRIMMED_EVERY = 16
"""Pages that a runtime writes to a shard before it looks how large that is."""


class SharedPageFile:
    """One file for all runtimes of a machine. See `PageRecords`.

    A header; then for each set of records the digests of its pages and when each was used last;
    then the records. Whoever writes takes the place that was used last of all, away from its page
    first, so that a reader meets the old page, none, or the new one.
    """

    is_shared = True

    def __init__(self, place: Path, identity: bytes, format: RecordFormat, most_bytes: int) -> None:
        """`identity`: 32 bytes; the file is begun anew where it is another one's, or where nobody
        uses it and its size is another.
        """
        self._format = format
        sets = max(
            1, (most_bytes - SHARED_HEADER_BYTES) // (_SET_BYTES + WAYS * format.record_bytes)
        )
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(place, flags, 0o600)
        try:
            self._num_sets = self._begin(place, identity, sets)
        except OSError:
            os.close(self._file)
            raise
        self._records_at = aligned(SHARED_HEADER_BYTES + self._num_sets * _SET_BYTES)
        self.num_handles = self._num_sets * WAYS

    def _begin(self, place: Path, identity: bytes, num_sets: int) -> int:
        """How many sets the file has, which is in use from now on."""
        if os.fstat(self._file).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "belongs to another user", str(place))
        format = self._format
        head = (SHARED_MAGIC, SHARED_VERSION, format.meta_bytes, format.page_bytes, identity)
        ends = time.monotonic() + OPEN_SECONDS
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._header() != (*head, num_sets):  # nobody else has it
                    os.ftruncate(self._file, 0)
                    os.ftruncate(self._file, SHARED_HEADER_BYTES + num_sets * _SET_BYTES)
                    self._put(_SHARED_HEADER.pack(*head, num_sets), 0)
                fcntl.flock(self._file, fcntl.LOCK_SH)
                return num_sets
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                found = self._header()
                if found is not None and found[:-1] == head:
                    return int(found[-1])
                raise FileInUse(errno.EBUSY, "is in use for another model", str(place))
            if time.monotonic() > ends:
                raise FileInUse(errno.EBUSY, "is being begun by another process", str(place))
            time.sleep(0.01)

    def _header(self) -> tuple[Any, ...] | None:
        found = os.pread(self._file, _SHARED_HEADER.size, 0)
        return _SHARED_HEADER.unpack(found) if len(found) == _SHARED_HEADER.size else None

    def known(self) -> Sequence[KnownPage]:
        return ()

    def count(self, keys: Sequence[PageKey]) -> int:
        for number, key in enumerate(keys):
            if self._way_of(key.id)[1] is None:
                return number
        return len(keys)

    def first(self, keys: Sequence[PageKey]) -> int | None:
        there = (at for at, key in enumerate(keys) if self._way_of(key.id)[1] is not None)
        return next(there, None)

    def write(self, handle: int, key: PageKey, age: int, contents: Contents) -> None:
        digest = key.id
        number, way = self._way_of(digest)
        if way is None:
            stamps = self._stamps(number)
            way = stamps.index(min(stamps))
        self._name(number, way, _NO_ID)
        place = self._place_of(number, way)
        self._put(self._format.meta(key, age, contents), place)
        self._put(contents, place + self._format.meta_bytes)
        self._stamp(number, way)
        self._name(number, way, digest)

    def read(self, handle: int, key: PageKey, into: bytearray) -> bool:
        digest = key.id
        number, way = self._way_of(digest)
        if way is None:
            return False
        meta = bytearray(self._format.meta_bytes)
        num_read = os.preadv(self._file, [meta, into], self._place_of(number, way))
        is_whole = num_read == len(meta) + len(into)
        if not is_whole or not self._format.holds(bytes(meta), key, into):
            if self._way_of(digest) == (number, way):  # torn: else nobody would write it again
                self._name(number, way, _NO_ID)
            return False
        if int(time.time()) - self._stamps(number)[way] > FRESH_SECONDS:
            self._stamp(number, way)
        return True

    def erase(self, handles: Sequence[int], keys: Sequence[PageKey]) -> None:
        for key in keys:
            number, way = self._way_of(key.id)
            if way is not None:
                self._name(number, way, _NO_ID)

    def close(self) -> None:
        os.close(self._file)

    def _way_of(self, digest: bytes) -> tuple[int, int | None]:
        """The set of a page, and its place there; None: it is not there."""
        number = int.from_bytes(digest[:8], "little") % self._num_sets
        ids = os.pread(self._file, _IDS_BYTES, self._set_at(number))
        at = ids.find(digest)
        while at % ID_BYTES and at >= 0:  # across the ends of two digests
            at = ids.find(digest, at + 1)
        return number, (at // ID_BYTES if at >= 0 else None)

    def _stamps(self, number: int) -> tuple[int, ...]:
        found = os.pread(self._file, _STAMPS.size, self._set_at(number) + _IDS_BYTES)
        return _STAMPS.unpack(found.ljust(_STAMPS.size, b"\0"))

    def _stamp(self, number: int, way: int) -> None:
        self._put(struct.pack("<I", int(time.time())), self._set_at(number) + _IDS_BYTES + 4 * way)

    def _name(self, number: int, way: int, digest: bytes) -> None:
        self._put(digest, self._set_at(number) + ID_BYTES * way)

    def _set_at(self, number: int) -> int:
        return SHARED_HEADER_BYTES + number * _SET_BYTES

    def _place_of(self, number: int, way: int) -> int:
        return self._records_at + (number * WAYS + way) * self._format.record_bytes

    def _put(self, part: Contents, place: int) -> None:
        if os.pwrite(self._file, part, place) != len(part):
            raise OSError(errno.ENOSPC, "the disk is full")


class SharedFolder:
    """A file for each page, in a folder that runtimes of several machines see. See `PageRecords`.

    A page is written under another name first, so that it is there as a whole. Its time of change
    is that of its last use; the pages used least lately make room.
    """

    is_shared = True

    def __init__(
        self, folder: Path, identity: bytes, format: RecordFormat, most_bytes: int
    ) -> None:
        """Pages of other identities are in folders beside, and are not counted."""
        self._format = format
        self._folder = folder / f"lmprog-kv-{SHARED_VERSION}-{identity[:8].hex()}"
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._shard_bytes = most_bytes // SHARDS
        self.num_handles = most_bytes // format.record_bytes
        self._written = [TRIMMED_EVERY - 1] * SHARDS
        """Pages since each shard was looked at; the first page of a runtime looks."""

    def known(self) -> Sequence[KnownPage]:
        return ()

    def count(self, keys: Sequence[PageKey]) -> int:
        for number, key in enumerate(keys):
            if not self._place_of(key.id).exists():
                return number
        return len(keys)

    def first(self, keys: Sequence[PageKey]) -> int | None:
        return next((at for at, key in enumerate(keys) if self._place_of(key.id).exists()), None)

    def write(self, handle: int, key: PageKey, age: int, contents: Contents) -> None:
        place = self._place_of(key.id)
        place.parent.mkdir(mode=0o700, exist_ok=True)
        part = place.with_suffix(f".{os.getpid()}")
        try:
            with open(part, "wb") as file:
                file.write(self._format.meta(key, age, contents))
                file.write(contents)
            os.replace(part, place)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        self._written[key.id[0]] += 1
        if self._written[key.id[0]] >= TRIMMED_EVERY:
            self._written[key.id[0]] = 0
            self._trim(place.parent)

    def read(self, handle: int, key: PageKey, into: bytearray) -> bool:
        meta = bytearray(self._format.meta_bytes)
        place = self._place_of(key.id)
        try:
            with open(place, "rb", buffering=0) as file:
                num_read = os.readv(file.fileno(), [meta, into])
                used = os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            return False
        if num_read != len(meta) + len(into) or not self._format.holds(bytes(meta), key, into):
            place.unlink(missing_ok=True)
            return False
        if time.time() - used > FRESH_SECONDS:
            os.utime(place)
        return True

    def erase(self, handles: Sequence[int], keys: Sequence[PageKey]) -> None:
        for key in keys:
            self._place_of(key.id).unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing is open."""

    def _place_of(self, digest: bytes) -> Path:
        name = digest.hex()
        return self._folder / name[:2] / name

    def _trim(self, shard: Path) -> None:
        """Takes away the pages of a shard that were used least lately, until a tenth of its bytes
        is free. Where the share of a shard holds no page it keeps one.
        """
        found = []
        with os.scandir(shard) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # another one trims too
                    told = entry.stat()
                    found.append((told.st_mtime, told.st_size, entry.path))
        taken = sum(size for _, size, _ in found)
        if taken <= self._shard_bytes:
            return
        for _, size, path in sorted(found)[:-1]:
            Path(path).unlink(missing_ok=True)
            taken -= size
            if taken <= 0.9 * self._shard_bytes:
                break


REDIS_VERSION = 2
REDIS_HANDLES = 1 << 17
"""Pages of the server that one runtime knows of at a time."""
ASKED_AT_ONCE = 256


class RedisPages:
    """See `PageRecords`. Connects when it is first asked, and again after an error."""

    is_shared = True
    num_handles = REDIS_HANDLES

    def __init__(self, url: str, identity: bytes, format: RecordFormat) -> None:
        """Raises ValueError for what is no such address."""
        self._server = RedisServer(url)
        self._format = format
        self._prefix = f"lmprog-kv:{REDIS_VERSION}:{identity[:16].hex()}:".encode()

    def known(self) -> Sequence[KnownPage]:
        return ()

    def count(self, keys: Sequence[PageKey]) -> int:
        for start in range(0, len(keys), ASKED_AT_ONCE):
            part = keys[start : start + ASKED_AT_ONCE]
            there = self._server.ask([(b"EXISTS", self._name(key)) for key in part])
            if b":0" in there:
                return start + there.index(b":0")
        return len(keys)

    def first(self, keys: Sequence[PageKey]) -> int | None:
        there = self._server.ask([(b"EXISTS", self._name(key)) for key in keys])
        return there.index(b":1") if b":1" in there else None

    def write(self, handle: int, key: PageKey, age: int, contents: Contents) -> None:
        meta = self._format.meta(key, age, contents)
        self._server.ask([(b"SET", self._name(key), meta, contents)])

    def read(self, handle: int, key: PageKey, into: bytearray) -> bool:
        meta = bytearray(self._format.meta_bytes)
        is_whole = self._server.read(self._name(key), (meta, into))
        return is_whole and self._format.holds(bytes(meta), key, into)

    def erase(self, handles: Sequence[int], keys: Sequence[PageKey]) -> None:
        self._server.ask([(b"DEL", self._name(key)) for key in keys])

    def close(self) -> None:
        self._server.close()

    def check(self) -> None:
        """Asks for nothing. Raises RedisRefused for a server that does not let us in, another
        OSError for one that does not answer.
        """
        self._server.ask([(b"PING",)])

    def _name(self, key: PageKey) -> bytes:
        return self._prefix + key.id.hex().encode()
