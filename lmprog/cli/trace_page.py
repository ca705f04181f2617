"""Traced programs as one page: no scripts, nothing from elsewhere, light and dark.

A timeline with a lane for each branch, where the time went, and for each call what of its tokens
was cached, computed, forced and generated. Knows traces and HTML.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from lmprog import wire
from lmprog.lang.runs.trace_file import (
    PROGRAM,
    Lane,
    TracedCall,
    TracedRun,
    end_of,
    lanes,
    shares,
    stretches,
)

WORDS = {
    "asked": "asked, not begun",
    "queued": "in the queue",
    "prefill": "computing prompts",
    "decode": "generating",
    PROGRAM: "the program itself",
}
"""What is done in a phase."""
NUM_TICKS = 5
_STYLE = """
:root { color-scheme: light dark; --paper: #f6f5f1; --card: #fff; --ink: #1d2021; --soft: #585d61;
  --line: #e2e0d9; --bad: #a4262c; --asked: #c9cdd0; --queued: #d98b45; --prefill: #2f8683;
  --decode: #3866b0; --program: #8d9397; --cached: #7fbfae; --computed: #b9bdb4;
  --generated: #3866b0; --forced: #9a6bc4; }
@media (prefers-color-scheme: dark) { :root { --paper: #131516; --card: #1b1e20; --ink: #e9e7e2;
  --soft: #a0a6aa; --line: #2f3437; --bad: #ff9b93; --asked: #4a5054; --queued: #e38a48;
  --prefill: #48aca3; --decode: #8fb2f0; --program: #6a7175; --cached: #37857e;
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
.prefill { background: var(--prefill) } .decode { background: var(--decode) }
.program { background: var(--program) } .cached { background: var(--cached) }
.computed { background: var(--computed) } .forced { background: var(--forced) }
.generated { background: var(--generated) }
summary { cursor: pointer; color: var(--soft) }
"""


def page(runs: list[TracedRun], title: str) -> str:
    """The page of a whole trace."""
    body = "".join(_section(run) for run in runs) or "<p>No run began while it was traced.</p>"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><h1>{escape(title)}</h1>{body}</body></html>\n"
    )


def _section(run: TracedRun) -> str:
    usage, took = run.usage, end_of(run) - run.begin
    state = "" if run.end is not None else ", not ended"
    failed = "" if run.error is None else f'<p class="bad">failed: {escape(run.error)}</p>'
    return (
        f"<section><h2>{escape(run.name)}</h2>"
        f"<p>{escape(run.model)} · {_seconds(took)}{state} · {_work(usage)}</p>{failed}"
        f"{_where(run)}{_timeline(run)}{_table(run)}</section>"
    )


def _work(usage: wire.Usage) -> str:
    return (
        f"{usage.prompt:,} tokens of prompts, {usage.cached:,} of them cached · "
        f"{usage.generated:,} generated, {usage.forced:,} of them forced"
    )


def _where(run: TracedRun) -> str:
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


def _timeline(run: TracedRun) -> str:
    rows = lanes(run)
    if not rows:
        return "<p>It has asked for nothing.</p>"
    took = end_of(run) - run.begin
    ticks = "".join(
        f'<span style="left:{at / NUM_TICKS:.0%}">{_seconds(took * at / NUM_TICKS)}</span>'
        for at in range(NUM_TICKS + 1)
    )
    drawn = "".join(
        f'<div class="lane"><b title="{escape(_lane_name(lane))}">{escape(_lane_name(lane))}</b>'
        f'<div class="time">{"".join(_bars(lane, run))}</div></div>'
        for lane in rows
    )
    axis = f'<div class="lane ticks"><b></b><div class="time">{ticks}</div></div>'
    return f'<div class="scroll"><div class="lanes">{drawn}{axis}</div></div>'


def _lane_name(lane: Lane) -> str:
    return f"{'› ' * lane.depth}{lane.run} · {lane.branch}" if lane.depth else lane.branch


def _bars(lane: Lane, run: TracedRun) -> Iterator[str]:
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


def _table(run: TracedRun) -> str:
    rows = [(lane, call) for lane in lanes(run) for call in lane.calls]
    if not rows:
        return ""
    rows.sort(key=lambda row: row[1].begin)
    most = max(_num_tokens(call) for _, call in rows) or 1
    numbers = ("cached", "computed", "forced", "generated")
    head = "".join(f'<th class="n"><i class="{name}"></i>{name}</th>' for name in numbers)
    body = "".join(_row(lane, call, run, most) for lane, call in rows)
    return (
        f'<details open><summary>{len(rows):,} calls</summary><div class="scroll"><table><tr>'
        f'<th>call</th><th>branch</th><th class="n">asked at</th><th class="n">took</th>{head}'
        f"<th>tokens</th></tr>{body}</table></div></details>"
    )


def _row(lane: Lane, call: TracedCall, run: TracedRun, most: int) -> str:
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
        f'<td>{escape(_lane_name(lane))}</td><td class="n">{_seconds(call.begin - run.begin)}</td>'
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
