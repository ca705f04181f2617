"""The page of `lmprog trace --html`, as a browser draws it; its pictures are kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lmprog import wire
from lmprog.cli.trace import page
from lmprog.lang.runs.trace_file import TracedCall, TracedRun

if TYPE_CHECKING:
    from tests.browser.window import Window


def _run() -> TracedRun:
    work = wire.Usage(
        prompt=50, cached=40, computed=12, generated=4, forced=1,
        queued_ms=5.0, prefill_ms=30.0, decode_ms=20.0,
    )  # fmt: skip
    lanes = [f"fork0[{number}]" for number in range(4)]
    calls = [
        TracedCall("answer", "nano", lane, "program.py:7", 0.01 * at, 0.09 + 0.01 * at, work)
        for at, lane in enumerate(lanes)
    ]
    return TracedRun("read", "nano", 0.0, 0.2, work, None, calls)


BOXES = """
const lane = document.querySelectorAll('.time')[arguments[0]];
return [...lane.querySelectorAll('u')].map(bar => {
  const box = bar.getBoundingClientRect(), line = lane.getBoundingClientRect();
  return [bar.className, (box.left - line.left) / line.width, box.width / line.width, box.height];
})"""


@pytest.mark.parametrize("width", [1200, 390])
def test_bars_stand_where_the_time_went(window: Window, tmp_path: Path, width: int) -> None:
    path = tmp_path / "trace.html"
    path.write_text(page([_run()], "run.jsonl"))
    window.visit(path.as_uri(), width=width)
    bars: list[list[Any]] = window.script(BOXES, 1)  # the second lane, from 0.01 s to 0.1 s
    assert [bar[0] for bar in bars] == ["asked", "queued", "prefill", "decode"]
    begins = [0.01 / 0.2, 0.045 / 0.2, 0.05 / 0.2, 0.08 / 0.2]
    assert [bar[1] for bar in bars] == pytest.approx(begins, abs=0.01)
    assert [bar[2] for bar in bars][1:] == pytest.approx([0.025, 0.15, 0.1], abs=0.01)
    assert all(bar[3] > 1 for bar in bars)
    assert window.count(".lane .time") == 5
    assert window.overflow() <= 0
    assert window.complaints() == []
    colors = set()
    for theme in ("light", "dark"):
        window.theme(theme)
        colors.add(window.script("return getComputedStyle(document.body).backgroundColor"))
        window.picture(f"trace-{theme}-{width}", whole=True)
    assert len(colors) == 2
