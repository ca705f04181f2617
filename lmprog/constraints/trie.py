"""A vocabulary's tokens as flat tries, built once per tokenizer with whole-array operations.

Nodes are in depth-first order, so a walk is one forward scan: when a node's byte is rejected,
adding `sub` skips its subtree. Node p is (sub, first, byte, depth, own): the tokens that end at p
are order[first : first + own], and those of its subtree extend to the next sibling's `first`. Knows
bytes and token ids; knows no automaton.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
