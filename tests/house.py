"""The package's files, parsed once, for the tests of its architecture."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]


class House:
    """The Python files under a folder, parsed when they are first asked for, and once."""

    def __init__(self, root: Path, folders: str = "lmprog") -> None:
        self.root = root
        self._folders = folders.split()
        self._imports: dict[Path, list[tuple[str, int]]] = {}

    @cached_property
    def paths(self) -> list[Path]:
        """To look at names only, or to choose by their text what is worth parsing."""
        return [
            path for folder in self._folders for path in sorted((self.root / folder).rglob("*.py"))
        ]

    @cached_property
    def trees(self) -> dict[Path, ast.Module]:
        return {path: parsed(path) for path in self.paths}

    @cached_property
    def modules(self) -> set[str]:
        return {self.module_of(path) for path in self.paths}

    def module_of(self, path: Path) -> str:
        return ".".join(path.relative_to(self.root).with_suffix("").parts).removesuffix(".__init__")

    def imports(self, path: Path) -> Iterator[tuple[str, int]]:
        """Every imported module with its line. `from lmprog import wire` is the module
        `lmprog.wire`.
        """
        if path not in self._imports:
            self._imports[path] = [
                (name, getattr(node, "lineno", 0))
                for node in ast.walk(parsed(path))
                for name in self._named(node, path)
            ]
        yield from self._imports[path]

    def _named(self, node: ast.AST, path: Path) -> list[str]:
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = (self.module_of(path) + (".x" if path.stem == "__init__" else "")).split(".")
                base = ".".join([*here[: -node.level], *filter(None, [base])])
            below = [f"{base}.{alias.name}" for alias in node.names]
            return [name if name in self.modules else base for name in below]
        if isinstance(node, ast.Call) and dotted(node.func).endswith("import_module") and node.args:
            first = node.args[0]
            return (
                [first.value]
                if isinstance(first, ast.Constant) and isinstance(first.value, str)
                else []
            )
        return []


HOUSE = House(ROOT)
"""The package: one for all tests of a process, since to parse it takes seconds."""


@cache
def parsed(path: Path) -> ast.Module:
    """Once for all houses that have the file."""
    return ast.parse(path.read_text())


def dotted(node: ast.expr) -> str:
    """`torch.load` for that expression; empty for what is no plain name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""
