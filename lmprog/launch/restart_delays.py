"""How long to wait before a runtime is started again: nothing after a long life, else twice as long
each time. Knows no processes and no clock.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

log = logging.getLogger("lmprog")


@dataclass(frozen=True, slots=True)
class DelayLimits:
    """All in seconds."""

    settled: float = 60.0
    """A life that was longer than this is a new beginning: the next restart does not wait."""
    first: float = 1.0
    longest: float = 30.0


class RestartDelays:
    """Of one runtime over its lives."""

    def __init__(self, limits: DelayLimits | None = None) -> None:
        self._limits = limits or DelayLimits()
        self._short_lives = 0

    def after(self, lived: float | None) -> float:
        """Seconds before the next start; the runtime served for `lived`, or never (None)."""
        limits = self._limits
        settled = lived is not None and lived > limits.settled
        self._short_lives = 1 if settled else self._short_lives + 1
        if self._short_lives == 1:
            return 0.0
        delay = min(limits.longest, limits.first * 2.0 ** min(self._short_lives - 2, 30))
        log.warning(
            "the runtime died %d times in short; the next start is in %g s",
            self._short_lives,
            delay,
        )
        return delay
