"""Which calls run out of time, and when: a heap from which completed calls drop out by themselves.

Knows calls; knows no clock.
"""

from __future__ import annotations

import heapq

from lmprog.runtime.programs.active_call import ActiveCall


class Deadlines:
    """Calls by the moment at which their time is up."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, ActiveCall, float]] = []
        self._num_added = 0
        self._sweep_above = 64

    def add(self, call: ActiveCall, now: float, seconds: float) -> None:
        """`call` has `seconds` from `now` on."""
        self._num_added += 1
        heapq.heappush(self._heap, (now + seconds, self._num_added, call, seconds))
        if len(self._heap) > self._sweep_above:
            self._heap = [entry for entry in self._heap if not entry[2].is_done]
            heapq.heapify(self._heap)
            self._sweep_above = max(64, 2 * len(self._heap))

    @property
    def next(self) -> float | None:
        """When the next call runs out of time; None where no call has a deadline."""
        while self._heap and self._heap[0][2].is_done:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def expired(self, now: float) -> list[tuple[ActiveCall, float]]:
        """Takes out the calls whose time is up, each with the seconds it had."""
        found = []
        while self._heap and self._heap[0][0] <= now:
            _, _, call, seconds = heapq.heappop(self._heap)
            if not call.is_done:
                found.append((call, seconds))
        return found
