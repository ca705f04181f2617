"""What the runtime has done so far, as plain counters: the work, not the rate.

Everything here is a sum or a peak over the runtime's life. It knows plans only by their counts.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from lmprog.runtime.plan import Plan


@dataclass(slots=True)
class Stats:
    """Tokens, steps, calls. `computed_tokens` counts every (row, token) that went through the model."""

    steps: int = 0
    rows: int = 0
    computed_tokens: int = 0
    prefill_tokens: int = 0
    """Computed in rows of more than one token."""
    cached_tokens: int = 0
    """Found in the tree when a lane was seated first."""
    generated_tokens: int = 0
    forced_tokens: int = 0
    calls: int = 0
    calls_done: int = 0
    calls_failed: int = 0
    forks: int = 0
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
        return {field.name: float(getattr(self, field.name)) for field in fields(self)}
