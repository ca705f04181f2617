"""`make demo`, recorded: what the terminal shows, as a picture that scrolls from part to part.

    python -m benchmarks.demo_session

Runs `lmprog demo` and writes docs/images/demo.svg. Nothing is edited: texts and figures are those of
that run. Who asked for less motion sees the first screen.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from html import escape
from pathlib import Path

from rich.style import Style
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

DEMO = Path(__file__).parents[1] / "docs" / "images" / "demo.svg"
COLUMNS, ROWS = 80, 30
_LINE, _LETTER, _EDGE, _BAR = 17, 7.83, 14, 30  # pixels
SECONDS = 5.0  # for each part
_GROUND, _INK = "#131516", "#d9d7d2"


def recorded() -> str:
    """What `lmprog demo` prints on a terminal of that width, with its colors."""
    environment = {
        **os.environ, "COLUMNS": str(COLUMNS), "FORCE_COLOR": "1", "TERM": "xterm-256color",
    }  # fmt: skip
    argv = [sys.executable, "-m", "lmprog.cli", "demo"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def picture(session: str) -> str:
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
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="make demo in a terminal">'
        f'<style>{style}</style><rect width="100%" height="100%" rx="9" fill="{_GROUND}"/>{dots}'
        f'<svg x="{_EDGE}" y="{_BAR}" width="{width - 2 * _EDGE}" height="{ROWS * _LINE}">'
        f'<g class="session">{texts}</g></svg></svg>\n'
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


if __name__ == "__main__":
    DEMO.write_text(picture(recorded()), encoding="utf-8")
    print(f"written: {DEMO}")
