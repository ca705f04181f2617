"""Measured workloads as rows of tables. Knows measurements; starts nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.ledger import Account
from benchmarks.measure import Measured


@dataclass(frozen=True, slots=True)
class Line:
    """All measurements of one workload; None what was not asked for."""

    name: str
    about: str
    on: Measured | None
    off: Measured | None
    peer: Measured | None

    @property
    def account(self) -> Account:
        measured = self.on or self.off
        if measured is None or measured.account is None:
            raise ValueError(f"{self.name} was run on nothing that keeps an account")
        return measured.account

    def hit_rate(self, computed: float) -> str:
        """The share of prompt tokens that need not be computed, where `computed` tokens are in all.

        As the published figures have it, every call counts with its whole prompt. Generated tokens
        must be computed and are taken out.
        """
        rest = max(0.0, computed - self.account.decoded)
        return f"{1.0 - rest / self.account.prompt:.1%}"


WORK = {
    "prefill": "prefill_tokens",
    "found": "cached_tokens",
    "forced": "forced_tokens",
    "generated": "generated_tokens",
}
PRESSURE = {"evicted": "evicted_pages", "preempted": "preemptions", "peak pages": "peak_pages"}
"""Columns of the runtime's own counters."""


def work_table(lines: Sequence[Line]) -> list[dict[str, str]]:
    """What was computed, and the least that could be. Counts are those of the run with the cache
    on.
    """
    rows = []
    for line in lines:
        booked, on, off = line.account, line.on, line.off
        work = (on or off or Measured(0, 0, [])).work

        def counts(columns: dict[str, str], work: dict[str, float] = work) -> dict[str, str]:
            return {title: f"{work[name]:,.0f}" for title, name in columns.items()}

        cells = {
            "workload": line.name,
            "calls": f"{booked.calls:,}",
            "tokens unshared": f"{booked.prompt + booked.decoded:,}",
            "lower bound": f"{booked.unique:,}",
            "computed": _count(on, "computed_tokens"),
            "computed (off)": _count(off, "computed_tokens"),
            **counts(WORK),
            "steps": _count(on, "steps"),
            "steps (off)": _count(off, "steps"),
            **counts(PRESSURE),
            "hit rate": line.hit_rate(work["computed_tokens"]),
            "optimal": line.hit_rate(booked.unique),
        }
        rows.append(cells)
    return rows


def time_table(lines: Sequence[Line]) -> list[dict[str, str]]:
    """Times of the run with the cache on, and the others as multiples of it."""
    rows = []
    for line in lines:
        on, off, peer = line.on, line.off, line.peer
        cells = {
            "workload": line.name,
            "wall on (s)": f"{on.wall:.2f}" if on else "",
            "cpu on (s)": f"{on.cpu:.2f}" if on else "",
        }
        for name, other in (("off", off), ("transformers", peer)):
            ratios = ["", ""]
            if other is not None and on is not None:
                ratios = [f"{other.wall / on.wall:.2f}", f"{other.cpu / max(on.cpu, 0.01):.2f}"]
            cells[f"{name} / on wall"], cells[f"{name} / on cpu"] = ratios
        for name, other in (("off", off), ("transformers", peer)):
            share = equal_share(on, other)
            cells[f"equal on = {name}"] = "" if share is None else f"{share:.1%}"
        rows.append(cells)
    return rows


def equal_share(a: Measured | None, b: Measured | None) -> float | None:
    """The share of outputs that are the same; None where one of the two is missing."""
    if a is None or b is None:
        return None
    return sum(x == y for x, y in zip(a.outputs, b.outputs, strict=True)) / len(a.outputs)


def _count(measured: Measured | None, name: str) -> str:
    return "" if measured is None else f"{measured.work[name]:,.0f}"
