"""What a second tier needs of whatever keeps its pages: a file, or the host's memory beside a GPU.

A store has `num_handles` places, each for the contents of one page. It is told what a page holds
(`PageKey`), and gives back a page only as what it was stored as. Knows bytes and tokens as bytes;
knows no tree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

ID_BYTES = 16
TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class PageKey:
    """What a page holds: `tokens` (4 bytes each, at most a page of them) behind a path.

    `index` is the page's place on its path, `parent` stands for everything before it: salt, tokens.
    """

    index: int
    parent: bytes
    tokens: bytes

    @property
    def id(self) -> bytes:
        """The `parent` of the pages that follow this one, if it is whole."""
        return hashlib.blake2b(self.parent + self.tokens, digest_size=ID_BYTES).digest()

    def is_served_by(self, other: PageKey) -> bool:
        """Whether a page that holds `other` holds this too."""
        same_place = (self.index, self.parent) == (other.index, other.parent)
        return same_place and other.tokens.startswith(self.tokens)


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


@dataclass(frozen=True, slots=True)
class PageCosts:
    """Seconds to store a page, and to load one."""

    store: float
    load: float


class PageMemory(Protocol):
    """The pool's pages as bytes; only between two steps."""

    @property
    def page_bytes(self) -> int: ...

    def read(self, page: int, into: bytearray) -> None: ...

    def write(self, page: int, contents: bytearray) -> None: ...


class PageStore(Protocol):
    """Keeps pages. A load sees all stores before it; nothing here raises for what a disk does."""

    @property
    def num_handles(self) -> int: ...

    @property
    def costs(self) -> PageCosts:
        """Measured."""

    def known(self) -> list[KnownPage]:
        """What it had when it was opened."""

    def store(self, handle: int, page: int, key: PageKey, wait: float = 0.0) -> bool:
        """Copies `page` as it is now. False: nothing is kept, try again later. Waits `wait` seconds
        at most where too much is under way.
        """

    def load(self, handles: Sequence[int], pages: Sequence[int], keys: Sequence[PageKey]) -> int:
        """Begins to copy handles to pages, which are the store's until `finished` says so.

        The step that is being planned may still copy slots out of these pages: nothing is written
        to them before the next `finished`.
        """

    def finished(self) -> list[LoadEnd]:
        """Loads that have ended since the last time."""

    def abandon(self, ticket: int) -> None:
        """The pages of that load are not written from now on. It still ends, some time."""

    def forget(self, handles: Sequence[int]) -> None:
        """Their contents are wrong, and must not be known when the store is opened again."""

    def close(self) -> None:
        """Waits a while for everything stored to be written."""


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
