"""`lmprog trace FILE`: a traced program in the terminal, or as one page.

Draws what `trace_file` gives; `trace_page` makes the page.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from lmprog.cli.trace_page import page
from lmprog.errors import RequestRejected
from lmprog.lang.runs.trace_file import (
    PROGRAM,
    Lane,
    Phase,
    TracedRun,
    end_of,
    lanes,
    read_trace,
    shares,
    stretches,
)

COLORS: dict[str, str] = {
    "asked": "grey50", "queued": "dark_orange", "prefill": "cyan", "decode": "blue",
    PROGRAM: "grey30",
}  # fmt: skip
MARKS: dict[Phase, str] = {"asked": "·", "queued": "░", "prefill": "▓", "decode": "█"}
WORDS = {
    "asked": "asked, not begun",
    "queued": "in the queue",
    "prefill": "computing prompts",
    "decode": "generating",
    PROGRAM: "the program itself",
}
NARROWEST = 12  # columns of a timeline
COUNTS = 48  # columns of the counts beside it


def run(given: argparse.Namespace) -> int:
    path = Path(given.file)
    runs = read_trace(path)
    if given.html is not None:
        target = Path(given.html)
        try:
            target.write_text(page(runs, path.name), encoding="utf-8")
        except OSError as error:
            raise RequestRejected(f"{str(target)!r} cannot be written: {error}") from None
        print(f"written: {target}")
        return 0
    console = Console(highlight=False)
    if not runs:
        console.print("no run began while it was traced")
    for one in runs:
        console.print(drawn(one, console.width))
    return 0


def drawn(run: TracedRun, width: int) -> RenderableType:
    """One run, for a terminal of `width` columns."""
    return Group(_head(run), _where(run), *_timeline(run, width), Text())


def _head(run: TracedRun) -> Text:
    usage = run.usage
    took = end_of(run) - run.begin
    line = Text.assemble((run.name, "bold"), f" on {run.model}: {_seconds(took)}")
    if run.error is not None:
        line.append(f", failed: {run.error}", "red")
    elif run.end is None:
        line.append(", not ended", "dark_orange")
    line.append(
        f"\n{usage.prompt:,} tokens of prompts ({usage.cached:,} cached), "
        f"{usage.computed:,} computed, {usage.generated:,} generated ({usage.forced:,} forced)"
    )
    return line


def _where(run: TracedRun) -> Text:
    """Where the time went."""
    found = shares(run)
    total = sum(found.values()) or 1.0
    parts = [
        Text.assemble(("■ ", COLORS[name]), f"{WORDS[name]} {_seconds(time)} ({time / total:.0%})")
        for name, time in found.items()
        if time > 0
    ]
    return Text("  ").join(parts)


def _timeline(run: TracedRun, width: int) -> list[RenderableType]:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    names = max([len(_lane_name(lane)) for lane in lanes(run)], default=0)
    columns = max(NARROWEST, width - names - COUNTS)
    for name in ("branch", "time", "calls", "cached", "computed", "forced", "generated"):
        table.add_column(name, justify="left" if name in ("branch", "time") else "right")
    for lane in lanes(run):
        work = [call.usage for call in lane.calls]
        table.add_row(
            _lane_name(lane),
            _bar(lane, run, columns),
            f"{len(work):,}",
            *(
                f"{sum(getattr(one, name) for one in work):,}"
                for name in ("cached", "computed", "forced", "generated")
            ),
        )
    failed = [
        Text(f"{call.name} of {lane.branch} failed: {call.error}, at {call.site}", "red")
        for lane in lanes(run)
        for call in lane.calls
        if call.error is not None
    ]
    return [table, *failed] if lanes(run) else []


def _lane_name(lane: Lane) -> str:
    inner = f"{'  ' * lane.depth}{lane.run} " if lane.depth else ""
    return inner + lane.branch


def _bar(lane: Lane, run: TracedRun, columns: int) -> Text:
    """A line of time; where several fall on one column, the furthest phase is seen."""
    until = end_of(run)
    scale = columns / max(until - run.begin, 1e-9)
    cells: list[Phase | None] = [None] * columns
    order = list(MARKS)
    for call in lane.calls:
        for stretch in stretches(call, until):
            first = min(columns - 1, int((stretch.begin - run.begin) * scale))
            last = min(columns, max(first + 1, round((stretch.end - run.begin) * scale)))
            for place in range(first, last):
                before = cells[place]
                if before is None or order.index(before) < order.index(stretch.phase):
                    cells[place] = stretch.phase
    line = Text()
    for cell in cells:
        line.append(" " if cell is None else MARKS[cell], "" if cell is None else COLORS[cell])
    return line


def _seconds(time: float) -> str:
    return f"{time:.1f} s" if time >= 10 else f"{time * 1000:,.0f} ms"
