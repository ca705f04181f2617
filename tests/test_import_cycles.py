"""No file and no folder reaches itself through its imports, wherever they are written."""

from __future__ import annotations

from pathlib import Path

from tests.house import HOUSE, House


def file_cycles(house: House) -> list[list[str]]:
    """Files that import one another in a circle, imports in functions and for typing included."""
    return circles(imports_of(house))


def folder_cycles(house: House) -> list[list[str]]:
    """Folders whose files import one another in a circle; a folder within another is one of its
    own. A file of the package's own folder counts by itself.
    """
    packages = {house.module_of(path) for path in house.paths if path.stem == "__init__"}

    def folder(module: str) -> str:
        is_folder = module in packages or module.count(".") < 2
        return module if is_folder else module.rpartition(".")[0]

    imports: dict[str, set[str]] = {}
    for module, names in imports_of(house).items():
        others = imports.setdefault(folder(module), set())
        others |= {folder(name) for name in names} - {folder(module)}
    return circles(imports)


def imports_of(house: House) -> dict[str, set[str]]:
    """By each module the modules that it imports."""
    return {
        house.module_of(path): {name for name, _ in house.imports(path) if name in house.modules}
        for path in house.paths
    }


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Those that reach themselves, each circle once."""
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
    found = {
        frozenset(other for other in seen if start in reach[other])
        for start, seen in reach.items()
        if start in seen
    }
    return sorted(sorted(circle) for circle in found)


def test_no_file_imports_itself_through_others() -> None:
    """Also in functions and for type checking: whoever reads a file reads only what is below it."""
    assert file_cycles(HOUSE) == []


def test_no_folder_imports_itself_through_others() -> None:
    """What folders share lies below them, and what chooses among them above. The package's own
    folder holds both, errors and what users import, so that its files count by themselves.
    """
    assert folder_cycles(HOUSE) == []


def test_a_planted_cycle_of_files_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "lmprog"
    folder.mkdir()
    (folder / "a.py").write_text("if TYPE_CHECKING:\n    from lmprog.b import x\n")
    (folder / "b.py").write_text("def f():\n    from lmprog import c\n")
    (folder / "c.py").write_text("from lmprog.a import y\nimport lmprog.d\n")
    (folder / "d.py").write_text("x = 1\n")
    assert file_cycles(House(tmp_path)) == [["lmprog.a", "lmprog.b", "lmprog.c"]]


def test_a_planted_cycle_of_folders_is_found(tmp_path: Path) -> None:
    """A folder and one within it are two."""
    for name, text in (
        ("", ""),
        ("room/", ""),
        ("room/below/", ""),
        ("room/below/a", "from lmprog.room.b import x\n"),
        ("room/b", "x = 1\n"),
        ("room/c", "from lmprog.room.below.a import x\n"),
        ("errors", "x = 1\n"),
    ):
        path = tmp_path / "lmprog" / f"{name or ''}"
        path = path / "__init__.py" if not name or name.endswith("/") else path.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert file_cycles(House(tmp_path)) == []
    assert folder_cycles(House(tmp_path)) == [["lmprog.room", "lmprog.room.below"]]
