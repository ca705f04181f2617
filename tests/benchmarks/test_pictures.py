"""Pictures in the documentation are what their commands make of what was measured."""

from __future__ import annotations

from xml.etree import ElementTree

from benchmarks.pictures import CHART, DEMO, PAGE, ROWS, Workload, chart, scrolled, workloads


def test_the_chart_of_the_page_is_made_of_its_table() -> None:
    rows = workloads(PAGE.read_text(encoding="utf-8"))
    assert len(rows) == 16
    assert CHART.read_text(encoding="utf-8") == chart(rows)
    [mmlu] = [row for row in rows if row.name == "mmlu"]
    assert f"| mmlu | 20 | {mmlu.unshared:,} | {mmlu.bound:,} | {mmlu.computed:,} |" in (
        PAGE.read_text(encoding="utf-8")
    )


def test_bars_are_as_long_as_their_shares() -> None:
    drawn = ElementTree.fromstring(chart([Workload("half & half", 200, 50, 100)]))
    rects = {node.get("class"): node for node in drawn.iter() if node.tag.endswith("rect")}
    rest, bar, mark = (rects[name] for name in ("rest", "bar", "mark"))
    assert float(bar.get("width", "")) == float(rest.get("width", "")) / 2
    left, whole = float(rest.get("x", "")), float(rest.get("width", ""))
    assert float(mark.get("x", "")) + 1 == left + whole / 4


def test_a_session_is_drawn_line_by_line_and_stops_at_its_headings() -> None:
    lines = ["title ───", *(f"line <{at}>" for at in range(60))]
    lines[20] = "\x1b[1mpart\x1b[0m ───"
    drawn = ElementTree.fromstring(scrolled("\n".join(lines)))
    texts = ["".join(node.itertext()) for node in drawn.iter() if node.tag.endswith("}text")]
    assert texts[1] == "line <0>"
    assert len(texts) == 61
    style = next(node.text or "" for node in drawn.iter() if node.tag.endswith("style"))
    assert style.count("translateY") == 4  # at the top, at the part, at the end, and back
    assert f"translateY(-{(61 - ROWS) * 17}px)" in style


def test_pictures_need_nothing_from_elsewhere() -> None:
    for path in (DEMO, CHART):
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http" not in text
        assert "<script" not in text
