"""Masks along given bytes: token healing before a generation, stop strings after a constrained one.

A vocabulary's tokens are found by bytes: those that start with a given text, and those that are a
prefix of it. All objects are immutable and shared by the sequences of a call, each of which keeps
its own progress. Knows bytes, ids and constraints; token healing is explained in
`lmprog.runtime.programs.call_builder`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from lmprog.constraints.constraint import NARROW, Constraint, MaskRow, State, bit_row

_MAX_ROWS = 256
_MOST_LOOKED = 512
"""Tokens of a state that are looked at for all stop strings together, some 4 ms of work."""


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
        self._with_text: OrderedDict[bytes, MaskRow] = OrderedDict()

    @cached_property
    def _joined(self) -> tuple[bytes, list[int]]:
        """All texts in their order, and where each begins; the end."""
        return b"".join(self._texts), list(accumulate(map(len, self._texts), initial=0))

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

    def within(self, text: bytes) -> MaskRow:
        """The tokens in which `text` stands behind their first byte."""
        row = self._with_text.get(text)
        if row is None:
            (joined, begins), places = self._joined, []
            at = joined.find(text)
            while at >= 0:
                place = bisect_right(begins, at) - 1
                is_found = begins[place] < at and at + len(text) <= begins[place + 1]
                if is_found:
                    places.append(place)
                at = joined.find(text, begins[place + 1] if is_found else at + 1)
            row = self._with_text[text] = self.row(self._order[places])
            if len(self._with_text) > _MAX_ROWS:
                self._with_text.popitem(last=False)
        return row


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


def lacking(row: MaskRow, other: MaskRow) -> MaskRow:
    """What `row` allows and `other` does not; `row` itself where that is nothing or all."""
    shared = both(row, other)
    if shared.count in (0, row.count):
        return row
    if row.ids is not None:
        gone = shared.tokens
        return MaskRow.narrow(row.ids[~np.isin(row.ids, gone)], row.num_words)
    bits = row.bits.copy()
    bits[: shared.num_words] &= ~shared.bits
    return MaskRow(bits, None, row.count - shared.count)


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


@dataclass(frozen=True, slots=True, eq=False)
class Seam:
    """Regenerates `text`; the token that crosses its end must continue as `constraint` allows.

    `barred`: tokens that would end the generation. They may not cross the end of the seam, because
    their text would be lost with them. `token`: what spelled the text before.
    """

    text: bytes
    pieces: Pieces
    constraint: Constraint | None = None
    barred: tuple[int, ...] = ()
    token: int | None = None
    _beyond: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def mask(self, spelled: int, left: int | None) -> MaskRow:
        """The allowed tokens when `spelled` bytes are regenerated and `left` tokens remain (None:
        any number): those within the rest of the text, equal to it, or extending beyond it.
        """
        rest = self.text[spelled:]
        if self.constraint is not None:
            tokens = [
                *self.pieces.inside(rest),
                *self.pieces.spelling(rest).tolist(),
                *self.beyond(spelled, left),
            ]
            return self.pieces.row(tokens)
        row = self.pieces.along(rest)
        return without(
            row,
            [
                token
                for token in self.barred
                if row.allows(token) and self._ends_beyond(token, rest)
            ],
        )

    def beyond(self, spelled: int, left: int | None) -> list[int]:
        """The tokens that extend beyond the seam in a way that the constraint allows."""
        if self.constraint is None:
            places = self.pieces.beyond(self.text[spelled:])
            return [token for token in self.pieces.ids(places).tolist() if token not in self.barred]
        found = self._beyond.get(spelled)
        if found is None:
            found = self._beyond[spelled] = self._allowed_beyond(self.constraint, spelled)
        return [token for token, distance in found if left is None or distance < left]

    def _allowed_beyond(self, constraint: Constraint, spelled: int) -> list[tuple[int, int]]:
        """Each token that extends beyond the seam, with the distance after it."""
        rest = self.text[spelled:]
        places = self.pieces.beyond(rest)
        found: list[tuple[int, int]] = []
        place = places.start
        while place < places.stop:
            piece, token = self.pieces.at(place)
            state = self._after(piece[len(rest) :])
            if state is None:  # so is every other token that starts with the rejected bytes
                place = self.pieces.past(self._refused(piece, len(rest)), place)
                continue
            if token not in self.barred:
                found.append((token, constraint.distance(state)))
            place += 1
        return found

    def after(self, spelled: int, piece: bytes) -> State:
        """The constraint's state after a token that extends beyond the seam."""
        state = self._after(piece[len(self.text) - spelled :])
        assert state is not None, "the mask allowed it"
        return state

    def _after(self, tail: bytes) -> State | None:
        assert self.constraint is not None
        return self.constraint.advance_bytes(self.constraint.start, tail)

    def _refused(self, piece: bytes, rest: int) -> bytes:
        """The shortest prefix of `piece` that no allowed text starts with."""
        end = rest + 1
        while end < len(piece) and self._after(piece[rest:end]) is not None:
            end += 1
        return piece[:end]

    def _ends_beyond(self, token: int, rest: bytes) -> bool:
        return len(self.pieces.bytes_of(token)) > len(rest)


@dataclass(frozen=True, slots=True, eq=False)
class Stops:
    """The stop strings and stop tokens with which a constrained text may end, besides
    end-of-sequence. Where it may not end, none of them is written, unless the constraint leaves
    nothing else: what it prescribes is no stop.
    """

    texts: tuple[bytes, ...]
    tokens: tuple[int, ...]
    pieces: Pieces
    _rows: dict[tuple[bytes, int], MaskRow] = field(default_factory=dict)
    _barred: dict[tuple[bool, tuple[bytes, ...]], MaskRow] = field(default_factory=dict)
    _inside: WeakKeyDictionary[State, dict[bytes, MaskRow]] = field(
        default_factory=WeakKeyDictionary
    )

    def begun(
        self, rests: tuple[bytes, ...], piece: bytes, constraint: Constraint, before: State
    ) -> tuple[bytes, ...]:
        """The rests of stop strings that have begun where the text may not end, once `piece` has
        come behind the state `before`. `rests`: those until then.
        """
        size = len(piece)
        found = [rest[size:] for rest in rests if len(rest) > size and rest.startswith(piece)]
        for at in range(size):
            tail = piece[at:]
            more = [one for one in self.texts if len(one) > len(tail) and one.startswith(tail)]
            if more and not _may_end(constraint, before, piece[:at]):
                found += [one[len(tail) :] for one in more]
        return tuple(dict.fromkeys(found))

    def avoided(
        self, row: MaskRow, rests: tuple[bytes, ...], constraint: Constraint, state: State
    ) -> MaskRow:
        """`row`, the mask of a state, without the tokens that complete a stop string which began
        where the text may not end, and without stop tokens there; `row` itself where these are all.
        """
        is_final = constraint.is_final(state)
        found = lacking(row, self._completing(is_final, rests))
        known = self._inside.setdefault(state, {})
        for text in self.texts:
            within = self.pieces.within(text)
            if both(found, within).count:
                if text not in known:
                    known[text] = self._barred_in(within, text, constraint, state)
                found = lacking(found, known[text])
        return found

    def _barred_in(
        self, row: MaskRow, text: bytes, constraint: Constraint, state: State
    ) -> MaskRow:
        """Those of the tokens with `text` inside before which the text may not end. Where they are
        many, the state tells: none if the text may end there, else all, as what stands before the
        stop may come alone.
        """
        if row.count > _MOST_LOOKED // len(self.texts):
            return self.pieces.row(()) if constraint.is_final(state) else row
        ids = []
        for token in row.tokens.tolist():
            piece = self.pieces.bytes_of(token)
            if not _may_end(constraint, state, piece[: piece.index(text, 1)]):
                ids.append(token)
        return self.pieces.row(ids)

    def _completing(self, is_final: bool, rests: tuple[bytes, ...]) -> MaskRow:
        key = is_final, rests
        row = self._barred.get(key)
        if row is None:
            ids = [] if is_final else list(self.tokens)
            for rest in rests if is_final else (*self.texts, *rests):
                ids += self.pieces.spelling(rest).tolist()
                ids += self.pieces.ids(self.pieces.beyond(rest)).tolist()
            row = self._barred[key] = self.pieces.row(list(dict.fromkeys(ids)))
            if len(self._barred) > _MAX_ROWS:
                del self._barred[next(iter(self._barred))]
        return row

    def beside(self, row: MaskRow, left: int) -> MaskRow:
        """`row`, the mask of a final state, with the tokens added that start a stop string."""
        return united(row, self._row(b"", left, self.tokens))

    def mask(self, begun: bytes, left: int) -> MaskRow:
        """The tokens that continue the stop string of which `begun` is generated."""
        return self._row(begun, left, ())

    def is_over(self, begun: bytes) -> bool:
        """Whether a stop string is complete."""
        return begun.startswith(self.texts)

    def _row(self, begun: bytes, left: int, more: tuple[int, ...]) -> MaskRow:
        """Tokens that complete a stop string, or leave a rest that fits into the budget byte by
        byte.
        """
        left = min(left, max(map(len, self.texts), default=0))  # a larger one makes no difference
        found = self._rows.get((begun, left))
        if found is None:
            ids = list(more)
            for rest in [stop[len(begun) :] for stop in self.texts if stop.startswith(begun)]:
                ids += self.pieces.spelling(rest).tolist()
                ids += self.pieces.ids(self.pieces.beyond(rest)).tolist()
                ids += self.pieces.inside(rest, shortest=len(rest) - left + 1)
            found = self._rows[begun, left] = self.pieces.row(list(dict.fromkeys(ids)))
        return found


def _may_end(constraint: Constraint, state: State, text: bytes) -> bool:
    after = constraint.advance_bytes(state, text) if text else state
    return after is not None and constraint.is_final(after)
