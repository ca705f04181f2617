"""The rooms of `docs/architecture.md` are the rooms that exist, each written once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from tests.house import ROOT

PAGE = ROOT / "docs" / "architecture.md"


def _rooms(page: str) -> Iterator[str]:
    """The paths of the tree of rooms: `lmprog/runtime/text/`, `lmprog/wire/`, `kernels/`."""
    tree = page.split("## 4. Rooms", 1)[1].split("```", 2)[1]
    parents: list[tuple[int, str]] = []
    for line in tree.splitlines():
        indent = len(line) - len(line.lstrip())
        if indent > 4:
            continue  # a continued description
        names, _, _ = line.strip().partition("  ")
        for name in re.findall(r"[\w.]+/", f"{names} "):
            while parents and parents[-1][0] > indent - 1:
                parents.pop()
            path = "".join(parent for _, parent in parents) + name
            yield path
        if names.endswith("/") and " " not in names:
            parents.append((indent, names))


def test_every_room_is_on_the_page_once_and_exists() -> None:
    named = Counter(_rooms(PAGE.read_text(encoding="utf-8")))
    assert [room for room, count in named.items() if count > 1] == []
    assert [room for room in named if not (ROOT / room).is_dir()] == []
    packages = {
        f"{path.parent.relative_to(ROOT).as_posix()}/"
        for path in (ROOT / "lmprog").glob("*/**/__init__.py")
        if len(path.relative_to(ROOT).parts) <= 4
    }
    assert sorted(packages - set(named)) == []


def test_a_room_that_is_written_twice_or_does_not_exist_is_found() -> None:
    page = "## 4. Rooms\n```\nlmprog/\n  wire/  a\n    inner/ other/   b\n  wire/  c\nkernels/  d\n```\n"
    assert list(_rooms(page)) == [
        "lmprog/",
        "lmprog/wire/",
        "lmprog/wire/inner/",
        "lmprog/wire/other/",
        "lmprog/wire/",
        "kernels/",
    ]
