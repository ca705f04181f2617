"""The comparison with peers as a table, as JSON and as a chart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

DOCS = Path(__file__).parents[2] / "docs"
_WIDTH, _LEFT, _BAR, _GAP = 760, 130, 13, 22
_COLOURS = {"lmprog": "#2563eb", "llama.cpp": "#d97706", "OpenVINO": "#0f766e", "vLLM": "#9333ea"}


def table(found: dict[str, Any]) -> str:
    """Markdown: processor seconds, and how many outputs are those of the first side."""
    names = list(found["cases"])
    lines = ["| | " + " | ".join(names) + " | same outputs |", "|-|" + "-:|" * (len(names) + 1)]
    for name, side in found["sides"].items():
        if side["missing"]:
            lines.append(f"| {name} | {side['missing']} |" + " |" * len(names))
            continue
        cells = [
            f"{side['seconds'][case]:.2f}" if case in side["seconds"] else "-" for case in names
        ]
        equal = list(side["equal"].values())
        share = f"{sum(equal) / len(equal):.0%}" if equal else "-"
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {share} |")
    return "\n".join(lines)


def chart(found: dict[str, Any]) -> str:
    """SVG: for each case a bar a side, as long as its seconds over those of lmprog's float32."""
    sides = {name: one["seconds"] for name, one in found["sides"].items() if one["seconds"]}
    first = next(iter(sides.values()))
    most = max(one[case] / first[case] for one in sides.values() for case in one if first.get(case))
    parts, y = [], 34
    for case in found["cases"]:
        parts.append(f'<text x="8" y="{y}" class="case">{escape(case)}</text>')
        y += 8
        for name, seconds in sides.items():
            if case not in seconds:
                continue
            ratio = seconds[case] / first[case]
            width = max(1.0, ratio / most * (_WIDTH - _LEFT - 110))
            colour = next((c for key, c in _COLOURS.items() if name.startswith(key)), "#64748b")
            parts.append(
                f'<text x="{_LEFT - 6}" y="{y + 10}" class="side">{escape(name)}</text>'
                f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR - 3}" '
                f'fill="{colour}"/>'
                f'<text x="{_LEFT + width + 5:.1f}" y="{y + 10}">{seconds[case]:.2f} s</text>'
            )
            y += _BAR
        y += _GAP
    style = (
        "text{font:11px sans-serif;fill:#475569}.case{font-weight:bold}.side{text-anchor:end}"
        ".title{font-weight:bold;font-size:13px}.paper{fill:#ffffff}"
        "@media (prefers-color-scheme:dark){text{fill:#cbd5e1}.paper{fill:#131516}}"
    )
    title = f"Processor seconds, {found['model']} (shorter is better)"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y}" '
        f'viewBox="0 0 {_WIDTH} {y}"><style>{style}</style>'
        f'<rect width="100%" height="100%" class="paper"/>'
        f'<text x="8" y="16" class="title">{escape(title)}</text>{"".join(parts)}</svg>\n'
    )


def write(found: dict[str, Any]) -> None:
    """docs/peers.json, docs/images/peers.svg, and the table in docs/peers.md between its marks."""
    (DOCS / "peers.json").write_text(json.dumps(found, indent=1) + "\n")
    (DOCS / "images" / "peers.svg").write_text(chart(found))
    page = DOCS / "peers.md"
    begin, end = "<!-- measured -->\n", "<!-- end -->"
    before, _, rest = page.read_text().partition(begin)
    cases = "\n".join(f"- **{name}**: {about}" for name, about in found["cases"].items())
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    rounds = "one round" if found["rounds"] == 1 else f"medians of {found['rounds']} rounds"
    measured = (
        f"{found['machine']}; {found['model']}; {rounds}; {versions}.\n\n"
        f"{cases}\n\n{table(found)}\n"
    )
    page.write_text(before + begin + "\n" + measured + end + rest.partition(end)[2])
