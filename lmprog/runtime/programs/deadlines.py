"""Which calls run out of time, and when: a heap that forgets answered calls by itself.

Knows calls under way; knows no clock.
"""

from __future__ import annotations

import heapq

from lmprog.runtime.programs.active_call import ActiveCall


class Deadlines:
    """Calls by the moment at which their time is up."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, ActiveCall, float]] = []
        self._added = 0
        self._swept_at = 64

    def add(self, active: ActiveCall, now: float, seconds: float) -> None:
        """`active` has `seconds` from `now` on."""
        self._added += 1
        heapq.heappush(self._heap, (now + seconds, self._added, active, seconds))
        if len(self._heap) > self._swept_at:
            self._heap = [entry for entry in self._heap if not entry[2].replied]
            heapq.heapify(self._heap)
            self._swept_at = max(64, 2 * len(self._heap))

    @property
    def next(self) -> float | None:
        """When the next unanswered call runs out of time."""
        while self._heap and self._heap[0][2].replied:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def expired(self, now: float) -> list[tuple[ActiveCall, float]]:
        """Takes out the calls whose time is up, each with the seconds it had."""
        found = []
        while self._heap and self._heap[0][0] <= now:
            _, _, active, seconds = heapq.heappop(self._heap)
            if not active.replied:
                found.append((active, seconds))
        return found
