"""Whether a runtime makes progress, by its answers, its figures, and its processor time, or what it
waits for a processor; and when one that does not is started again.

Judges progress, not life: a runtime that has work and brings no token and admits nobody for
`stall` seconds is hung, whatever its process does, and so is one whose loop does not answer for
`frozen` seconds. Only while its process really computes may an answer take longer, up to
`longest_step`, since a long step on a slow machine answers after it.

Knows figures by name and times of its caller's clock; asks nobody, starts and ends nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

COMPUTING = 0.1
"""Share of one processor from which on a process computes; heartbeats alone need far less."""
LONGEST_GAP = 1.0
"""Seconds. What lies between two looks at a runtime beyond this does not count against it: whoever
looks stood still, or the machine did.
"""
_MOVING = ("computed_tokens", "cached_tokens", "generated_tokens", "calls_done", "calls_failed")


@dataclass(frozen=True, slots=True)
class HangTimeouts:
    """All in seconds."""

    silence: float = 1.5
    """A runtime that answers nothing and computes nothing for this long is not ready."""
    stall: float = 10.0
    """One that answers and has work, but brings no token and admits nobody for this long, hangs."""
    frozen: float = 10.0
    """One that answers nothing and computes nothing for this long hangs."""
    longest_step: float = 120.0


class ProgressWatch:
    """Watches one runtime, from the moment it serves."""

    def __init__(self, timeouts: HangTimeouts, now: float, cpu: float | None = 0.0) -> None:
        """`cpu`: the processor seconds that its process has used until `now`; None where nobody
        here can tell, as of a runtime on another machine: then only its answers count.
        """
        self._timeouts = timeouts
        self._answered = self._moved = self._worked = now
        self._cpu = cpu
        self._progress: tuple[float, ...] = ()

    def take_figures(self, figures: Mapping[str, float], now: float) -> None:
        """The runtime's loop gave its figures."""
        self._answered = now
        progress = tuple(figures.get(name, 0.0) for name in _MOVING)
        idle = not figures.get("waiting") and not figures.get("running")
        if idle or progress != self._progress:
            self._moved = now
        self._progress = progress

    def take_pulse(self, cpu: float, now: float, passed: float) -> None:
        """The processor seconds that its process has used or waited for, `passed` since the last
        pulse.
        """
        if self._cpu is not None and cpu - self._cpu > COMPUTING * passed:
            self._worked = now
        self._cpu = cpu

    def is_responsive(self, now: float) -> bool:
        """Whether it answered, or computed, a moment ago: a long step is no hang."""
        longest = self._timeouts.silence if self._cpu is not None else self._timeouts.stall
        return now - max(self._answered, self._worked) <= longest

    def trouble(self, now: float, silent_since: float | None = None) -> str | None:
        """Why the runtime must be ended now; None if there is no reason. `silent_since` is for a
        runtime that is not asked at the moment: since then it could not have answered.
        """
        timeouts = self._timeouts
        silent = now - (self._answered if silent_since is None else silent_since)
        if silent > timeouts.longest_step:
            return f"its loop has not answered for {silent:.1f} s, longer than a step may take"
        computes_nothing = self._cpu is not None and now - self._worked > timeouts.frozen
        if silent > timeouts.frozen and computes_nothing:
            return f"its loop has not answered for {silent:.1f} s, and its process computes nothing"
        # both are times of answers: a long step between two of them is none
        still = self._answered - self._moved
        if silent_since is None and still > timeouts.stall:
            return f"it has work, but no token came and nobody was admitted for {still:.1f} s"
        return None


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
