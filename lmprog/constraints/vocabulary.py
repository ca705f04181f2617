"""A vocabulary as constraints use it: token bytes, end-of-sequence ids, and the mask index.

The index (`buckets.py`) depends on the token bytes alone and is cached on disk under their hash.
Knows bytes and ids; does not know tokenizer files (`token_bytes.py`) or automata.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lmprog.constraints.buckets import FORMAT, Index, arrays_of, build_index, index_of
from lmprog.constraints.net_arrays import Alphabet
from lmprog.native import cache_folder

log = logging.getLogger("lmprog")


class Vocabulary:
    """Token bytes by id, with the index. Immutable; share one per tokenizer."""

    def __init__(
        self, tokens: Sequence[bytes | None], eos_ids: Sequence[int], use_cache: bool = True
    ) -> None:
        """`tokens[i]` are the bytes of token i; None if no constraint may allow it."""
        self._tokens = tuple(token or None for token in tokens)
        self.eos_ids = tuple(sorted(set(eos_ids)))
        if any(not 0 <= eos < len(self._tokens) for eos in self.eos_ids):
            raise ValueError(
                f"end-of-sequence ids {self.eos_ids} outside of a vocabulary of {len(self._tokens)}"
            )
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
        """The bytes of the token; None for special tokens and for ids outside the vocabulary."""
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
        path = cache_folder() / "vocabulary" / f"{self.digest[:32]}-{FORMAT}.npz"
        return _load(path, self.num_words) or _store(path, build_index(self._tokens))

    def prepare(self) -> None:
        """Computes all cached properties now, so that the compiling thread pays for them."""
        assert self.alphabet is not None
        assert self.index is not None
        assert self.ordered is not None

    def greedy(self, text: bytes) -> list[int]:
        """Spells `text` greedily, longest token first. Raises ValueError for a byte without a
        token.
        """
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
        """The distinct bytes of all tokens, sorted, so that common prefixes are adjacent."""
        tokens = self._tokens
        texts = [token for i in self.index.in_order.tolist() if (token := tokens[i])]
        has_twins = len(texts) > len(self.alphabet.tokens)
        return list(dict.fromkeys(texts)) if has_twins else texts

    @functools.cached_property
    def longest(self) -> int:
        """The length in bytes of the longest token."""
        return max((len(token) for token in self._tokens if token), default=0)


def _digest(tokens: Sequence[bytes | None], eos_ids: Sequence[int]) -> str:
    lengths = np.array([-1 if token is None else len(token) for token in tokens], "<i4")
    seen = hashlib.sha256(lengths.tobytes())
    seen.update(b"".join(token for token in tokens if token))
    seen.update(repr(tuple(eos_ids)).encode())
    return seen.hexdigest()


def _load(path: Path, num_words: int) -> Index | None:
    if not path.exists():
        return None
    try:
        with np.load(path) as saved:
            return index_of(saved, num_words)
    except (OSError, ValueError, KeyError, EOFError) as error:
        log.warning(
            "the vocabulary index %s cannot be read (%s); it is built anew", path.name, error
        )
        return None


def _store(path: Path, index: Index) -> Index:
    """Caches the index on disk. Failure to write only costs time in the next process."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".npz", delete=False) as out:
            # the stub takes any keyword for `allow_pickle`
            np.savez(out, **arrays_of(index))  # type: ignore[arg-type]
        os.replace(out.name, path)  # atomic: other processes see a complete file or none
    except OSError as error:
        log.warning("the vocabulary index could not be written to %s: %s", path.parent, error)
    return index
