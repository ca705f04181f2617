"""`lmprog trace`: in the terminal and as a page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import lmprog
from lmprog.cli import main
from lmprog.testing import Scripted


@lmprog.function
async def two_lanes(s: lmprog.Branch, name: str) -> None:
    s.append("some text")
    async with s.fork(2) as branches:
        await branches.map(lambda b: b.gen(name=name))
    s.append(await s.gen(name="last"))


@pytest.fixture
def traced(tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    with Scripted(["one", "two words", "three"]) as backend, lmprog.tracing(path):
        two_lanes.using(backend=backend).run("<b>&")
    return path


def test_a_trace_is_shown_with_lanes_and_counts(
    traced: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["trace", str(traced)]) == 0
    shown = capsys.readouterr().out
    assert "two_lanes on scripted" in shown
    assert "4 generated (0 forced)" in shown
    rows = {line.split()[0]: line.split()[-5:] for line in shown.splitlines() if line.strip()}
    assert [rows[name][0] for name in ("fork0[0]", "fork0[1]", "root")] == ["1", "1", "1"]
    assert [rows[name][4] for name in ("fork0[0]", "fork0[1]", "root")] == ["1", "2", "1"]
    assert all(len(line) <= 100 for line in shown.splitlines())


class Tags(HTMLParser):
    """The tags of a page, and those that are open at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.found.append(tag)
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_quotes_names_and_needs_nothing_else(
    traced: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    assert main(["trace", str(traced), "--html", str(page)]) == 0
    text = page.read_text()
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert not {"script", "link", "img", "iframe", "b-"} & set(tags.found)
    assert not re.search(r"https?:|url\(|@import", text)
    assert "<b>&" not in text
    assert text.count("&lt;b&gt;&amp;") >= 4
    assert "prefers-color-scheme: dark" in text
    assert text.count('<div class="lane">') == 3


def test_what_is_no_trace_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x"
    path.write_text("{}")
    assert main(["trace", str(path)]) == 2
    assert "is no trace" in capsys.readouterr().err
