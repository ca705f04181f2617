"""What a call says of tokens besides its constraint: those that alone may be sampled, and sequences
that may not be generated.

Knows token ids and masks; knows no text. Made once per call and shared by its sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lmprog.constraints.constraint import MaskRow
from lmprog.constraints.pieces import both, united
from lmprog.errors import UnsatisfiableConstraint


class BannedSequences:
    """Sequences of tokens of which the last one is banned wherever the others have been generated,
    as vLLM bans `bad_words`.
    """

    def __init__(self, sequences: Iterable[tuple[int, ...]]) -> None:
        """`sequences` are not empty."""
        distinct = dict.fromkeys(sequences)
        self.single = tuple(one[0] for one in distinct if len(one) == 1)
        """Banned everywhere."""
        self._longer: dict[int, list[tuple[tuple[int, ...], int]]] = {}
        """By the last token but one: all tokens but the last, and the last."""
        for *begin, last in distinct:
            if begin:
                self._longer.setdefault(begin[-1], []).append((tuple(begin), last))

    def after(self, tokens: Sequence[int], begin: int) -> tuple[int, ...]:
        """The tokens that may not follow `tokens`, of which those from `begin` on count."""
        if begin >= len(tokens):
            return self.single
        found = [
            last
            for start, last in self._longer.get(tokens[-1], ())
            if len(start) <= len(tokens) - begin and tuple(tokens[-len(start) :]) == start
        ]
        return (*self.single, *found) if found else self.single


class TokenRules:
    """The rules of one call. `allowed` is None where every token may be sampled."""

    def __init__(
        self, allowed: MaskRow | None, ends: MaskRow, banned: BannedSequences | None
    ) -> None:
        """`ends` are the tokens that end a text: under a constraint, which says where that may be,
        they are allowed always.
        """
        self.allowed = allowed
        self.banned = banned
        self._allowed_or_end = None if allowed is None else united(allowed, ends)

    def narrowed(self, row: MaskRow | None) -> MaskRow | None:
        """The tokens that both a constraint's `row` and these rules allow. Raises
        `UnsatisfiableConstraint` where there is none.
        """
        if self._allowed_or_end is None or row is None:
            return self.allowed if row is None else row
        found = both(row, self._allowed_or_end)
        if not found.count:
            raise UnsatisfiableConstraint(
                "the constraint allows none of allowed_token_ids here; give it tokens that can "
                "spell its texts, or leave allowed_token_ids out."
            )
        return found
