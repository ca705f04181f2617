"""Counters of the work done so far: sums, peaks and histograms over the runtime's life."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, get_args

from lmprog.runtime.scheduling.plan import Plan

WAIT_BOUNDS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Histogram bucket upper bounds, in scheduler steps; the last bucket has none."""
STEP_BOUNDS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Of the tokens of a step."""


class Histogram:
    """Counts by bucket, and the sum of all values."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def see(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def figures(self, name: str) -> Mapping[str, float]:
        """`name_le_BOUND` for each bucket (not cumulative), `name_le_inf` and `name_sum`."""
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
    """Computed in rows of more than one token, drafted ones left out."""
    cached_tokens: int = 0
    """Prompt tokens found in the tree at a sequence's first admission."""
    looked_up_tokens: int = 0
    """Prompt tokens looked up at first admissions."""
    generated_tokens: int = 0
    forced_tokens: int = 0
    drafted_tokens: int = 0
    """Guessed, computed in one step with the token before them, and sampled."""
    accepted_tokens: int = 0
    """Of these, what was sampled too."""
    wrong_draft_tokens: int = 0
    """Computed in vain: guesses that were wrong, with the text that they would have forced."""
    ahead_tokens: int = 0
    """Of prompts that had not been asked yet, computed while nobody else needed a step."""
    ahead_used_tokens: int = 0
    """Of these, what a prompt began with ..."""
    ahead_wasted_tokens: int = 0
    """... and what none is expected to begin with any more."""
    calls: int = 0
    calls_done: int = 0
    calls_failed: int = 0
    forks: int = 0
    fork_shared_tokens: int = 0
    """Tokens of the parent at the time of the fork."""
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
    """Idle-time checks of the invariants that failed; anything but 0 is a bug in lmprog."""

    idle_seconds: float = 0.0
    """Time waited for messages while nothing ran."""
    wait_passes: Histogram = field(default_factory=lambda: Histogram(WAIT_BOUNDS))
    """Scheduler steps between a sequence's arrival and its first admission."""

    step_tokens: Histogram = field(default_factory=lambda: Histogram(STEP_BOUNDS))
    """Tokens computed in a step."""

    def count_admission(self, passes: int, num_tokens: int, cached: int) -> None:
        """A sequence of `num_tokens` was admitted for the first time; the tree had `cached` of
        them.
        """
        self.wait_passes.see(passes)
        self.looked_up_tokens += num_tokens
        self.cached_tokens += cached

    def see_plan(self, plan: Plan, running: int, waiting: int, pages: int) -> None:
        """Counts one plan."""
        num_rows, num_tokens = len(plan.rows), plan.num_tokens
        self.steps += num_rows > 0
        self.rows += num_rows
        self.computed_tokens += num_tokens
        if num_rows:
            self.step_tokens.see(num_tokens)
        if num_tokens > num_rows:
            known = [row.num_tokens for row in plan.rows]
            for index, drafted in plan.drafts.items():
                known[index] -= len(drafted.tokens)
            self.prefill_tokens += sum(count for count in known if count > 1)
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


WaitCause = Literal["memory", "place", "load", "step"]
"""Why nobody is admitted: no pages are free, no place for a program, what is on the second tier
is being loaded, or a step has no room for more rows or tokens."""
WAIT_CAUSES: tuple[WaitCause, ...] = get_args(WaitCause)


class WaitClock:
    """Seconds in which somebody waited, by cause. What a sequence has waited is the difference
    between two readings.
    """

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(WAIT_CAUSES, 0.0)
        self._cause: WaitCause = "step"
        self._since = 0.0

    def set(self, cause: WaitCause, now: float) -> None:
        """From now on those who wait do so because of that."""
        self.read(now)
        self._cause = cause

    def read(self, now: float | None) -> tuple[float, ...]:
        """In the order of `WAIT_CAUSES`; None: as it was read last."""
        if now is not None:
            self._seconds[self._cause] += max(0.0, now - self._since)
            self._since = now
        return tuple(self._seconds.values())


WAITED_FOR = "waited_for_"
"""Before the name of an account, in figures of another."""
MOST_WAITED_FOR = 32
"""Of so many others it is kept how long an account has waited for each; the rest is one."""


@dataclass(slots=True)
class AccountTotals:
    """What the clients of one name have cost, and how long their calls have waited, in seconds."""

    name: str = ""
    step_seconds: float = 0.0
    host_seconds: float = 0.0
    waited: list[float] = field(default_factory=lambda: [0.0] * len(WAIT_CAUSES))
    waited_for: dict[str, float] = field(default_factory=dict)
    """By the names of others: what steps have taken for them while calls of this one waited, once
    for each sequence that did.
    """

    def wait_for(self, others: Iterable[tuple[str, float]], num_waiting: int) -> None:
        """So many sequences have waited while a step computed for others, by name and seconds."""
        known = self.waited_for
        for name, seconds in others:
            if name == self.name:
                continue
            if name not in known and len(known) >= MOST_WAITED_FOR:
                name = ""
            known[name] = known.get(name, 0.0) + seconds * num_waiting

    def figures(self) -> dict[str, float]:
        waited = zip(WAIT_CAUSES, self.waited, strict=True)
        return {
            "cost_seconds": self.step_seconds + self.host_seconds,
            "step_seconds": self.step_seconds,
            "host_seconds": self.host_seconds,
            **{f"waited_seconds_{cause}": seconds for cause, seconds in waited},
            **{WAITED_FOR + name: seconds for name, seconds in self.waited_for.items()},
        }
