"""`lmprog trace FILE`: traced programs in the terminal, or with `--html` as one page.

Both show a timeline with a line for each branch and where the time went; the page also shows for
each call how many of its tokens were cached, computed, forced and generated. Knows what
`trace_file` reads.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from html import escape
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from lmprog import wire
from lmprog.errors import RequestRejected
from lmprog.lang.runs.trace_file import (
    PROGRAM,
    Lane,
    Phase,
    TracedCall,
    TracedRun,
    end_of,
    lanes,
    read_trace,
    shares,
    stretches,
)

COLORS: dict[str, str] = {
    "asked": "grey50", "queued": "dark_orange", "again": "red", "prefill": "cyan", "decode": "blue",
    PROGRAM: "grey30",
}  # fmt: skip
MARKS: dict[Phase, str] = {"asked": "·", "queued": "░", "again": "▒", "prefill": "▓", "decode": "█"}
WORDS = {
    "asked": "asked, not begun",
    "queued": "in the queue",
    "again": "computing evicted tokens again",
    "prefill": "computing prompts",
    "decode": "generating",
    PROGRAM: "the program itself",
}
"""What is done in a phase."""
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


# --- the page: no scripts, nothing from elsewhere, light and dark

NUM_TICKS = 5
_STYLE = """
:root { color-scheme: light dark; --paper: #f6f5f1; --card: #fff; --ink: #1d2021; --soft: #585d61;
  --line: #e2e0d9; --bad: #a4262c; --asked: #c9cdd0; --queued: #d98b45; --again: #b5443c;
  --prefill: #2f8683; --decode: #3866b0; --program: #8d9397; --cached: #7fbfae; --computed: #b9bdb4;
  --generated: #3866b0; --forced: #9a6bc4; }
@media (prefers-color-scheme: dark) { :root { --paper: #131516; --card: #1b1e20; --ink: #e9e7e2;
  --soft: #a0a6aa; --line: #2f3437; --bad: #ff9b93; --asked: #4a5054; --queued: #e38a48;
  --again: #e0736a; --prefill: #48aca3; --decode: #8fb2f0; --program: #6a7175; --cached: #37857e;
  --computed: #5a605c; --generated: #8fb2f0; --forced: #c79bea; } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 70rem; padding: 1.5rem 1rem 4rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans",
  sans-serif; }
h1 { font-size: 1.3rem } h2 { font-size: 1.05rem; margin: 0 }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 1rem 1.2rem; margin: 1rem 0; }
p { margin: .3rem 0; color: var(--soft) } .bad { color: var(--bad) }
.key span { margin-right: 1.1em; white-space: nowrap }
i { display: inline-block; width: .75em; height: .75em; border-radius: 2px; margin-right: .35em }
.share { display: flex; height: 12px; border-radius: 3px; overflow: hidden; margin: .5rem 0 }
.scroll { overflow-x: auto }
.lanes { min-width: 34rem; margin: 1rem 0 }
.lane { display: grid; grid-template-columns: 11rem 1fr; align-items: center; height: 26px }
.lane > b { font-weight: 400; overflow: hidden; text-overflow: ellipsis; white-space: nowrap;
  padding-right: .8em; font-size: .87rem; }
.time { position: relative; height: 100%; border-left: 1px solid var(--line);
  background: repeating-linear-gradient(to right, transparent 0 calc(20% - 1px),
  var(--line) calc(20% - 1px) 20%); }
.time > u { position: absolute; top: 6px; height: 14px; min-width: 2px; border-radius: 2px }
.time > u.asked { top: 12px; height: 2px }
.ticks .time { background: none; color: var(--soft); font-size: .75rem; border: 0 }
.ticks .time > span { position: absolute; transform: translateX(-50%); white-space: nowrap }
.ticks .time > span:first-child { transform: none }
.ticks .time > span:last-child { transform: translateX(-100%) }
table { border-collapse: collapse; width: 100%; font-size: .87rem; min-width: 44rem }
th { color: var(--soft); font-weight: 400; text-align: left }
th, td { padding: .25rem .7rem .25rem 0; border-top: 1px solid var(--line) }
th.n, td.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
.tokens { display: flex; height: 10px; width: 11rem; border-radius: 2px; overflow: hidden }
.asked { background: var(--asked) } .queued { background: var(--queued) }
.again { background: var(--again) } .prefill { background: var(--prefill) }
.decode { background: var(--decode) }
.program { background: var(--program) } .cached { background: var(--cached) }
.computed { background: var(--computed) } .forced { background: var(--forced) }
.generated { background: var(--generated) }
summary { cursor: pointer; color: var(--soft) }
"""


def page(runs: list[TracedRun], title: str) -> str:
    """The page of a whole trace."""
    body = "".join(_page_section(run) for run in runs) or "<p>No run began while it was traced.</p>"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><h1>{escape(title)}</h1>{body}</body></html>\n"
    )


def _page_section(run: TracedRun) -> str:
    usage, took = run.usage, end_of(run) - run.begin
    state = "" if run.end is not None else ", not ended"
    failed = "" if run.error is None else f'<p class="bad">failed: {escape(run.error)}</p>'
    return (
        f"<section><h2>{escape(run.name)}</h2>"
        f"<p>{escape(run.model)} · {_seconds(took)}{state} · {_page_work(usage)}</p>{failed}"
        f"{_page_shares(run)}{_page_timeline(run)}{_page_table(run)}</section>"
    )


def _page_work(usage: wire.Usage) -> str:
    return (
        f"{usage.prompt:,} tokens of prompts, {usage.cached:,} of them cached · "
        f"{usage.generated:,} generated, {usage.forced:,} of them forced"
    )


def _page_shares(run: TracedRun) -> str:
    found = {name: time for name, time in shares(run).items() if time > 0}
    total = sum(found.values()) or 1.0
    bar = "".join(
        f'<u class="{name}" style="width:{time / total:.3%}" title="{WORDS[name]}"></u>'
        for name, time in found.items()
    )
    key = "".join(
        f'<span><i class="{name}"></i>{WORDS[name]} {_seconds(time)} ({time / total:.0%})</span>'
        for name, time in found.items()
    )
    return f'<div class="share">{bar}</div><p class="key">{key}</p>'


def _page_timeline(run: TracedRun) -> str:
    rows = lanes(run)
    if not rows:
        return "<p>It has asked for nothing.</p>"
    took = end_of(run) - run.begin
    ticks = "".join(
        f'<span style="left:{at / NUM_TICKS:.0%}">{_seconds(took * at / NUM_TICKS)}</span>'
        for at in range(NUM_TICKS + 1)
    )
    drawn = "".join(
        f'<div class="lane"><b title="{escape(_page_lane(lane))}">{escape(_page_lane(lane))}</b>'
        f'<div class="time">{"".join(_page_bars(lane, run))}</div></div>'
        for lane in rows
    )
    axis = f'<div class="lane ticks"><b></b><div class="time">{ticks}</div></div>'
    return f'<div class="scroll"><div class="lanes">{drawn}{axis}</div></div>'


def _page_lane(lane: Lane) -> str:
    return f"{'› ' * lane.depth}{lane.run} · {lane.branch}" if lane.depth else lane.branch


def _page_bars(lane: Lane, run: TracedRun) -> Iterator[str]:
    until = end_of(run)
    scale = 100 / max(until - run.begin, 1e-9)
    for call in lane.calls:
        for stretch in stretches(call, until):
            left, width = (stretch.begin - run.begin) * scale, (stretch.end - stretch.begin) * scale
            told = f"{call.name}: {WORDS[stretch.phase]}, {_seconds(stretch.end - stretch.begin)}"
            yield (
                f'<u class="{stretch.phase}" style="left:{left:.3f}%;width:{width:.3f}%" '
                f'title="{escape(told)}"></u>'
            )


def _page_table(run: TracedRun) -> str:
    rows = [(lane, call) for lane in lanes(run) for call in lane.calls]
    if not rows:
        return ""
    rows.sort(key=lambda row: row[1].begin)
    most = max(_num_tokens(call) for _, call in rows) or 1
    numbers = ("cached", "computed", "forced", "generated")
    head = "".join(f'<th class="n"><i class="{name}"></i>{name}</th>' for name in numbers)
    body = "".join(_page_row(lane, call, run, most) for lane, call in rows)
    return (
        f'<details open><summary>{len(rows):,} calls</summary><div class="scroll"><table><tr>'
        f'<th>call</th><th>branch</th><th class="n">asked at</th><th class="n">took</th>{head}'
        f"<th>tokens</th></tr>{body}</table></div></details>"
    )


def _page_row(lane: Lane, call: TracedCall, run: TracedRun, most: int) -> str:
    usage = call.usage
    took = "not ended" if call.end is None else _seconds(call.end - call.begin)
    error = "" if call.error is None else f' <span class="bad">{escape(call.error)}</span>'
    parts = _parts(usage)
    shown = {**parts, "generated": usage.generated}
    counts = "".join(f'<td class="n">{count:,}</td>' for count in shown.values())
    bar = "".join(
        f'<u class="{name}" style="width:{count / most:.3%}"></u>' for name, count in parts.items()
    )
    return (
        f'<tr title="{escape(call.site)}"><td>{escape(call.name)}{error}</td>'
        f'<td>{escape(_page_lane(lane))}</td><td class="n">{_seconds(call.begin - run.begin)}</td>'
        f'<td class="n">{took}</td>{counts}<td><div class="tokens">{bar}</div></td></tr>'
    )


def _parts(usage: wire.Usage) -> dict[str, int]:
    """The tokens of a call, none counted twice: of the prompt, then of the result."""
    return {
        "cached": usage.cached,
        "computed": max(0, usage.prompt - usage.cached),
        "forced": usage.forced,
        "generated": max(0, usage.generated - usage.forced),
    }


def _num_tokens(call: TracedCall) -> int:
    return sum(_parts(call.usage).values())


def _seconds(time: float) -> str:
    return f"{time:.1f} s" if time >= 10 else f"{time * 1000:,.0f} ms"
