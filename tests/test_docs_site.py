"""The site of the documentation names everything that is public, and links only to what it has."""

from __future__ import annotations

import re
from pathlib import Path

import lmprog

DOCS = Path(__file__).parents[1] / "docs"
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")


def test_the_reference_names_every_public_name() -> None:
    named = set(re.findall(r"^::: lmprog\.(\w+)$", (DOCS / "api.md").read_text(), re.MULTILINE))
    assert named - {"errors", "grammar", "testing"} == set(lmprog.__all__)


def test_every_page_is_in_the_navigation() -> None:
    listed = set(
        re.findall(r"([\w-]+\.md)$", (DOCS.parent / "mkdocs.yml").read_text(), re.MULTILINE)
    )
    assert listed == {page.name for page in DOCS.glob("*.md")}


def test_links_between_pages_lead_somewhere() -> None:
    for page in DOCS.glob("*.md"):
        for target, _ in LINK.findall(page.read_text()):
            assert (page.parent / target).is_file(), f"{page.name} links to {target}"
