"""A vocabulary as constraints use it: token bytes, end-of-sequence ids, and the mask index, which
depends on the token bytes alone and is cached on disk under their hash.

The index has the tokens in buckets of similar ones, each with a trie and a mask. A *group* is a set
of characters that patterns mostly accept or reject together (lower-case letters, for instance). A
bucket holds the tokens whose characters come from exactly the same groups, with or without one
leading space. Whether an automaton accepts all or none of them can then be decided without looking
at single tokens; the tries are for all other cases. Tokens that are not whole characters, are very
long, or have characters of no group are in a bucket without groups.

The tries are flat arrays in depth-first order, so a walk is one forward scan: when a node's byte is
rejected, adding `sub` skips its subtree. Node p is (sub, first, byte, depth, own): the tokens that
end at p are order[first : first + own], and those of its subtree extend to the next sibling's
`first`.

Knows bytes, ids and characters; does not know tokenizer files (`token_bytes.py`) or automata.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import tempfile
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmprog.constraints import charset
from lmprog.constraints.charset import CharSet
from lmprog.constraints.constraint import bit_row
from lmprog.constraints.lower import UTF8, class_leaf
from lmprog.constraints.net import Alphabet
from lmprog.native import cache_folder

NODE = np.dtype(
    [("sub", "<u4"), ("first", "<u4"), ("byte", "<u2"), ("depth", "<u2"), ("own", "<u4")]
)
_BLOCK = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Trie:
    nodes: NDArray[np.void]  # [nodes] of NODE
    order: NDArray[np.int32]  # token ids, in order of their bytes
    deepest: int


def build_trie(tokens: Sequence[tuple[bytes, int]]) -> Trie:
    """The trie of (bytes, id) pairs. Bytes may repeat but must not be empty."""
    ordered = sorted(tokens)
    texts = [text for text, _ in ordered]
    lengths = np.array([len(text) for text in texts], np.int64)
    shared = _shared_prefixes(texts, lengths)
    added = lengths - shared
    num_nodes = int(added.sum())
    nodes = np.zeros(num_nodes, NODE)
    ends = np.cumsum(added)
    starts = ends - added
    # The k-th node that a token adds has depth shared + k + 1 and the token's byte there.
    offsets = np.arange(num_nodes) - np.repeat(starts, added)
    depth = np.repeat(shared, added) + offsets + 1
    blob = np.frombuffer(b"".join(texts), np.uint8) if texts else np.zeros(0, np.uint8)
    begins = np.cumsum(lengths) - lengths
    nodes["byte"] = blob[np.repeat(begins, added) + depth - 1]
    nodes["depth"] = depth
    last = np.maximum.accumulate(np.where(added > 0, ends - 1, 0)) if num_nodes else ends
    nodes["own"] = np.bincount(last, minlength=num_nodes)[:num_nodes] if num_nodes else 0
    # Tokens before a node in depth-first order are those whose last node precedes it.
    nodes["first"] = np.cumsum(nodes["own"]) - nodes["own"]
    nodes["sub"] = _subtree_sizes(depth)
    order = np.array([token for _, token in ordered], np.int32)
    return Trie(nodes, order, int(depth.max()) if num_nodes else 0)


def _shared_prefixes(texts: Sequence[bytes], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each text, the length of the prefix it shares with the previous one."""
    shared = np.zeros(len(texts), np.int64)
    for begin in range(1, len(texts), _BLOCK):
        rows = texts[begin - 1 : begin + _BLOCK]
        width = max(map(len, rows))
        padded = np.frombuffer(b"".join(row.ljust(width, b"\0") for row in rows), np.uint8).reshape(
            len(rows), width
        )
        differ = padded[1:] != padded[:-1]
        first = np.where(differ.any(axis=1), differ.argmax(axis=1), width)
        limit = np.minimum(
            lengths[begin : begin + _BLOCK], lengths[begin - 1 : begin + _BLOCK - 1][: len(first)]
        )
        shared[begin : begin + len(first)] = np.minimum(first, limit)
    return shared


def _subtree_sizes(depth: NDArray[np.int64]) -> NDArray[np.int64]:
    """The distance from each node to the next one outside its subtree."""
    size = np.zeros(len(depth), np.int64)
    remaining = np.arange(len(depth))
    # From the deepest level up: among nodes of at most that depth, a node of that level ends where
    # the next one begins.
    levels = np.bincount(depth) if len(depth) else np.zeros(1, np.int64)
    for level in range(1, len(levels)):
        if not levels[level]:
            continue
        shallow = np.nonzero(depth <= level)[0] if level < len(levels) - 1 else remaining
        following = np.append(shallow[1:], len(depth))
        here = depth[shallow] == level
        size[shallow[here]] = (following - shallow)[here]
    return size


log = logging.getLogger("lmprog")


class Vocabulary:
    """Token bytes by id, with the index. Immutable; share one per tokenizer."""

    def __init__(
        self,
        tokens: Sequence[bytes | None],
        eos_ids: Sequence[int],
        use_cache: bool = True,
        symbols: Sequence[int] = (),
    ) -> None:
        """`tokens[i]` are the bytes of token i; None if no constraint may allow it. `symbols` mean
        something else than their text: they are no content of a JSON string.
        """
        self._tokens = tuple(token or None for token in tokens)
        self.eos_ids = tuple(sorted(set(eos_ids)))
        if any(not 0 <= eos < len(self._tokens) for eos in self.eos_ids):
            raise ValueError(
                f"end-of-sequence ids {self.eos_ids} outside of a vocabulary of {len(self._tokens)}"
            )
        barred = set(self.eos_ids)
        self._tokens = tuple(None if i in barred else token for i, token in enumerate(self._tokens))
        self.num_words = (len(self._tokens) + 31) // 32
        self.symbols = tuple(token for token in symbols if self._tokens[token])
        self.symbol_set = frozenset(self.symbols)
        self._content = _digest(self._tokens, self.eos_ids)
        self.digest = f"{self._content} {self.symbols}" if self.symbols else self._content
        self._use_cache = use_cache

    @classmethod
    def of(
        cls,
        tokens: Sequence[bytes | None],
        eos_ids: Sequence[int],
        symbols: Sequence[int] = (),
    ) -> Vocabulary:
        return cls(tokens, eos_ids, symbols=symbols)

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
        plain = {one for number, one in enumerate(self._tokens) if number not in self.symbol_set}
        return Alphabet(
            frozenset(token[0] for token in known if len(token) == 1), known, known - plain
        )

    @functools.cached_property
    def index(self) -> Index:
        """Built on first use, or read from the cache folder."""
        if not self._use_cache:
            return build_index(self._tokens)
        path = cache_folder() / "vocabulary" / f"{self._content[:32]}-{FORMAT}.npz"
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


# --- the index

FORMAT = f"9-{unicodedata.unidata_version}"
"""Part of the file's name: raised whenever the index changes. The groups depend on Python's
Unicode.
"""
NUM_GROUPS = 8
LONGEST = 32
"""Characters of a token in a bucket whose groups are known."""
_MANY = 512
"""Tokens beyond which a bucket has its mask ready."""
_LEAD = " "


@functools.cache
def groups() -> tuple[CharSet, ...]:
    """The characters of each group, disjoint. A set of groups is a bit mask in this order."""
    ascii_groups = [
        charset.charset([(97, 122)]),
        charset.charset([(65, 90)]),
        charset.charset([(48, 57), (95, 95)]),
        charset.charset([(32, 32)]),
        charset.charset([(9, 13)]),
    ]
    # Neither `"` nor `\`: inside JSON strings they have a special meaning.
    other = charset.subtract(
        charset.charset([(33, 33), (35, 91), (93, 126)]), charset.union(*ascii_groups)
    )
    beyond = charset.charset([(128, charset.MAX_CODE)])
    words = charset.intersect(charset.python_class("w"), beyond)
    return (*ascii_groups, other, words, charset.subtract(beyond, words))


@dataclass(frozen=True, slots=True, eq=False)
class GroupBytes:
    """The groups as one byte automaton: state q has the edges edge_start[q]..edge_start[q + 1]."""

    start: tuple[int, ...]  # by group
    edge_start: NDArray[np.int32]
    edges: NDArray[
        np.int32
    ]  # [edges, 3]: first byte, last byte, target, or -1 where the character ends


@functools.cache
def group_bytes() -> GroupBytes:
    found = [class_leaf(ranges, UTF8) for ranges in groups()]
    begins = [0, *accumulate(made.num_states for made in found)]
    states = [
        (final, [(low, high, first + to) for low, high, to in edges])
        for first, made in zip(begins, found, strict=False)
        for final, edges in made.states()
    ]
    starts = np.zeros(len(states) + 1, np.int32)
    np.cumsum([len(edges) for _, edges in states], out=starts[1:])
    flat = [
        (low, high, -1 if states[to][0] else to) for _, edges in states for low, high, to in edges
    ]
    return GroupBytes(tuple(begins[:-1]), starts, np.array(flat, np.int32))


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """`groups` 0: nothing is known about the tokens, not even their lengths."""

    groups: int
    lead: bool  # the tokens have one space before the texts of the trie
    trie: Trie
    by_length: NDArray[np.int32]  # token ids, those with few characters first
    length_start: NDArray[np.int32]  # [longest + 1] tokens with at most so many characters
    bits: NDArray[np.uint32] | None  # [words] the mask of all of them, if they are many


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    buckets: tuple[Bucket, ...]
    in_order: NDArray[np.int32]
    """The tokens that have bytes, sorted by these; of equal ones the lowest id first."""


def build_index(tokens: Sequence[bytes | None]) -> Index:
    sorted_in: dict[tuple[int, bool], list[tuple[bytes, int]]] = {}
    lengths = np.zeros(len(tokens), np.int64)
    group_of: dict[str, int] = {}
    for i, token in enumerate(tokens):
        if not token:
            continue
        key, length = _kind(token, group_of)
        lengths[i] = length
        sorted_in.setdefault(key, []).append((token[1:] if key[1] else token, i))
    made = []
    for (mask, lead), pairs in sorted(sorted_in.items()):
        ids = np.array([i for _, i in pairs], np.int32)
        made.append(
            _bucket(
                mask, lead, build_trie(pairs), ids[np.argsort(lengths[ids], kind="stable")], lengths
            )
        )
    texts = sorted((token, i) for i, token in enumerate(tokens) if token)
    in_order = np.array([i for _, i in texts], np.int32)
    return Index(tuple(_with_bits(bucket, (len(tokens) + 31) // 32) for bucket in made), in_order)


def _kind(token: bytes, group_of: dict[str, int]) -> tuple[tuple[int, bool], int]:
    """The bucket of a token, and the token's length in characters there."""
    try:
        text = token.decode()
    except UnicodeDecodeError:
        return (0, False), 0
    lead = len(text) > 1 and text[0] == _LEAD
    text = text[lead:]
    mask = 0
    for char in text if len(text) <= LONGEST else "":
        group = group_of.get(char)
        if group is None:
            group = group_of[char] = _group_of(char)
        if not group:
            return (0, False), 0
        mask |= group
    return ((mask, lead), len(text)) if mask else ((0, False), 0)


def _group_of(char: str) -> int:
    return next(
        (1 << i for i, ranges in enumerate(groups()) if charset.contains(ranges, ord(char))), 0
    )


def _bucket(
    mask: int, lead: bool, trie: Trie, by_length: NDArray[np.int32], lengths: NDArray[np.int64]
) -> Bucket:
    counts = np.bincount(lengths[by_length]) if mask else np.zeros(1, np.int64)
    return Bucket(mask, lead, trie, by_length, np.cumsum(counts).astype(np.int32), None)


def _with_bits(bucket: Bucket, num_words: int) -> Bucket:
    if not bucket.groups or len(bucket.by_length) < _MANY:
        return bucket
    bits = bit_row(bucket.by_length, num_words)
    return Bucket(
        bucket.groups, bucket.lead, bucket.trie, bucket.by_length, bucket.length_start, bits
    )


_SIZES = ("groups", "lead", "deepest", "nodes", "order", "lengths")


def arrays_of(index: Index) -> dict[str, NDArray[np.generic]]:
    """The cached form: everything in a few long arrays, with the length of each bucket's part."""
    buckets = index.buckets
    table = [
        (
            b.groups,
            b.lead,
            b.trie.deepest,
            len(b.trie.nodes),
            len(b.trie.order),
            len(b.length_start),
        )
        for b in buckets
    ]
    return {
        "table": np.array(table, np.int64).reshape(-1, len(_SIZES)),
        "nodes": np.concatenate([np.zeros(0, NODE), *(b.trie.nodes for b in buckets)]).view(
            np.uint8
        ),
        "order": np.concatenate([np.zeros(0, np.int32), *(b.trie.order for b in buckets)]),
        "by_length": np.concatenate([np.zeros(0, np.int32), *(b.by_length for b in buckets)]),
        "length_start": np.concatenate([np.zeros(0, np.int32), *(b.length_start for b in buckets)]),
        "in_order": index.in_order,
    }


def index_of(arrays: Mapping[str, NDArray[np.generic]], num_words: int) -> Index:
    """Restores the index. Raises ValueError or KeyError if the arrays are malformed."""
    nodes, order = arrays["nodes"].view(NODE), arrays["order"].astype(np.int32)
    by_length, starts = (
        arrays["by_length"].astype(np.int32),
        arrays["length_start"].astype(np.int32),
    )
    found = []
    at = np.zeros(3, np.int64)
    for mask, lead, deepest, *sizes in arrays["table"].astype(np.int64).tolist():
        (n, o, s), (n_end, o_end, s_end) = at.tolist(), (at + sizes).tolist()
        at += sizes
        trie = Trie(nodes[n:n_end], order[o:o_end], deepest)
        bucket = Bucket(mask, bool(lead), trie, by_length[o:o_end], starts[s:s_end], None)
        found.append(_with_bits(bucket, num_words))
    return Index(tuple(found), arrays["in_order"].astype(np.int32))
