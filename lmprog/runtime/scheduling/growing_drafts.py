"""Drafts that a small model writes token by token, each asked for as the large one is asked.

The draft model samples with the same random number, mask, penalties and bans that the token at that
position will have. So what it proposes is a fixed token, and the text is the one without drafts,
whatever it proposes; and where both models expect the same, they draw the same, also at high
temperatures. A draft that is drawn by itself and accepted by chance would be equal in distribution
only, and accepted no more often than the most likely token is drawn.

Knows rows, tasks and requests; what computes is a `DraftModel`.
"""

from __future__ import annotations

from collections.abc import Sequence as Drafts
from typing import Protocol

from lmprog.errors import LmprogError
from lmprog.runtime.scheduling.drafts import RowDraft, after_guess, before_stop
from lmprog.runtime.scheduling.generation import Generation
from lmprog.runtime.scheduling.logits_requests import plain_request, sample_request
from lmprog.runtime.scheduling.plan import Row
from lmprog.runtime.scheduling.sampling_requests import SampleRequest


class GrowingDraft:
    """How a row may go on, as far as that is written."""

    def __init__(self, row: Row, task: Generation, most: int, room: int) -> None:
        """At most `most` sampled tokens, and with forced ones at most `room`."""
        self.row = row
        self.sequence = row.sequence
        self.tokens = row.sequence.tokens[:]
        """The known ones, and those that are drafted."""
        self.is_over = most <= 0 or room <= 0
        self._task = self._ahead = task
        self._most = most
        self._end = len(self.tokens) + room
        self._lengths: list[int] = []
        self._aheads: list[Generation] = []

    def request(self, logit: int) -> SampleRequest | None:
        """The request for its next token; None, and it is over, where its constraint exceeded its
        limits.
        """
        if self._task.is_plain:
            return plain_request(self.row, self._task, logit, len(self._lengths))
        try:
            return sample_request(self.tokens, self._ahead, logit)
        except LmprogError:
            self.is_over = True
            return None

    def take(self, token: int) -> None:
        """The next token; it is over where that ends the text, or where it is long enough."""
        task, num_before = self._task, len(self.tokens)
        if task.is_plain:
            if task.is_end(token):
                self.is_over = True
                return
            self.tokens.append(token)
        else:
            after = after_guess(self._ahead, [token], self.tokens)
            if after is None or len(self.tokens) > self._end:
                del self.tokens[num_before:]
                self.is_over = True
                return
            self._ahead = after
            self._aheads.append(after)
        self._lengths.append(len(self.tokens) - num_before)
        self.is_over = len(self._lengths) >= self._most or len(self.tokens) >= self._end

    def whole(self) -> RowDraft | None:
        """All of it; None where nothing was drafted."""
        drafted = self.tokens[len(self.sequence.tokens) :]
        return before_stop(self._task, drafted, self._lengths, self._aheads)


class DraftModel(Protocol):
    """A small model with memory of its own, in which it keeps what it has read of sequences."""

    @property
    def num_pages(self) -> int: ...

    @property
    def num_free_pages(self) -> int: ...

    def extend(self, drafts: Drafts[GrowingDraft]) -> None:
        """Writes on each of them until it is over; on none that it cannot read yet."""
        ...
