"""A vocabulary's tokens by bytes: those that start with a given text, and those that are a prefix.

Used for masks that follow a given text instead of an automaton: token healing, and stop strings
after a constrained text. Knows bytes and ids; knows no constraint and no model.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lmprog.constraints.constraint import NARROW, MaskRow, bit_row

_MAX_ROWS = 256


class Pieces:
    """Logically immutable; make one per tokenizer. `tokens[i]` are the bytes of token i, None if
    special.
    """

    def __init__(
        self, tokens: Sequence[bytes | None], in_order: NDArray[np.int32] | None = None
    ) -> None:
        """`in_order`: the tokens with bytes, sorted by these and by id, where that is known."""
        if in_order is None:
            pairs = sorted((piece, token) for token, piece in enumerate(tokens) if piece)
            in_order = np.array([token for _, token in pairs], np.int32)
        self._texts = [piece for token in in_order.tolist() if (piece := tokens[token])]
        self._order = in_order
        self._known = frozenset(self._texts)
        self._tokens = tuple(tokens)
        self._num_words = (len(tokens) + 31) // 32
        self._rows: OrderedDict[bytes, MaskRow] = OrderedDict()

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token that is not special."""
        piece = self._tokens[token] if 0 <= token < len(self._tokens) else None
        assert piece, "only tokens with bytes are allowed by the masks here"
        return piece

    def spelling(self, text: bytes) -> NDArray[np.int32]:
        """The tokens that are exactly `text`."""
        first = bisect_left(self._texts, text)
        last = first
        while last < len(self._texts) and self._texts[last] == text:
            last += 1
        return self._order[first:last]

    def beyond(self, text: bytes) -> range:
        """Positions, for `at`, of the tokens that are longer than `text` and start with
        it, sorted.
        """
        first = bisect_left(self._texts, text) + len(self.spelling(text))
        return range(first, max(first, bisect_left(self._texts, _after(text), first)))

    def at(self, place: int) -> tuple[bytes, int]:
        """The bytes and the id of the token at a position."""
        return self._texts[place], int(self._order[place])

    def past(self, text: bytes, place: int) -> int:
        """The first position from `place` on whose token does not start with `text`."""
        return bisect_left(self._texts, _after(text), place)

    def ids(self, places: range) -> NDArray[np.int32]:
        return self._order[places.start : places.stop]

    def inside(self, text: bytes, shortest: int = 1) -> list[int]:
        """The tokens of at least `shortest` bytes that are a proper prefix of `text`, if tokens can
        spell the rest.
        """
        found: list[int] = []
        for end in range(max(1, shortest), len(text)):
            if text[:end] in self._known and self.can_spell(text[end:]):
                found += self.spelling(text[:end]).tolist()
        return found

    def can_spell(self, text: bytes) -> bool:
        """Whether some sequence of tokens spells `text`."""
        can = [False] * len(text) + [True]
        for begin in reversed(range(len(text))):
            can[begin] = any(
                can[end] and text[begin:end] in self._known
                for end in range(begin + 1, len(text) + 1)
            )
        return can[0]

    def row(self, ids: Sequence[int] | NDArray[np.int32]) -> MaskRow:
        """A mask that allows these tokens, which must be distinct."""
        return mask_row(ids, self._num_words)

    def along(self, text: bytes) -> MaskRow:
        """The tokens that start with `text`, and those that `text` starts with."""
        found = self._rows.get(text)
        if found is None:
            parts = [
                self.spelling(text),
                self.ids(self.beyond(text)),
                np.array(self.inside(text), np.int32),
            ]
            found = self._rows[text] = self.row(np.concatenate(parts))
            if len(self._rows) > _MAX_ROWS:
                self._rows.popitem(last=False)
        return found


def mask_row(ids: Sequence[int] | NDArray[np.int32], num_words: int) -> MaskRow:
    """A mask that allows these tokens, which must be distinct."""
    ordered = np.sort(np.asarray(ids, np.int32))
    ordered.flags.writeable = False
    if len(ordered) <= NARROW:
        return MaskRow.narrow(ordered, num_words)
    bits = bit_row(ordered, num_words)
    bits.flags.writeable = False
    return MaskRow(bits, None, len(ordered))


def without(row: MaskRow, tokens: Sequence[int]) -> MaskRow:
    """`row` with some tokens removed."""
    gone = [token for token in dict.fromkeys(tokens) if row.allows(token)]
    if not gone:
        return row
    if row.ids is not None:
        return MaskRow.narrow(row.ids[~np.isin(row.ids, gone)], row.num_words)
    bits = row.bits.copy()
    for token in gone:
        bits[token >> 5] &= ~np.uint32(1 << (token & 31))
    return MaskRow(bits, None, row.count - len(gone))


def united(row: MaskRow, other: MaskRow) -> MaskRow:
    """The union of two masks of one vocabulary."""
    if row.ids is not None and other.ids is not None:
        ids = np.union1d(row.ids, other.ids)
        if len(ids) <= NARROW:
            return MaskRow.narrow(ids, row.num_words)
    bits = row.bits | other.bits
    return MaskRow(bits, None, int(np.bitwise_count(bits).sum()))


def both(row: MaskRow, other: MaskRow) -> MaskRow:
    """What two masks of one vocabulary both allow."""
    if row.ids is not None and other.ids is not None:
        found = np.intersect1d(row.ids, other.ids, assume_unique=True)
        return MaskRow.narrow(found, row.num_words)
    narrow, wide = (row, other) if row.ids is not None else (other, row)
    if narrow.ids is not None:
        ids = narrow.ids[narrow.ids >> 5 < wide.num_words]
        is_in = wide.bits[ids >> 5] >> (ids & 31).astype(np.uint32) & np.uint32(1)
        return MaskRow.narrow(ids[is_in.astype(bool)], row.num_words)
    words = min(row.num_words, other.num_words)
    bits = row.bits[:words] & other.bits[:words]
    return MaskRow(bits, None, int(np.bitwise_count(bits).sum()))


def _after(text: bytes) -> bytes:
    """The smallest byte string after all that start with `text`. No tokens lie beyond all 0xff."""
    stripped = text.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else b"\xff" * (len(text) + 256)
