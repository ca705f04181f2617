"""A vocabulary as constraints see it: the bytes of every token, the end-of-sequence ids, and the index for masks.

The index is tries and *slices*. A slice is the set of tokens made only of characters that the inside of a JSON string
takes plainly (or only of letters), up to a length; its mask is ready-made. Where an automaton takes every string of
the slice, the mask is taken whole and the slice's trie is not walked.

The index depends on the token bytes alone and is cached on disk under their hash. This module knows bytes and ids;
where the bytes come from is `token_bytes.py`, and automata are none of its business.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmprog.native import cache_folder
from lmprog.runtime.fsm.costs import Alphabet
from lmprog.runtime.fsm.trie import NODE, Trie, build_trie

log = logging.getLogger("lmprog")

_FORMAT = 6
"""Part of the cache's file name: raised whenever the index changes."""

_UTF8_TAIL = (
    rb"|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}"
    rb"|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2}"
)


@dataclass(frozen=True, slots=True)
class SliceKind:
    """Which tokens a slice takes: those that consist of at most `longest` characters of one class."""

    name: str
    one_char: bytes  # a pattern for one character
    longest: int
    ascii_only: bool


_PLAIN = rb"[ !#-\[\]-\x7f]" + _UTF8_TAIL
SLICE_KINDS: tuple[SliceKind, ...] = (
    SliceKind("lower", rb"[a-z]", 10, True),
    SliceKind("letters", rb"[A-Za-z]", 10, True),
    SliceKind("word", rb"[A-Za-z0-9_]", 10, True),
    SliceKind("words", rb"[A-Za-z0-9_ ]", 10, True),
    SliceKind("text", rb"[A-Za-z0-9_ ]" + _UTF8_TAIL, 10, False),
    SliceKind("plain-10", _PLAIN, 10, False),
    SliceKind("plain-30", _PLAIN, 30, False),
    SliceKind("plain", _PLAIN, 1 << 30, False),
)
"""From small to large: a token belongs to the first one that takes it. Tokens of none form the rest."""


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    trie: Trie
    bits: NDArray[np.uint32]  # [words]


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    slices: tuple[Slice, ...]  # one per SLICE_KINDS
    rest: Trie


class Vocabulary:
    """Token bytes by id, with the index. Immutable; share one per tokenizer."""

    def __init__(self, tokens: Sequence[bytes | None], eos_ids: Sequence[int], use_cache: bool = True) -> None:
        """`tokens[i]` are the bytes that token i appends to the text; None for a token that no constraint may allow."""
        self._tokens = tuple(token or None for token in tokens)
        self.eos_ids = tuple(sorted(set(eos_ids)))
        if any(not 0 <= eos < len(self._tokens) for eos in self.eos_ids):
            raise ValueError(f"end-of-sequence ids {self.eos_ids} outside of a vocabulary of {len(self._tokens)}")
        barred = set(self.eos_ids)
        self._tokens = tuple(None if i in barred else token for i, token in enumerate(self._tokens))
        self.num_words = (len(self._tokens) + 31) // 32
        self.digest = _digest(self._tokens, self.eos_ids)
        self._use_cache = use_cache

    @classmethod
    def of(cls, tokens: Sequence[bytes | None], eos_ids: Sequence[int]) -> Vocabulary:
        return cls(tokens, eos_ids)

    def __len__(self) -> int:
        return len(self._tokens)

    def bytes_of(self, token: int) -> bytes | None:
        """What the token appends; None for special tokens and for ids outside of the vocabulary."""
        return self._tokens[token] if 0 <= token < len(self._tokens) else None

    @property
    def tokens(self) -> tuple[bytes | None, ...]:
        return self._tokens

    @functools.cached_property
    def alphabet(self) -> Alphabet:
        known = frozenset(token for token in self._tokens if token)
        return Alphabet(frozenset(token[0] for token in known if len(token) == 1), known)

    @functools.cached_property
    def index(self) -> Index:
        """Built on first use, or read from the cache folder."""
        if not self._use_cache:
            return build_index(self._tokens)
        path = cache_folder() / "vocabulary" / f"{self.digest[:32]}-{_FORMAT}.npz"
        return _load(path) or _store(path, build_index(self._tokens))

    def prepare(self) -> None:
        """Makes everything that is made on first use, so that it happens where constraints are compiled."""
        assert self.alphabet is not None
        assert self.index is not None
        assert self.ordered is not None

    def greedy(self, text: bytes) -> list[int]:
        """Some tokens that spell `text`, longest first. Raises ValueError where a byte has no token."""
        out, at = [], 0
        while at < len(text):
            for stop in range(min(len(text), at + self.longest), at, -1):
                token = self._ids.get(text[at:stop])
                if token is not None:
                    break
            else:
                raise ValueError(f"no token spells byte {text[at]}")
            out.append(token)
            at = stop
        return out

    @functools.cached_property
    def _ids(self) -> dict[bytes, int]:
        return {token: i for i, token in reversed(list(enumerate(self._tokens))) if token}

    @functools.cached_property
    def ordered(self) -> list[bytes]:
        """The bytes of all tokens, sorted, without repetitions: what starts alike lies together."""
        return sorted({token for token in self._tokens if token})

    @functools.cached_property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return max((len(token) for token in self._tokens if token), default=0)


def _digest(tokens: Sequence[bytes | None], eos_ids: Sequence[int]) -> str:
    lengths = np.array([-1 if token is None else len(token) for token in tokens], "<i4")
    seen = hashlib.sha256(lengths.tobytes())
    seen.update(b"".join(token for token in tokens if token))
    seen.update(repr(tuple(eos_ids)).encode())
    return seen.hexdigest()


def build_index(tokens: Sequence[bytes | None]) -> Index:
    """Sorts every token into the first slice that takes it, and builds the tries."""
    pairs = [(token, i) for i, token in enumerate(tokens) if token]
    slices = []
    num_words = (len(tokens) + 31) // 32
    for kind in SLICE_KINDS:
        accepts = re.compile(rb"(?:" + kind.one_char + rb")+", re.DOTALL).fullmatch
        taken: list[tuple[bytes, int]] = []
        left: list[tuple[bytes, int]] = []
        for pair in pairs:
            fits = accepts(pair[0]) is not None and (
                len(pair[0]) <= kind.longest or _num_chars(pair[0]) <= kind.longest
            )
            (taken if fits else left).append(pair)
        pairs = left
        slices.append(Slice(build_trie(taken), bit_row([i for _, i in taken], num_words)))
    return Index(tuple(slices), build_trie(pairs))


def _num_chars(text: bytes) -> int:
    return sum(byte & 0xC0 != 0x80 for byte in text)


def bit_row(ids: Sequence[int] | NDArray[np.int32], num_words: int) -> NDArray[np.uint32]:
    row = np.zeros(num_words, np.uint32)
    where = np.asarray(ids, np.int64)
    np.bitwise_or.at(row, where >> 5, (np.uint32(1) << (where & 31).astype(np.uint32)).astype(np.uint32))
    return row


def _load(path: Path) -> Index | None:
    if not path.exists():
        return None
    try:
        with np.load(path) as saved:
            tries = [
                Trie(saved[f"nodes{i}"].view(NODE), saved[f"order{i}"], int(saved["deepest"][i]))
                for i in range(len(SLICE_KINDS) + 1)
            ]
            bits = saved["bits"]
    except (OSError, ValueError, KeyError) as error:
        log.warning("the vocabulary index %s cannot be read (%s); it is built anew", path.name, error)
        return None
    return Index(tuple(Slice(trie, row) for trie, row in zip(tries, bits, strict=False)), tries[-1])


def _store(path: Path, index: Index) -> Index:
    """Writes the index for the next process; a cache folder that cannot be written only costs time."""
    tries = [*(part.trie for part in index.slices), index.rest]
    arrays: dict[str, NDArray[np.generic]] = {
        "bits": np.stack([part.bits for part in index.slices]),
        "deepest": np.array([trie.deepest for trie in tries]),
    }
    for i, trie in enumerate(tries):
        arrays[f"nodes{i}"], arrays[f"order{i}"] = trie.nodes.view(np.uint8), trie.order
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".npz", delete=False) as out:
            np.savez(out, **arrays)  # type: ignore[arg-type]  # its stub sees `allow_pickle` in any keywords
        os.replace(out.name, path)  # atomic: a second process sees a whole file or none
    except OSError as error:
        log.warning("the vocabulary index could not be written to %s: %s", path.parent, error)
    return index
