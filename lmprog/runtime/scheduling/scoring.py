"""The task of a sequence whose tokens are given: their log-probabilities are read.

Knows token ids; knows neither pages, text nor tensors.
"""

from __future__ import annotations

from lmprog.constraints.constraint import MaskRow
from lmprog.runtime.scheduling.generation import ScoredToken


class Scoring:
    """Reads the log-probability of each of the sequence's tokens from position `first` on, given
    all before it, and of each of `finals` as the token after the sequence's last.

    Options of a select that differ only in their last token are one sequence with several finals.
    With each final come the `top` likeliest tokens in its place, of those that `mask` allows.
    """

    __slots__ = ("final_logprobs", "finals", "first", "logprobs", "mask", "top")
    is_plain = False
    """See `Generation.is_plain`."""

    def __init__(
        self, first: int, finals: tuple[int, ...], top: int = 0, mask: MaskRow | None = None
    ) -> None:
        assert first >= 1, "the first token of a text has no logits before it"
        self.first = first
        self.finals = finals
        self.top = top
        self.mask = mask
        self.logprobs: list[ScoredToken] = []
        self.final_logprobs: tuple[ScoredToken, ...] = ()

    def logits_from(self, num_tokens: int) -> int:
        """One position before the next token to score."""
        return min(self.first - 1 + len(self.logprobs), num_tokens - 1)

    def logits_after(self, end: int, num_tokens: int) -> int:
        """As `logits_from`, once those before `end` are known. Others are known already where a
        sequence that was preempted is computed again.
        """
        return max(end, self.logits_from(num_tokens))
