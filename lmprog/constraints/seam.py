"""Masks along given bytes: a seam that is spelled again before a generation, a stop that ends a
constrained one.

Both are immutable and shared by the lanes of a call; how far a lane has come is its own. Knows
bytes, ids and constraints; what a seam is for is told in `lmprog.runtime.programs.healing`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmprog.constraints.constraint import Constraint, MaskRow, State
from lmprog.constraints.pieces import Pieces, united, without


@dataclass(frozen=True, slots=True, eq=False)
class Seam:
    """`text` is spelled again; the token that goes beyond it must go on as `constraint` allows.

    `barred`: tokens that would end the generation; they may not go beyond the seam, which would be
    lost with them.
    """

    text: bytes
    pieces: Pieces
    constraint: Constraint | None = None
    barred: tuple[int, ...] = ()

    def mask(self, spelled: int, left: int) -> MaskRow:
        """The tokens allowed when `spelled` bytes stand again and `left` tokens may be generated:
        those inside the rest, those that are the rest, and those that go beyond it."""
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

    def beyond(self, spelled: int, left: int) -> list[int]:
        """The tokens that go beyond the seam, and that what is to follow allows."""
        rest = self.text[spelled:]
        places = self.pieces.beyond(rest)
        if self.constraint is None:
            return [token for token in self.pieces.ids(places).tolist() if token not in self.barred]
        found: list[int] = []
        place = places.start
        while place < places.stop:
            piece, token = self.pieces.at(place)
            state = self._after(piece[len(rest) :])
            if state is None:  # nor does any other that begins with what was refused of it
                place = self.pieces.past(self._refused(piece, len(rest)), place)
                continue
            if self.constraint.distance(state) < left and token not in self.barred:
                found.append(token)
            place += 1
        return found

    def after(self, spelled: int, piece: bytes) -> State:
        """The constraint's state after a token that goes beyond the seam."""
        state = self._after(piece[len(self.text) - spelled :])
        assert state is not None, "the mask allowed it"
        return state

    def _after(self, tail: bytes) -> State | None:
        assert self.constraint is not None
        return self.constraint.advance_bytes(self.constraint.start, tail)

    def _refused(self, piece: bytes, rest: int) -> bytes:
        """The shortest beginning of `piece` that nothing allowed begins with."""
        end = rest + 1
        while end < len(piece) and self._after(piece[rest:end]) is not None:
            end += 1
        return piece[:end]

    def _ends_beyond(self, token: int, rest: bytes) -> bool:
        return len(self.pieces.bytes_of(token)) > len(rest)


@dataclass(frozen=True, slots=True, eq=False)
class Stops:
    """How a constrained text may end besides end-of-sequence: with one of `texts`, or with one of
    `tokens`.
    """

    texts: tuple[bytes, ...]
    tokens: tuple[int, ...]
    pieces: Pieces
    _rows: dict[tuple[bytes, int], MaskRow] = field(default_factory=dict)

    def beside(self, row: MaskRow, left: int) -> MaskRow:
        """`row`, the mask of a state in which the text may end, with the tokens that begin a
        stop.
        """
        return united(row, self._row(b"", left, self.tokens))

    def mask(self, begun: bytes, left: int) -> MaskRow:
        """The tokens that go on with the stop of which `begun` stands."""
        return self._row(begun, left, ())

    def is_over(self, begun: bytes) -> bool:
        """Whether a whole stop stands."""
        return begun.startswith(self.texts)

    def _row(self, begun: bytes, left: int, more: tuple[int, ...]) -> MaskRow:
        """Tokens that complete a stop, or leave so little of it that it can be completed byte by
        byte.
        """
        left = min(left, max(map(len, self.texts), default=0))  # more makes no difference
        found = self._rows.get((begun, left))
        if found is None:
            ids = list(more)
            for rest in [stop[len(begun) :] for stop in self.texts if stop.startswith(begun)]:
                ids += self.pieces.spelling(rest).tolist()
                ids += self.pieces.ids(self.pieces.beyond(rest)).tolist()
                ids += self.pieces.inside(rest, shortest=len(rest) - left + 1)
            found = self._rows[begun, left] = self.pieces.row(list(dict.fromkeys(ids)))
        return found
