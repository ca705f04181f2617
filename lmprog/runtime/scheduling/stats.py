"""What the runtime has done so far, as plain counters: the work, not the rate.

Everything here is a sum, a peak or a distribution over the runtime's life. It knows plans only by
their counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from lmprog.runtime.scheduling.plan import Plan

WAIT_BOUNDS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Upper ends of the classes of waiting, in passes; the last class has none."""


class Histogram:
    """How a quantity is distributed: counts by class, and the sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def see(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def figures(self, name: str) -> Mapping[str, float]:
        """`name_le_BOUND` for each class (not added up), `name_le_inf` for the last one, and
        `name_sum`.
        """
        ends = [*(f"{bound:g}" for bound in self.bounds), "inf"]
        found = {
            f"{name}_le_{end}": float(count) for end, count in zip(ends, self.counts, strict=True)
        }
        return {**found, f"{name}_sum": self.sum}


@dataclass(slots=True)
class Stats:
    """Tokens, steps, calls. `computed_tokens` counts every (row, token) that went through the
    model.
    """

    steps: int = 0
    rows: int = 0
    computed_tokens: int = 0
    prefill_tokens: int = 0
    """Computed in rows of more than one token."""
    cached_tokens: int = 0
    """Found in the tree when a sequence was admitted first."""
    looked_up_tokens: int = 0
    """Looked for then."""
    generated_tokens: int = 0
    forced_tokens: int = 0
    calls: int = 0
    calls_done: int = 0
    calls_failed: int = 0
    forks: int = 0
    fork_shared_tokens: int = 0
    """Tokens that forked branches began with."""
    branches: int = 0
    preemptions: int = 0
    evicted_pages: int = 0
    copied_slots: int = 0
    mirrored_slots: int = 0
    peak_pages: int = 0
    peak_running: int = 0
    peak_waiting: int = 0
    failed_steps: int = 0
    invariant_failures: int = 0
    """Books that did not balance when looked at in a pause; anything but 0 is a bug of ours."""

    idle_seconds: float = 0.0
    """Waited for messages with nothing to do."""
    wait_passes: Histogram = field(default_factory=lambda: Histogram(WAIT_BOUNDS))
    """Passes of the scheduler between a sequence's arrival and its first admission."""

    def count_admission(self, passes: int, num_tokens: int, cached: int) -> None:
        """A sequence of `num_tokens` was admitted for the first time; the tree had `cached` of them."""
        self.wait_passes.see(passes)
        self.looked_up_tokens += num_tokens
        self.cached_tokens += cached

    def see_plan(self, plan: Plan, running: int, waiting: int, pages: int) -> None:
        """Counts one plan."""
        counts = [row.count for row in plan.rows]
        self.steps += bool(counts)
        self.rows += len(counts)
        self.computed_tokens += sum(counts)
        self.prefill_tokens += sum(count for count in counts if count > 1)
        self.copied_slots += len(plan.copies)
        self.mirrored_slots += len(plan.mirrors)
        self.peak_running = max(self.peak_running, running)
        self.peak_waiting = max(self.peak_waiting, waiting)
        self.peak_pages = max(self.peak_pages, pages)

    def figures(self) -> dict[str, float]:
        """All counters by name."""
        found: dict[str, float] = {}
        for one in fields(self):
            value = getattr(self, one.name)
            found.update(
                value.figures(one.name)
                if isinstance(value, Histogram)
                else {one.name: float(value)}
            )
        return found
