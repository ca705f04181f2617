"""Evaluations as a page by itself: what was measured, rows that can be sorted and filtered, and the
text behind each. Loads nothing from anywhere.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lmprog.evaluation.evaluated_row import EvaluatedRow, RowWork, said_of
from lmprog.evaluation.rows import as_json
from lmprog.evaluation.statistics import Interval
from lmprog.lang.runs.work_view import COLORS

_MOST = 160  # letters of a cell; the whole text is behind it

_STYLE = """
body{font:14px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:76rem;padding:0 1rem;color:#222}
h1{font-size:1.4rem;margin:0 0 .2rem}h2{font-size:1.1rem;margin:1.6rem 0 .4rem}
.big{font-size:2rem;font-weight:600}.soft{color:#666}
table{border-collapse:collapse;width:100%;margin:.4rem 0}
th,td{text-align:left;vertical-align:top;padding:.3rem .6rem;border-bottom:1px solid #e4e4e4}
th{position:sticky;top:0;background:#fff;border-bottom:2px solid #bbb;white-space:nowrap}
th.sorts{cursor:pointer}th.sorts::after{content:" \\2195";color:#aaa}
th[aria-sort=ascending]::after{content:" \\2191";color:#222}
th[aria-sort=descending]::after{content:" \\2193";color:#222}
td.num,th.num{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
td{overflow-wrap:anywhere}tr.low td.first{color:#b00020;font-weight:600}
tr.failed td{background:#fdf1f1}
tr.row{cursor:pointer}tr.row:hover td{background:#f6f8fb}tr.behind td{background:#fafafa}
pre{white-space:pre-wrap;margin:.2rem 0 .8rem;font:12.5px/1.5 ui-monospace,monospace}
.bar{height:.5rem;background:#eee;position:relative;max-width:30rem;margin:.5rem 0}
.bar i{position:absolute;top:0;bottom:0;background:#9bbcf0}.bar b{position:absolute;top:-.2rem;
bottom:-.2rem;width:2px;background:#123}
input{font:inherit;padding:.25rem .5rem;width:22rem;max-width:100%}
"""

_SCRIPT = """
for (const table of document.querySelectorAll("table.rows")) {
  const body = table.tBodies[0];
  const rows = () => [...body.querySelectorAll("tr.row")];
  const behind = row => document.getElementById(row.dataset.behind);
  table.querySelectorAll("th.sorts").forEach((head) => head.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    table.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = row => row.cells[head.cellIndex].dataset.key ?? row.cells[head.cellIndex].innerText;
    const num = head.classList.contains("num");
    rows().map(row => [num ? Number(key(row)) : key(row), row])
      .sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1))
      .forEach(([, row]) => body.append(row, behind(row)));
  }));
  body.addEventListener("click", event => {
    const row = event.target.closest("tr.row");
    if (row) behind(row).hidden = !behind(row).hidden;
  });
  body.addEventListener("keydown", event => {
    if (event.key === "Enter" && event.target.matches("tr.row")) event.target.click();
  });
  const field = document.getElementById(table.dataset.filter);
  field.addEventListener("input", () => rows().forEach(row => {
    const text = row.innerText + behind(row).textContent;
    row.hidden = !text.toLowerCase().includes(field.value.toLowerCase());
    behind(row).hidden = true;
  }));
}
"""


class ShownScore(NamedTuple):
    name: str
    mean: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class ShownEvaluation:
    """What a page has of an evaluation."""

    title: str
    about: str
    scores: Sequence[ShownScore]
    """The first is the one that counts."""
    failures: Mapping[str, Sequence[EvaluatedRow]]
    works: Mapping[str, RowWork]
    judging: RowWork
    rows: Sequence[EvaluatedRow]


def page_of(
    evaluations: Sequence[ShownEvaluation], before: str = "", path: str | Path | None = None
) -> str:
    """The whole page, also written to `path`; `before` is HTML that stands above."""
    parts = [before] if before else []
    for nth, one in enumerate(evaluations):
        parts += [summary_of(one), _rows(one, nth)]
    title = html.escape(" · ".join(dict.fromkeys(one.title for one in evaluations)))
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body>"
        f"{''.join(parts)}<script>{_SCRIPT}</script></body></html>"
    )
    if path is not None:
        Path(path).expanduser().write_text(text, encoding="utf-8")
    return text


def summary_of(one: ShownEvaluation) -> str:
    """The score, what failed and what it took: also what a notebook shows."""
    first, *others = one.scores
    low, high = first.interval
    said = f" between {low:.3f} and {high:.3f} with 95 %" if math.isfinite(low) else ""
    is_share = 0 <= low <= first.mean <= high <= 1
    parts = [
        f"<h1>{html.escape(one.title)}</h1><div class=soft>{html.escape(one.about)}</div>",
        f'<div><span class="big" style="font-size:2rem">{first.mean:.3f}</span> '
        f"{html.escape(first.name)}{said}, {len(one.rows):,} rows</div>",
        _bar(first) if is_share else "",
    ]
    for other in others:
        name = html.escape(other.name)
        parts.append(f"<div>{other.mean:.3f} {name} {other.interval}</div>")
    for kind, rows in one.failures.items():
        parts.append(
            f"<div>{len(rows)} failed by <b>{html.escape(kind)}</b>, first row {rows[0].index}: "
            f"{html.escape(rows[0].message)}</div>"
        )
    parts.append(_work_table(one.works))
    if one.judging.usage.prompt:
        parts.append(f"<div class=soft>the judge: {said_of(one.judging)}</div>")
    return "".join(parts)


def _bar(one: ShownScore) -> str:
    low, high = one.interval
    return (
        f'<div class=bar><i style="left:{low:.2%};width:{high - low:.2%}"></i>'
        f'<b style="left:{one.mean:.2%}"></b></div>'
    )


def _work_table(works: Mapping[str, RowWork]) -> str:
    has_cost = any(one.cost is not None for one in works.values())
    names = ["prompt", "cached", "computed", "generated"]
    heads = "".join(f"<th class=num>{name}</th>" for name in names)
    rows = ""
    for name, work in works.items():
        cells = "".join(f"<td class=num>{getattr(work.usage, each):,}</td>" for each in names)
        cost = "" if work.cost is None else f"{work.cost:.4g}"
        priced = f"<td class=num>{cost}</td>" if has_cost else ""
        rows += f"<tr><td>{html.escape(name)}</td>{cells}{priced}</tr>"
    cost_head = "<th class=num>cost</th>" if has_cost else ""
    return f"<table><tr><th>tokens</th>{heads}{cost_head}</tr>{rows}</table>"


def _rows(one: ShownEvaluation, nth: int) -> str:
    columns = list(dict.fromkeys(name for row in one.rows for name in row.row))
    has_cost = any(row.cost is not None for row in one.rows)
    scores = [score.name for score in one.scores]
    numbers = [*scores, "tokens", *(["cost"] if has_cost else []), "seconds"]
    heads = ["<th class='sorts num'>row</th>"]
    heads += [f"<th class=sorts>{html.escape(name)}</th>" for name in [*columns, "value"]]
    heads += [f"<th class='sorts num'>{html.escape(name)}</th>" for name in numbers]
    body = "".join(
        _row(row, columns, scores, has_cost=has_cost, mark=f"e{nth}r{row.index}")
        for row in one.rows
    )
    return (
        f"<h2>Rows</h2><input id=f{nth} placeholder='only rows with this text' aria-label=filter>"
        f"<table class=rows data-filter=f{nth}><thead><tr>{''.join(heads)}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )


def _row(
    row: EvaluatedRow, columns: Sequence[str], scores: Sequence[str], *, has_cost: bool, mark: str
) -> str:
    cells = [f"<td class=num>{row.index}</td>"]
    cells += [_cell(row.row.get(name, "")) for name in columns]
    cells.append(_cell(row.failure or row.value))
    for name in scores:
        kind = "num first" if name == scores[0] else "num"
        cells.append(f"<td class='{kind}'>{row.scores.get(name, 0.0):.3g}</td>")
    tokens = row.usage.prompt + row.usage.generated
    cells.append(f"<td class=num>{tokens}</td>")
    if has_cost:
        cost = row.cost or 0.0
        cells.append(f"<td class=num data-key={cost}>{cost:.4g}</td>")
    cells.append(f"<td class=num>{row.seconds:.2f}</td>")
    kind = " failed" if row.failure else " low" if row.score < 0.5 else ""
    span = len(cells)
    return (
        f"<tr class='row{kind}' data-behind={mark} tabindex=0>{''.join(cells)}</tr>"
        f"<tr class=behind id={mark} hidden><td colspan={span}>{_behind(row)}</td></tr>"
    )


def _cell(value: Any) -> str:
    text = text_of(value)
    short = text if len(text) <= _MOST else f"{text[: _MOST - 1]}…"
    return f"<td>{html.escape(short)}</td>"


def text_of(value: Any) -> str:
    found = as_json(value)
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def _behind(row: EvaluatedRow) -> str:
    parts = []
    if row.failure:
        parts.append(f"<b>{html.escape(f'{row.failure}: {row.message}')}</b>")
    for name, shown in row.transcript.items():
        spans = "".join(
            f'<span style="background:{COLORS[part.kind][0] if part.kind != "role" else "none"}"'
            f' title="{html.escape(part.note)}">{html.escape(part.text)}</span>'
            for part in shown
        )
        work = row.branches.get(name)
        parts.append(
            f"<div class=soft>{html.escape(name)}{'' if work is None else f': {said_of(work)}'}"
            f"</div><pre>{spans}</pre>"
        )
    parts.append(f"<div>value</div><pre>{html.escape(text_of(row.value))}</pre>")
    return "".join(parts)
