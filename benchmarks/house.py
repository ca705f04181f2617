"""How simple a package is to read, in figures: its files, lines, names and import cycles.

`python -m benchmarks.house lmprog starlette httpx2 path/to/python/minisgl` prints one column for
each package, given by its folder or by the name under which Python imports it. Everything is read
from the source; nothing of a package is run. Knows Python's syntax; judges nothing.
"""

from __future__ import annotations

import ast
import importlib.util
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import runner

LONG_LINE = 100
LONG_FUNCTION = 50
MANY_PARAMETERS = 6


@dataclass(frozen=True, slots=True)
class Source:
    """One file of a package; `module` is its dotted name."""

    module: str
    path: Path
    text: str
    tree: ast.Module


@dataclass(slots=True)
class Package:
    """All files of a package, parsed once."""

    name: str
    sources: list[Source]
    modules: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.modules = {source.module for source in self.sources}


def package_at(where: str) -> Package:
    """The package in the folder `where`, or the installed one of that name."""
    folder = Path(where)
    if not folder.is_dir():
        spec = importlib.util.find_spec(where)
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit(f"no folder and no installed package is called {where!r}")
        folder = Path(next(iter(spec.submodule_search_locations)))
    folder = folder.resolve()
    sources = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        text = path.read_text()
        module = ".".join(parts).removesuffix(".__init__")
        sources.append(Source(module, path, text, ast.parse(text)))
    return Package(folder.name, sources)


def imports(package: Package, source: Source, nodes: Iterator[ast.AST]) -> Iterator[str]:
    """Modules of the package that `nodes` import, also as `from package import module`."""
    for node in nodes:
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = source.module.split(".")
                if source.path.name == "__init__.py":
                    here.append("")
                base = ".".join([*here[: -node.level], *filter(None, [base])])
            found = [f"{base}.{alias.name}" for alias in node.names]
            found = [name if name in package.modules else base for name in found]
        else:
            continue
        yield from (name for name in found if name in package.modules and name != source.module)


def hidden_imports(package: Package) -> int:
    """Imports of the package's own modules inside of functions."""
    count = 0
    for source in package.sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = [
                    one for one in ast.walk(node) if isinstance(one, ast.Import | ast.ImportFrom)
                ]
                count += sum(1 for one in inner if [*imports(package, source, iter([one]))])
    return count


def cycles(package: Package) -> list[list[str]]:
    """Groups of files that import each other in a circle, type-checking and hidden imports too.

    Packages' `__init__` files are left out: re-exporting what is below is no cycle of ideas.
    """
    edges: dict[str, set[str]] = {}
    for source in package.sources:
        if source.path.name != "__init__.py":
            edges[source.module] = set(imports(package, source, ast.walk(source.tree)))
    return [group for group in _strongly_connected(edges) if len(group) > 1]


def _strongly_connected(edges: dict[str, set[str]]) -> list[list[str]]:
    """Kosaraju's two passes, without recursion."""
    order: list[str] = []
    seen: set[str] = set()
    for start in edges:
        stack = [(start, False)]
        while stack:
            node, done = stack.pop()
            if done:
                order.append(node)
            elif node not in seen:
                seen.add(node)
                stack.append((node, True))
                stack += [(other, False) for other in edges[node] if other in edges]
    back: dict[str, list[str]] = defaultdict(list)
    for node, others in edges.items():
        for other in others:
            back[other].append(node)
    groups, taken = [], set[str]()
    for start in reversed(order):
        todo, group = [start], []
        while todo:
            node = todo.pop()
            if node not in taken:
                taken.add(node)
                group.append(node)
                todo += back[node]
        if group:
            groups.append(sorted(group))
    return groups


def twice(names: Iterator[str]) -> tuple[int, int]:
    """How many names are used more than once, and by how many things in all."""
    counts = [count for count in Counter(names).values() if count > 1]
    return len(counts), sum(counts)


def figures(package: Package) -> dict[str, str]:
    """The rows of the table."""
    lines = [line for source in package.sources for line in source.text.splitlines()]
    code = [
        len(line.strip()) for line in lines if line.strip() and not line.strip().startswith("#")
    ]
    long = sum(1 for line in lines if len(line) > LONG_LINE)
    walked = [node for source in package.sources for node in ast.walk(source.tree)]
    functions = [
        node for node in walked if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    lengths = [(node.end_lineno or 0) - node.lineno + 1 for node in functions]
    sizes = [len(source.text.splitlines()) for source in package.sources]
    classes = [node.name for node in walked if isinstance(node, ast.ClassDef)]
    public = [name for name in classes if not name.startswith("_")]
    class_names, class_uses = twice(iter(public))
    files = [s.path.stem for s in package.sources if s.path.stem not in ("__init__", "__main__")]
    file_names, _ = twice(iter(files))
    circles = cycles(package)
    wide = sum(1 for node in functions if _parameters(node) > MANY_PARAMETERS)
    return {
        "files / lines": f"{len(package.sources)} / {len(lines):,}",
        "mean code line, characters": f"{statistics.mean(code):.1f}",
        f"lines over {LONG_LINE} columns": f"{100 * long / len(lines):.1f} %",
        "file median / max, lines": f"{statistics.median(sizes):.0f} / {max(sizes)}",
        "function median / max, lines": f"{statistics.median(lengths):.0f} / {max(lengths)}",
        f"functions over {LONG_FUNCTION} lines": str(sum(n > LONG_FUNCTION for n in lengths)),
        f"signatures over {MANY_PARAMETERS} parameters": str(wide),
        "file names used twice": f"{file_names} of {len(files)}",
        "public class names used twice": f"{class_names} ({class_uses} of {len(public)} classes)",
        "cycles of files": ", ".join(str(len(c)) for c in sorted(circles, key=len)[::-1]) or "none",
        "hidden own imports": str(hidden_imports(package)),
    }


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = node.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return len([one for one in named if one.arg not in ("self", "cls")])


@runner.command
def main(names: Sequence[str] = ("lmprog",)) -> None:
    packages = [package_at(name) for name in names]
    columns = [figures(package) for package in packages]
    runner.head("", *(package.name for package in packages), texts=len(packages) + 1)
    for row in columns[0]:
        runner.say(row, *(column[row] for column in columns))
    for package in packages:
        for group in cycles(package):
            print(f"\ncycle in {package.name}: {', '.join(group)}", file=sys.stderr)
