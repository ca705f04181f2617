"""The last hour of the runtime's figures, a sample every few seconds, for the charts of the page.

Fed with figures that are asked for anyway. Counters begin again at 0 with a new runtime; whoever
draws rates leaves out where one falls. Knows figures by name; asks nobody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

EVERY = 10.0
"""Seconds between two samples, at least."""
SPAN = 3600.0
"""Seconds that are kept."""
NAMES = (
    "cached_tokens",
    "prefill_tokens",
    "generated_tokens",
    "forced_tokens",
    "running",
    "waiting",
    "pages",
    "pages_free",
)


class FigureHistory:
    """Samples of one runtime's figures, or of the sums of several."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, ...]] = deque(maxlen=int(SPAN / EVERY))

    def see(self, figures: Mapping[str, float]) -> None:
        """The figures of now; taken where the last sample is old enough."""
        now = self._clock()
        if not self._samples or now >= self._samples[-1][0] + EVERY:
            self._samples.append((now, *(figures.get(name, 0.0) for name in NAMES)))

    def rows(self) -> list[list[float]]:
        """Seconds ago and the figures of `NAMES`, the oldest first."""
        now = self._clock()
        return [
            [round(now - sample[0], 1), *sample[1:]]
            for sample in self._samples
            if now - sample[0] <= SPAN
        ]
