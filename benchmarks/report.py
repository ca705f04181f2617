"""Measured workloads as tables of text (Markdown) and as JSON. Knows measurements; starts
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

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

    def hit_rate(self, computed: float) -> float:
        """The share of prompt tokens that need not be computed, where `computed` tokens are in all.

        As the published figures have it, every call counts with its whole prompt. Generated tokens
        must be computed and are taken out.
        """
        return 1.0 - max(0.0, computed - self.account.decoded) / self.account.prompt


def work_table(lines: Sequence[Line]) -> str:
    """What was computed, and the least that could be. Counts are those of the run with the cache
    on.
    """
    head = (
        "workload,calls,tokens unshared,lower bound,computed,computed "
        "(off),prefill,found,forced,generated,"
    )
    head += "steps,steps (off),evicted,preempted,peak pages,hit rate,optimal"
    rows = []
    for line in lines:
        booked, on, off = line.account, line.on, line.off
        work = (on or off or Measured(0, 0, [])).work
        computed = work["computed_tokens"]
        rows.append(
            [
                line.name,
                f"{booked.calls:,}",
                f"{booked.prompt + booked.decoded:,}",
                f"{booked.unique:,}",
                _count(on, "computed_tokens"),
                _count(off, "computed_tokens"),
                *(
                    f"{work[name]:,.0f}"
                    for name in ("prefill_tokens", "cached_tokens", "forced_tokens")
                ),
                f"{work['generated_tokens']:,.0f}",
                _count(on, "steps"),
                _count(off, "steps"),
                *(f"{work[name]:,.0f}" for name in ("evicted_pages", "preemptions", "peak_pages")),
                f"{line.hit_rate(computed):.1%}",
                f"{line.hit_rate(booked.unique):.1%}",
            ]
        )
    return _table(head.split(","), rows)


def time_table(lines: Sequence[Line]) -> str:
    """Times of the run with the cache on, and the others as multiples of it."""
    head = (
        "workload,wall on (s),cpu on (s),off / on wall,off / on cpu,transformers / on "
        "wall,transformers / on cpu,"
    )
    head += "equal on = off,equal on = transformers"
    rows = []
    for line in lines:
        on = line.on
        rows.append(
            [
                line.name,
                f"{on.wall:.2f}" if on else "",
                f"{on.cpu:.2f}" if on else "",
                *_ratios(line.off, on),
                *_ratios(line.peer, on),
                _equal(on, line.off),
                _equal(on, line.peer),
            ]
        )
    return _table(head.split(","), rows)


def as_json(lines: Sequence[Line], about: dict[str, Any]) -> dict[str, Any]:
    """Everything, but the texts."""

    def plain(measured: Measured | None) -> dict[str, Any] | None:
        if measured is None:
            return None
        return {"wall": measured.wall, "cpu": measured.cpu, "work": measured.work}

    return {
        "about": about,
        "workloads": [
            {
                "name": line.name,
                "about": line.about,
                "account": asdict(line.account),
                "on": plain(line.on),
                "off": plain(line.off),
                "peer": plain(line.peer),
                "equal_off": equal_share(line.on, line.off),
                "equal_peer": equal_share(line.on, line.peer),
            }
            for line in lines
        ],
    }


def equal_share(a: Measured | None, b: Measured | None) -> float | None:
    """The share of outputs that are the same; None where one of the two is missing."""
    if a is None or b is None:
        return None
    return sum(x == y for x, y in zip(a.outputs, b.outputs, strict=True)) / len(a.outputs)


def _equal(a: Measured | None, b: Measured | None) -> str:
    share = equal_share(a, b)
    return "" if share is None else f"{share:.1%}"


def _ratios(other: Measured | None, on: Measured | None) -> tuple[str, str]:
    if other is None or on is None:
        return "", ""
    return f"{other.wall / on.wall:.2f}", f"{other.cpu / max(on.cpu, 0.01):.2f}"


def _count(measured: Measured | None, name: str) -> str:
    return "" if measured is None else f"{measured.work[name]:,.0f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in [head, *rows]
    ]
    rule = (
        "|"
        + "|".join("-" * (width + 1) + ("-" if i == 0 else ":") for i, width in enumerate(widths))
        + "|"
    )
    return "\n".join([lines[0], rule, *lines[1:]])
