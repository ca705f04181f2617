"""What the benchmark of a GPU found, as Markdown, and in docs/gpu.md between its marks. Knows
tables and a page; measures nothing.
"""

from __future__ import annotations

import datetime
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"
BEGIN, END = "<!-- measured on a GPU -->\n", "<!-- end -->"
PARTS = ("kernels", "engines", "ablations")


def section(part: str, device: str, text: str) -> str:
    """One part with its date and device."""
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return f"### Measured: {part}\n\n{device}, {today}.\n\n{text}\n"


def renewed(page: str, sections: dict[str, str]) -> str:
    """The page with these parts; those not measured now stay as they were."""
    before, _, rest = page.partition(BEGIN)
    measured, found_end, after = rest.partition(END)
    if not found_end:
        raise ValueError(f"the page has no {BEGIN.strip()} ... {END}")
    old = {}
    for one in measured.split("### Measured: ")[1:]:
        old[one.partition("\n")[0]] = "### Measured: " + one.rstrip() + "\n"
    parts = old | sections
    body = "\n".join(parts[name] for name in PARTS if name in parts)
    return f"{before}{BEGIN}\n{body}\n{END}{after}"


def write(sections: dict[str, str], page: Path = PAGE) -> None:
    """Only what a GPU gave may come here."""
    page.write_text(renewed(page.read_text(), sections))
