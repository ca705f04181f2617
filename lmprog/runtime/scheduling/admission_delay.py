"""Whether a new sequence should wait for memory that idle branches stand on: only as long as such
branches do come back.

When memory is short, a program that pauses between two turns loses its pages to the next one in the
line, which will lose them in turn: everybody computes everything again. If the line waits a few
steps instead, the pausing program's next turn comes first and finds its pages. But branches that
never come back must not hold up anybody. So patience is earned: every branch that comes back to
pages that nobody else held buys some steps of waiting, every step of waiting costs one.

Numbers only; knows no sequences and no tree.
"""

from __future__ import annotations

MOST = 64
"""Steps of patience that can be saved up."""
EARNED = 16
"""Steps that one return is worth."""


class AdmissionDelay:
    """Begins with what one return is worth."""

    def __init__(self) -> None:
        self._steps = EARNED

    @property
    def left(self) -> bool:
        return self._steps > 0

    def earn(self) -> None:
        """A branch came back."""
        self._steps = min(MOST, self._steps + EARNED)

    def spend(self) -> None:
        """The line waited for a step."""
        self._steps -= 1
