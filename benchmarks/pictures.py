"""The pictures of the documentation, made of what was measured, for light and dark screens.

    python -m benchmarks.pictures computed    the chart of docs/performance.md, of the page's own table
    python -m benchmarks.pictures demo        `lmprog demo` as a terminal shows it, scrolling

`benchmarks.programs` prints the table; a test holds the chart to what the page says. Of the demo
nothing is edited: texts and figures are those of that run. Who asked for less motion sees the first
screen. The comparison with peers draws its bars here, too.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from rich.style import Style
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

from benchmarks import runner

DOCS = runner.ROOT / "docs"
PAGE = DOCS / "performance.md"
CHART, DEMO = DOCS / "images" / "computed.svg", DOCS / "images" / "demo.svg"


def _svg(size: tuple[int, int], label: str, inside: str) -> str:
    width, height = size
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">{inside}</svg>\n'
    )


# -- bars

_WIDTH, _LEFT, _LENGTH = 760, 150, 400
_STYLE = (
    "svg{--paper:#fff;--ink:#1d2021;--soft:#585d61;--rest:#e2e0d9;--bar:#0b6868;--mark:#bd4e0c;"
    "--violet:#8a4fbf;--sand:#b07d1e}"
    "@media (prefers-color-scheme:dark){svg{--paper:#131516;--ink:#e9e7e2;--soft:#a0a6aa;"
    "--rest:#2f3437;--bar:#48aca3;--mark:#e38a48;--violet:#b58ae0;--sand:#d9b25c}}"
    "text{font:12px system-ui,'Segoe UI','DejaVu Sans',sans-serif;fill:var(--soft)}"
    ".title{font-size:14px;font-weight:bold;fill:var(--ink)}.side{text-anchor:end;fill:var(--ink)}"
    ".paper{fill:var(--paper)}.rest{fill:var(--rest)}.bar{fill:var(--bar)}.mark{fill:var(--mark)}"
    ".soft{fill:var(--soft)}.violet{fill:var(--violet)}.sand{fill:var(--sand)}"
)


@dataclass(frozen=True, slots=True)
class Bar:
    """Rectangles from the left, one over the other: shares of the longest one by color."""

    side: str
    parts: Mapping[str, float]
    text: str
    mark: float | None = None
    """A place that is marked, as a share as well."""


def bars(title: str, legend: Mapping[str, str], rows: Sequence[Bar | str], step: int) -> str:
    """Each row `step` pixels high; a row of text alone is a heading."""
    parts, x, y = [f'<text x="12" y="24" class="title">{escape(title)}</text>'], 12, 66
    for color, meaning in legend.items():
        parts.append(f'<rect x="{x}" y="38" width="12" height="12" class="{color}"/>')
        parts.append(f'<text x="{x + 18}" y="48">{escape(meaning)}</text>')
        x += 40 + 7 * len(meaning)
    for row in rows:
        parts += _drawn_bar(row, y, step - 8 if step > 20 else step - 3)
        y += step
    paper = f'<style>{_STYLE}</style><rect width="100%" height="100%" class="paper"/>'
    return _svg((_WIDTH, y + 10), title, paper + "".join(parts))


def _drawn_bar(row: Bar | str, y: int, height: int) -> Iterator[str]:
    if isinstance(row, str):
        yield f'<text x="12" y="{y + height}">{escape(row)}</text>'
        return
    base = y + height // 2 + 5
    yield f'<text x="{_LEFT - 10}" y="{base}" class="side">{escape(row.side)}</text>'
    for color, share in row.parts.items():
        yield f'<rect x="{_LEFT}" y="{y + 1}" width="{_LENGTH * share:.1f}" height="{height}" '
        yield f'class="{color}"/>'
    if row.mark is not None:
        x = _LEFT + min(row.mark, 1.0) * _LENGTH - 1
        yield f'<rect x="{x:.1f}" y="{y - 1}" width="3" height="{height + 4}" class="mark"/>'
    x = _LEFT + _LENGTH * max(row.parts.values()) + 10
    yield f'<text x="{x:.1f}" y="{base}">{escape(row.text)}</text>'


# -- what was computed of what was needed

TITLE = "Tokens that went through the model, of those that the calls needed"
LEGEND = {"bar": "computed", "rest": "not computed", "mark": "what had to be computed, at least"}


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
    drawn = []
    for row in rows:
        share = row.computed / row.unshared
        told = f"{row.computed:,} of {row.unshared:,} ({share:.0%})"
        drawn.append(Bar(row.name, {"rest": 1.0, "bar": share}, told, row.bound / row.unshared))
    return bars(TITLE, LEGEND, drawn, 22)


def computed() -> None:
    """Draws the chart."""
    CHART.write_text(chart(workloads(PAGE.read_text(encoding="utf-8"))), encoding="utf-8")


# -- a session in a terminal

COLUMNS, ROWS = 80, 30
_LINE, _LETTER, _EDGE, _BAR = 17, 7.83, 14, 30  # pixels
SECONDS = 5.0  # for each part
_GROUND, _INK = "#131516", "#d9d7d2"


def demo() -> None:
    """Runs the demo, and draws it."""
    DEMO.write_text(scrolled(recorded()), encoding="utf-8")
    print(f"written: {DEMO}")


def recorded() -> str:
    """What `lmprog demo` prints on a terminal of that width, with its colors."""
    environment = {
        **os.environ, "COLUMNS": str(COLUMNS), "FORCE_COLOR": "1", "TERM": "xterm-256color",
    }  # fmt: skip
    argv = [sys.executable, "-m", "lmprog.cli", "demo"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def scrolled(session: str) -> str:
    """The session as SVG."""
    lines = [Text.from_ansi(line) for line in session.rstrip("\n").split("\n")]
    texts = "".join(_drawn(line, at) for at, line in enumerate(lines))
    width = round(COLUMNS * _LETTER + 2 * _EDGE)
    height = _BAR + ROWS * _LINE + _EDGE
    style = (
        f"text{{font:13px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:{_INK};"
        f"white-space:pre}}{_scrolling(_stops(lines))}"
    )
    dots = "".join(
        f'<circle cx="{18 + 18 * at}" cy="16" r="5.5" fill="{color}"/>'
        for at, color in enumerate(("#e0655a", "#e3b341", "#4f9d69"))
    )
    return _svg(
        (width, height),
        "make demo in a terminal",
        f'<style>{style}</style><rect width="100%" height="100%" rx="9" fill="{_GROUND}"/>{dots}'
        f'<svg x="{_EDGE}" y="{_BAR}" width="{width - 2 * _EDGE}" height="{ROWS * _LINE}">'
        f'<g class="session">{texts}</g></svg>',
    )


def _stops(lines: list[Text]) -> list[int]:
    """The first lines of the screens: each part is shown from its heading on."""
    last = max(0, len(lines) - ROWS)
    heads = [at for at, line in enumerate(lines) if line.plain.rstrip().endswith("───")]
    return sorted({0, last, *(min(at, last) for at in heads)})


def _scrolling(stops: list[int]) -> str:
    """Each stop is held for most of its time."""
    share = 100 / len(stops)
    frames = "".join(
        f"{at * share:.1f}%,{(at + 0.85) * share:.1f}%{{transform:translateY({-line * _LINE}px)}}"
        for at, line in enumerate(stops)
    )
    return (
        f"@keyframes scroll{{{frames}100%{{transform:translateY(0)}}}}"
        f".session{{animation:scroll {SECONDS * len(stops):g}s infinite}}"
        "@media (prefers-reduced-motion:reduce){.session{animation:none}}"
    )


def _drawn(line: Text, at: int) -> str:
    pieces = []
    for begin, end, style in _pieces(line):
        text = line.plain[begin:end]
        if text.strip():
            x = begin * _LETTER
            pieces.append(
                f'<tspan x="{x:.1f}" textLength="{len(text) * _LETTER:.1f}" '
                f'lengthAdjust="spacingAndGlyphs"{_look(style)}>{escape(text)}</tspan>'
            )
    return f'<text y="{at * _LINE + 13}">{"".join(pieces)}</text>' if pieces else ""


def _pieces(line: Text) -> list[tuple[int, int, Style]]:
    """Stretches of one style, without the spaces around them."""
    borders = sorted(
        {0, len(line.plain), *(p for span in line.spans for p in (span.start, span.end))}
    )
    found = []
    for begin, end in itertools.pairwise(borders):
        text = line.plain[begin:end]
        first = begin + len(text) - len(text.lstrip())
        style = Style.null()
        for span in line.spans:
            if span.start <= begin and end <= span.end:
                style += span.style if isinstance(span.style, Style) else Style.parse(span.style)
        found.append((first, begin + len(text.rstrip()), style))
    return [piece for piece in found if piece[0] < piece[1]]


def _look(style: Style) -> str:
    color = style.color
    fill = "" if color is None else f' fill="{color.get_truecolor(DIMMED_MONOKAI).hex}"'
    weight = ' font-weight="bold"' if style.bold else ""
    return fill + weight + (' opacity="0.65"' if style.dim else "")


COMMANDS = runner.commands(computed, demo)
