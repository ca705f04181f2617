"""A vocabulary's tokens by what they may be of a list of JSON's scalars: quotes, commas, brackets.

Found once per vocabulary. Knows tokens; knows no constraint.
"""

from __future__ import annotations

import re
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from lmprog.constraints.constraint import MaskRow
from lmprog.constraints.pieces import Pieces
from lmprog.constraints.vocabulary import Vocabulary

QUOTE = ord('"')
_ONLY_BETWEEN = re.compile(rb"[ \t\r\n,]+").fullmatch
"""What may stand between two items."""
_BARE = rb"[-0-9tfn]"
"""How a number, `true`, `false` or `null` begins."""
_IS_BARE = re.compile(_BARE + rb"[^\],\s]*").fullmatch
_BEGINS_BARE = re.compile(rb"(?:^|[\[\],\"\s])\s*" + _BARE).search
_ENDS_BARE = re.compile(rb"[],\s]").search


class QuotedTokens:
    """A vocabulary's tokens by the quotes and commas in them."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.pieces = Pieces(vocabulary.tokens, vocabulary.index.in_order)
        tokens = [(i, one) for i, one in enumerate(vocabulary.tokens) if one]
        quoted = [(i, one) for i, one in tokens if b'"' in one]
        self.first = int_array([i for i, one in quoted if one[0] == QUOTE])
        self.several = int_array([i for i, one in quoted if one.count(b'"') > 2])
        """A token with a whole item behind the end of another has so many."""
        self.commas = int_array([i for i, one in quoted if one.count(b'"') > 2 or b"," in one])
        self.between = int_array(
            [i for i, one in tokens if one[0] != QUOTE and (b'"' in one or _ONLY_BETWEEN(one))]
        )
        self.brackets = int_array([i for i, one in tokens if b"[" in one])
        self.arrays = int_array([i for i, one in quoted if b"[" in one and one.count(b'"') > 1])
        self.ends = int_array([i for i, one in tokens if _ENDS_BARE(one)])
        """What may end a bare item."""
        self.bare = int_array([i for i, one in tokens if _IS_BARE(one)])
        bare = [(i, one) for i, one in tokens if _BEGINS_BARE(one) and not _IS_BARE(one)]
        self.bare_behind = int_array([i for i, _ in bare])
        """One that begins behind something else, or that something else follows."""
        arrays = [i for i, one in bare if b"[" in one]
        self.bare_arrays = np.union1d(self.arrays, int_array(arrays))


def within(row: MaskRow, tokens: NDArray[np.int32]) -> list[int]:
    """Those of `tokens` that the mask allows."""
    if row.ids is not None:
        found: list[int] = np.intersect1d(row.ids, tokens).tolist()
        return found
    bits = row.bits[tokens >> 5] >> (tokens & 31).astype(np.uint32) & np.uint32(1)
    kept: list[int] = tokens[bits.astype(bool)].tolist()
    return kept


def int_array(tokens: list[int]) -> NDArray[np.int32]:
    return np.array(tokens, np.int32)


def ids_of(row: MaskRow) -> NDArray[np.int32]:
    if row.ids is not None:
        return row.ids
    return np.nonzero(np.unpackbits(row.bits.view(np.uint8), bitorder="little"))[0].astype(np.int32)


_known: WeakKeyDictionary[Vocabulary, QuotedTokens] = WeakKeyDictionary()


def quoted_tokens(vocabulary: Vocabulary) -> QuotedTokens:
    found = _known.get(vocabulary)
    if found is None:
        found = _known[vocabulary] = QuotedTokens(vocabulary)
    return found
