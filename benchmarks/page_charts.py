"""The chart of docs/performance.md, made of the page's own table, for light and dark screens.

    python -m benchmarks.page_charts

`benchmarks.programs` prints the table; a test holds the chart to what the page says.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
PAGE, CHART = DOCS / "performance.md", DOCS / "images" / "computed.svg"
TITLE = "Tokens that went through the model, of those that the calls needed"
_WIDTH, _LEFT, _BAR, _ROW, _TOP = 760, 150, 400, 22, 66
_STYLE = (
    "svg{--paper:#fff;--ink:#1d2021;--soft:#585d61;--rest:#e2e0d9;--bar:#0b6868;--mark:#bd4e0c}"
    "@media (prefers-color-scheme:dark){svg{--paper:#131516;--ink:#e9e7e2;--soft:#a0a6aa;"
    "--rest:#2f3437;--bar:#48aca3;--mark:#e38a48}}"
    "text{font:12px system-ui,'Segoe UI','DejaVu Sans',sans-serif;fill:var(--soft)}"
    ".title{font-size:14px;font-weight:bold;fill:var(--ink)}.side{text-anchor:end;fill:var(--ink)}"
    ".paper{fill:var(--paper)}.rest{fill:var(--rest)}.bar{fill:var(--bar)}.mark{fill:var(--mark)}"
)


@dataclass(frozen=True, slots=True)
class Workload:
    """A row of the page's table."""

    name: str
    unshared: int
    """Tokens that would be computed if no two calls shared anything."""
    bound: int
    """Tokens that had to be computed."""
    computed: int


def workloads(page: str) -> list[Workload]:
    """The rows of the page's first table, those that share most first."""
    lines = page[page.index("| workload | calls | tokens unshared") :].splitlines()
    head = [cell.strip() for cell in lines[0].strip("|").split("|")]
    places = [head.index(name) for name in ("tokens unshared", "lower bound", "computed")]
    found = []
    for line in lines[2:]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        numbers = [int(cells[place].replace(",", "")) for place in places]
        found.append(Workload(cells[0], *numbers))
    return sorted(found, key=lambda one: one.computed / one.unshared)


def chart(rows: list[Workload]) -> str:
    """A bar for each: all that was needed, what of it was computed, and the lower bound."""
    parts = [
        f'<text x="12" y="24" class="title">{escape(TITLE)}</text>',
        '<rect x="12" y="38" width="12" height="12" class="bar"/><text x="30" y="48">computed</text>',
        '<rect x="104" y="38" width="12" height="12" class="rest"/>'
        '<text x="122" y="48">not computed</text>',
        '<rect x="220" y="37" width="3" height="14" class="mark"/>'
        '<text x="230" y="48">what had to be computed, at least</text>',
    ]
    for at, row in enumerate(rows):
        y = _TOP + at * _ROW
        width, bound = (_BAR * part / row.unshared for part in (row.computed, row.bound))
        parts.append(
            f'<text x="{_LEFT - 10}" y="{y + 12}" class="side">{escape(row.name)}</text>'
            f'<rect x="{_LEFT}" y="{y + 1}" width="{_BAR}" height="14" class="rest"/>'
            f'<rect x="{_LEFT}" y="{y + 1}" width="{width:.1f}" height="14" class="bar"/>'
            f'<rect x="{_LEFT + min(bound, _BAR) - 1:.1f}" y="{y - 1}" width="3" height="18" class="mark"/>'
            f'<text x="{_LEFT + _BAR + 10}" y="{y + 12}">{row.computed:,} of {row.unshared:,} '
            f"({row.computed / row.unshared:.0%})</text>"
        )
    height = _TOP + len(rows) * _ROW + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(TITLE)}">'
        f'<style>{_STYLE}</style><rect width="100%" height="100%" class="paper"/>'
        f"{''.join(parts)}</svg>\n"
    )


if __name__ == "__main__":
    CHART.write_text(chart(workloads(PAGE.read_text(encoding="utf-8"))), encoding="utf-8")
