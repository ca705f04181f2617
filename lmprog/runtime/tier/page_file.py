"""The file of a second tier: a header, then one record of fixed size for each handle.

A record has the key of its page, a checksum over that, the page's contents and a checksum over
those. So a record that was half written when the process or the machine died is known as such, and
nothing that was read is believed without its checksums. The header names what the pages were made
by (`identity`); a file made by anything else is begun anew. Knows bytes and files; a lock keeps
other processes out.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from lmprog.runtime.tier.page_store import ID_BYTES, TOKEN_BYTES, KnownPage, PageKey

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
    """An open, locked file. Raises OSError for what the disk does, and for nothing it contains."""

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
