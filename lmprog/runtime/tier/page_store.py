"""What a second tier needs of whatever keeps its pages: a file, a store that several runtimes
share, or the host's memory beside a GPU.

A store has `num_handles` places, each for the contents of one page. It is told what a page holds
(`PageKey`), and gives back a page only as what it was stored as. Knows bytes and tokens as bytes;
knows no tree.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

ID_BYTES = 16
TOKEN_BYTES = 4
ALIGNMENT = 64
SUM_BYTES = 16
SUMMED_BYTES = 1 << 16
"""Contents are summed in blocks of this size."""

FRAME = 1 << 16
"""The number of the first part of a page's frame."""

Contents: TypeAlias = "bytes | bytearray"


@dataclass(frozen=True, slots=True)
class PageKey:
    """What a page holds: `tokens` (4 bytes each, at most a page of them) behind a path.

    `index` is the page's place on its path, `parent` stands for everything before it: salt, tokens.
    With a `part` it is not the page but that part, counted from 1 on, of the recurrent state behind
    `tokens`; from `FRAME` on, of the page's frame, which layers with windows have instead.
    """

    index: int
    parent: bytes
    tokens: bytes
    part: int = 0

    @property
    def id(self) -> bytes:
        """The `parent` of the pages that follow this one, if it is whole."""
        what = self.parent + self.tokens
        if self.part:
            what += b"state" + self.part.to_bytes(4, "little")
        return hashlib.blake2b(what, digest_size=ID_BYTES).digest()

    def is_served_by(self, other: PageKey) -> bool:
        """Whether a page that holds `other` holds this too."""
        if (self.index, self.parent, self.part) != (other.index, other.parent, other.part):
            return False
        return other.tokens == self.tokens or (
            not 0 < self.part < FRAME and other.tokens.startswith(self.tokens)
        )


@dataclass(frozen=True, slots=True)
class KnownPage:
    """A page that a store had kept when it was opened. A larger `age` was written later."""

    handle: int
    key: PageKey
    age: int


@dataclass(frozen=True, slots=True)
class LoadEnd:
    """The end of a load: its first `num_good` pages have the contents that were asked for."""

    ticket: int
    num_good: int
    part: int = 0
    """Of a question: so many first tokens of the page behind them are there as a part."""


@dataclass(frozen=True, slots=True)
class PageCosts:
    """Seconds to store a page, and to load one."""

    store: float
    load: float


class PageMemory(Protocol):
    """The pool's pages as bytes; only between two steps. The parts of recurrent states, or of
    frames, are pages with higher numbers.
    """

    @property
    def page_bytes(self) -> int: ...

    def read(self, page: int, into: bytearray) -> None: ...

    def write(self, page: int, contents: bytearray) -> None: ...


HELD_UP_SECONDS = 0.5
"""What is late from a store is waited for so much longer while its thread has no processor: then
the machine is slow, and not the store."""


class PageStore(Protocol):
    """Keeps pages. A load sees all stores before it; nothing here raises for what a disk does."""

    num_handles: int
    is_shared: bool
    """Whether others store there too. Then pages are known by their keys."""

    @property
    def costs(self) -> PageCosts:
        """Measured."""

    def known(self) -> list[KnownPage]:
        """What it had when it was opened."""

    def store(self, handle: int, page: int, key: PageKey, wait: float = 0.0) -> bool:
        """Copies `page` as it is now. False: nothing is kept, try again later. Waits `wait` seconds
        at most where too much is under way.
        """

    def find(self, keys: Sequence[PageKey], states: Sequence[PageKey] = ()) -> int | None:
        """Begins to look how many of these pages in turn are there, whoever stored them, and what
        part of the next one; `finished` says it. With `states`, one for each of the pages, only up
        to the last one whose state is there. None: nobody else stores there, or it cannot be asked
        at the moment.
        """

    def load(self, handles: Sequence[int], pages: Sequence[int], keys: Sequence[PageKey]) -> int:
        """Begins to copy handles to pages, which are the store's until `finished` says so.

        The step that is being planned may still copy slots out of these pages: nothing is written
        to them before the next `finished`.
        """

    def finished(self) -> list[LoadEnd]:
        """Loads that have ended since the last time, and questions that were answered."""

    def abandon(self, ticket: int, *, is_patient: bool = False) -> bool:
        """The pages of that load are not written from now on. It still ends, some time. False where
        it `is_patient`, and the store waits for a processor, and for no disk and no network: then
        it goes on.
        """

    def forget(self, handles: Sequence[int], keys: Sequence[PageKey]) -> None:
        """Their contents are wrong, and must not be known when the store is opened again. `keys`
        are those of a path to all of them.
        """

    def close(self) -> None:
        """Waits a while for everything stored to be written."""


class PageRecords(Protocol):
    """Where pages are kept, as whoever keeps them sees it: one record for each handle, or for each
    key where `is_shared`. Blocks, and raises OSError for what a disk or a network does.
    """

    is_shared: bool

    def known(self) -> Iterable[KnownPage]:
        """What it has; nothing where others store there too."""

    def count(self, keys: Sequence[PageKey]) -> int:
        """How many of these in turn it has, as far as that is known without reading them."""

    def first(self, keys: Sequence[PageKey]) -> int | None:
        """The number of the first one that it has, as far as that is known; None: none of them."""

    def write(self, handle: int, key: PageKey, age: int, contents: Contents) -> None: ...

    def read(self, handle: int, key: PageKey, into: bytearray) -> bool:
        """Reads the contents of a page that holds `key`; False where there is none, or it is torn.
        Then `into` may hold anything.
        """

    def erase(self, handles: Sequence[int], keys: Sequence[PageKey]) -> None: ...

    def close(self) -> None: ...


_META = struct.Struct(f"<QII{ID_BYTES}sI{SUM_BYTES}s")
"""Age, index, part, parent, number of tokens, sum of the contents; then the tokens, then a sum."""


class RecordFormat:
    """A page with its key as bytes: first `meta_bytes`, then the contents; little-endian.

    The first part is age, index, part, parent, number of tokens, the sum of the contents, the
    tokens padded to a whole page, and a sum over all of that under `secret`. So what was half
    written, or was written by somebody else, is known as such.
    """

    def __init__(self, page_size: int, page_bytes: int, secret: bytes = b"") -> None:
        self.page_bytes = page_bytes
        self._room = page_size * TOKEN_BYTES
        self._secret = secret
        self.meta_bytes = aligned(_META.size + self._room + SUM_BYTES)
        self.record_bytes = self.meta_bytes + aligned(page_bytes)

    def meta(self, key: PageKey, age: int, contents: Contents) -> bytes:
        """What stands before the contents."""
        sums = self._sum(_block_sums(contents))
        head = _META.pack(age, key.index, key.part, key.parent, len(key.tokens), sums)
        head += key.tokens.ljust(self._room, b"\0")
        return (head + self._sum(head)).ljust(self.meta_bytes, b"\0")

    def parsed(self, meta: bytes) -> tuple[int, PageKey, bytes] | None:
        """Age, key and sum of the contents; None where the sum is wrong."""
        body, end = meta[: _META.size + self._room], _META.size + self._room
        if meta[end : end + SUM_BYTES] != self._sum(body):
            return None
        age, index, part, parent, length, contents_sum = _META.unpack_from(body)
        tokens = body[_META.size : _META.size + length]
        return age, PageKey(index, parent, tokens, part), contents_sum

    def holds(self, meta: bytes, key: PageKey, contents: Contents) -> bool:
        """Whether these are a record of `key`, whole and unchanged."""
        found = self.parsed(meta)
        if found is None or not key.is_served_by(found[1]):
            return False
        return self._sum(_block_sums(contents)) == found[2]

    def _sum(self, text: bytes) -> bytes:
        return hashlib.blake2b(text, key=self._secret, digest_size=SUM_BYTES).digest()


def _block_sums(contents: Contents) -> bytes:
    """The CRC of each block, which takes a fifth of the time of a cryptographic sum of all."""
    whole = memoryview(contents)
    starts = range(0, len(whole), SUMMED_BYTES)
    blocks = [zlib.crc32(whole[start : start + SUMMED_BYTES]) for start in starts]
    return struct.pack(f"<{len(blocks)}I", *blocks)


def aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def parts_of(key: PageKey) -> list[PageKey]:
    """What may be stored of a page where texts part inside it, the longest first; behind a page."""
    lengths = range(len(key.tokens) - TOKEN_BYTES, 0, -TOKEN_BYTES) if key.index else ()
    return [replace(key, tokens=key.tokens[:length]) for length in lengths]


def root_of(salt: str) -> bytes:
    """Stands for a salt; the salt itself is not kept."""
    return hashlib.blake2b(salt.encode(), digest_size=ID_BYTES, person=b"lmprog-salt").digest()


def page_keys(root: bytes, tokens: bytes, page_size: int) -> list[PageKey]:
    """The keys of the pages of a path, which begins at `root`; the last page may not be whole."""
    keys, parent, width = [], root, page_size * TOKEN_BYTES
    for index, start in enumerate(range(0, len(tokens), width)):
        key = PageKey(index, parent, tokens[start : start + width])
        keys.append(key)
        parent = key.id
    return keys
