"""Masks along given bytes: token healing before a generation, stop strings after a constrained one.

Both objects are immutable and shared by the sequences of a call, each of which keeps its own
progress. Knows bytes, ids and constraints; token healing is explained in
`lmprog.runtime.programs.call_builder`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmprog.constraints.constraint import Constraint, MaskRow, State
from lmprog.constraints.pieces import Pieces, united, without


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
    end-of-sequence.
    """

    texts: tuple[bytes, ...]
    tokens: tuple[int, ...]
    pieces: Pieces
    _rows: dict[tuple[bytes, int], MaskRow] = field(default_factory=dict)

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
