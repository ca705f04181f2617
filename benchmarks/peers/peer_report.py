"""The comparison with peers as a table, as JSON and as a chart."""

from __future__ import annotations

import json
from typing import Any

from benchmarks import runner
from benchmarks.pictures import DOCS, Bar, bars

_COLORS = {"lmprog": "bar", "llama.cpp": "mark", "OpenVINO": "violet", "vLLM": "sand"}


def table(found: dict[str, Any]) -> str:
    """Markdown: processor seconds, and how many outputs are those of the first side."""
    names, rows = list(found["cases"]), []
    for name, side in found["sides"].items():
        seconds, equal = side["seconds"], list(side["equal"].values())
        cells = [f"{seconds[case]:.2f}" if case in seconds else "-" for case in names]
        cells.append(f"{sum(equal) / len(equal):.0%}" if equal else "-")
        rows.append([name, *([side["missing"]] + [""] * len(names) if side["missing"] else cells)])
    return runner.table(["", *names, "same outputs"], rows)


def chart(found: dict[str, Any]) -> str:
    """SVG: for each case a bar a side, as long as its seconds over those of lmprog's float32."""
    sides = {name: one["seconds"] for name, one in found["sides"].items() if one["seconds"]}
    first = next(iter(sides.values()))
    most = max(one[case] / first[case] for one in sides.values() for case in one if first.get(case))
    rows: list[Bar | str] = []
    for case in found["cases"]:
        rows.append(case)
        for name, seconds in sides.items():
            if case in seconds:
                color = next((c for key, c in _COLORS.items() if name.startswith(key)), "soft")
                share = seconds[case] / first[case] / most
                rows.append(Bar(name, {color: share}, f"{seconds[case]:.2f} s"))
    return bars(f"Processor seconds, {found['model']} (shorter is better)", {}, rows, 15)


def write(found: dict[str, Any]) -> None:
    """docs/peers.json, docs/images/peers.svg, and the table in docs/peers.md between its marks."""
    (DOCS / "peers.json").write_text(json.dumps(found, indent=1) + "\n")
    (DOCS / "images" / "peers.svg").write_text(chart(found))
    page = DOCS / "peers.md"
    cases = "\n".join(f"- **{name}**: {about}" for name, about in found["cases"].items())
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    rounds = "one round" if found["rounds"] == 1 else f"medians of {found['rounds']} rounds"
    measured = (
        f"\n{found['machine']}; {found['model']}; {rounds}; {versions}.\n\n"
        f"{cases}\n\n{table(found)}\n"
    )
    marks = ("<!-- measured -->\n", "<!-- end -->\n")
    page.write_text(runner.between(page.read_text(), marks, measured))
