"""The site of the documentation names everything that is public, links only to what it has, and
its pages can be read: none is long, and their sentences are short.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lmprog
from lmprog import sglang

DOCS = Path(__file__).parents[1] / "docs"
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(#[^)\s]*)?\)")
MODULES = {"errors", "grammar", "testing"}
TASKS = """extract agent questions chat judge batch measure grammar serve replicas openai testing errors"""
LOGS = {"performance-history.md"}
"""Pages that are kept as they were written at their time."""
MOST_LINES = 400
MOST_LINES_OF_A_TASK = 120


def pages() -> list[Path]:
    return sorted(DOCS.glob("*.md"))


def headings(page: str) -> set[str]:
    """The anchors of a page, as the site makes them."""
    text = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    found = set()
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        words = re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading)
        found.add(re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", words).strip().lower()))
    return found


def test_the_reference_names_every_public_name_once() -> None:
    text = "\n".join(page.read_text() for page in DOCS.glob("api*.md"))
    named = re.findall(r"^::: lmprog\.(?:sglang\.)?(\w+)$", text, re.MULTILINE)
    assert len(named) == len(set(named))
    assert set(named) - MODULES == set(sglang.__all__) > set(lmprog.__all__)


def test_every_page_is_in_the_navigation_and_tasks_come_first() -> None:
    listed = re.findall(r"([\w-]+\.md)$", (DOCS.parent / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == [page.name for page in pages()]
    assert listed[: 1 + len(TASKS.split())] == [
        "index.md",
        *(f"{name}.md" for name in TASKS.split()),
    ]


def test_links_lead_to_a_page_and_a_heading_of_it() -> None:
    for page in [*pages(), DOCS.parent / "README.md"]:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for target, anchor in LINK.findall(text):
            file = page.parent / target if target else page
            assert file.exists(), f"{page.name} links to {target}"
            if anchor and file.suffix == ".md":
                assert anchor[1:] in headings(file.read_text()), f"{page.name}: {target}{anchor}"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_no_page_is_long(page: Path) -> None:
    most = MOST_LINES_OF_A_TASK if page.stem in TASKS.split() else MOST_LINES
    if page.name not in LOGS:
        assert len(page.read_text().splitlines()) <= most


def prose_of(page: Path) -> list[str]:
    """The lines of a page that are neither code nor tables nor lists made from code."""
    text = re.sub(r"<!-- (\w+) -->\n.*?<!-- /\1 -->", "", page.read_text(), flags=re.DOTALL)
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return [line for line in text.splitlines() if not line.startswith(("|", "    ", "#", ":::"))]


def words_of_a_sentence(page: Path) -> float:
    """On average; what stands in backticks is one word, an item of a list begins a sentence."""
    text = "\n".join(prose_of(page))
    text = re.sub(r"\]\([^)]*\)", "", re.sub(r"`[^`]*`", "x", text))
    parts = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) |(?<=[.!?])[)*\"]*\s+", f"\n{text}")
    counts = [len(part.split()) for part in parts if part.strip()]
    return sum(counts) / max(1, len(counts))


LONG_LINES = """architecture constraints peers performance performance-history"""
"""Pages with lines of more than `LONGEST_LINE` characters; to be shortened."""
MOST_WORDS = 20
LONGEST_LINE = 125


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_sentences_and_lines_are_short(page: Path) -> None:
    assert words_of_a_sentence(page) <= MOST_WORDS
    if page.stem not in LONG_LINES.split():
        assert [line for line in prose_of(page) if len(line) > LONGEST_LINE] == []


def test_pages_that_are_short_by_now_are_held_to_it() -> None:
    for name in LONG_LINES.split():
        assert any(len(line) > LONGEST_LINE for line in prose_of(DOCS / f"{name}.md")), name


@pytest.mark.parametrize("page", [*pages(), *DOCS.parent.glob("*.md")], ids=lambda one: one.name)
def test_no_page_has_the_marks_of_two_who_changed_it_at_a_time(page: Path) -> None:
    text = page.read_text("utf-8")
    assert re.findall(r"^(?:[<>|]{7}|={7})(?: .*)?$", text, re.MULTILINE) == []


def test_the_changelog_says_each_thing_once() -> None:
    text = (Path(__file__).parents[1] / "CHANGELOG.md").read_text("utf-8")
    entries = re.findall(r"^- .*(?:\n  .*)*", text, re.MULTILINE)
    assert len(entries) > 100
    assert [one for one in entries if entries.count(one) > 1] == []
