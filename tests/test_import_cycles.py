"""No file reaches itself through its imports, wherever they are written."""

from __future__ import annotations

from pathlib import Path

from tests.house import ROOT, House


def file_cycles(house: House) -> list[list[str]]:
    """Files that import one another in a circle, imports in functions and for typing included."""
    imports = {
        house.module_of(path): {name for name, _ in house.imports(path) if name in house.modules}
        for path in house.trees
    }
    reach: dict[str, set[str]] = {}
    for start in imports:
        seen: set[str] = set()
        todo = list(imports[start])
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo += imports[name]
        reach[start] = seen
    circles = {
        frozenset(other for other in seen if start in reach[other])
        for start, seen in reach.items()
        if start in seen
    }
    return sorted(sorted(circle) for circle in circles)


def test_no_file_imports_itself_through_others() -> None:
    """Also in functions and for type checking: whoever reads a file reads only what is below it."""
    assert file_cycles(House(ROOT)) == []


def test_a_planted_cycle_of_files_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "lmprog"
    folder.mkdir()
    (folder / "a.py").write_text("if TYPE_CHECKING:\n    from lmprog.b import x\n")
    (folder / "b.py").write_text("def f():\n    from lmprog import c\n")
    (folder / "c.py").write_text("from lmprog.a import y\nimport lmprog.d\n")
    (folder / "d.py").write_text("x = 1\n")
    assert file_cycles(House(tmp_path)) == [["lmprog.a", "lmprog.b", "lmprog.c"]]
