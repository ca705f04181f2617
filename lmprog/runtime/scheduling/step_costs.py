"""What a step costs, measured while running: seconds = fixed + per_token * tokens.

A least squares fit over recent steps. Knows counts and seconds; has no clock of its own.
"""

from __future__ import annotations

DECAY = 0.99
"""Weight of the past at each new step: about the last hundred steps count."""
HEADROOM = 0.75
"""Of the time that a step may last, the part that is planned: the rest is for what varies."""
FIRST_CHUNK = 64
"""Tokens that a step may have before any larger step has been measured."""


class StepCosts:
    """Until steps of different sizes were seen, all of the time counts as the tokens'."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._tokens = 0.0
        self._seconds = 0.0
        self._squares = 0.0
        self._products = 0.0
        self._largest = FIRST_CHUNK
        self.fixed = 0.0
        """Seconds of a step that do not depend on its tokens."""
        self.per_token = 0.0
        """Seconds that one more token takes."""

    def observe(self, num_tokens: int, seconds: float) -> None:
        """A step of `num_tokens` tokens took `seconds`."""
        self._weight = self._weight * DECAY + 1.0
        self._tokens = self._tokens * DECAY + num_tokens
        self._seconds = self._seconds * DECAY + seconds
        self._squares = self._squares * DECAY + num_tokens * num_tokens
        self._products = self._products * DECAY + num_tokens * seconds
        self._largest = max(self._largest, num_tokens)
        self._fit()

    def _fit(self) -> None:
        """One more observation of nothing in no time keeps the slope sane where sizes are alike."""
        weight = self._weight + 1.0
        mean_tokens, mean_seconds = self._tokens / weight, self._seconds / weight
        variance = self._squares / weight - mean_tokens**2
        covariance = self._products / weight - mean_tokens * mean_seconds
        slope = covariance / variance if variance > 0.0 else 0.0
        most = self._seconds / self._tokens if self._tokens else 0.0
        self.per_token = min(max(slope, 0.0), most)
        self.fixed = max(0.0, (self._seconds - self.per_token * self._tokens) / self._weight)

    def token_cost(self) -> float:
        """`per_token` as it is when it is asked for."""
        return self.per_token

    def tokens_within(self, seconds: float) -> int:
        """Tokens that a step may have to last at most `seconds`. At most twice the largest step
        measured so far, because what was not measured may cost more."""
        most = 2 * self._largest
        if self.per_token <= 0.0:
            return most
        return min(most, max(0, int((HEADROOM * seconds - self.fixed) / self.per_token)))
