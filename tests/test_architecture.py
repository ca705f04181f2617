"""The plan of the house as a tested table: who may import whom, where each library enters, what no
file may do.

Read `UNITS` and `DOORS` (`tests/units.py`) as documentation; a change of the design begins with a change there and in
`docs/architecture.md`. Imports count wherever they stand: at the top, in a function, for type
checking only, or as `importlib.import_module("...")` with a name written out.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house import HOUSE, ROOT, House, dotted, parsed
from tests.units import DOORS, UNITS, Unit

MAX_FILE_LINES = 600
MAX_TEST_LINES = 600
"""Of a file beside the package: tests are lists of cases."""
MAX_FUNCTION_LINES = 75
MAX_PARAMETERS = 7
MAX_PROTOCOL_METHODS = 9


FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
PICKLING_CALLS = {"recv_pyobj", "send_pyobj"}
FORBIDDEN_CALLS = {"eval", "exec", "__import__", "torch.load", "torch.hub.load", *PICKLING_CALLS}
FORBIDDEN_ARGUMENTS = {"trust_remote_code", "allow_pickle"}
FORBIDDEN_FILE_NAMES = {"util", "utils", "common", "helper", "helpers", "misc"}
FORBIDDEN_CLASS_ENDS = ("Manager", "Mixin", "Helper", "Utils")


def unit_of(module: str) -> str | None:
    """The unit with the longest name above the module; the facade is only `lmprog` itself."""
    best, longest = None, 0
    for name, unit in UNITS.items():
        for prefix in unit.modules.split():
            is_there = module == prefix or (
                prefix not in ("lmprog", "lmprog.runtime") and module.startswith(prefix + ".")
            )
            if is_there and len(prefix) > longest:
                best, longest = name, len(prefix)
    return best


def import_problems(house: House) -> Iterator[str]:
    """Modules without a unit, imports that the table does not allow, libraries beside their
    doors.
    """
    for path in house.trees:
        module = house.module_of(path)
        unit = unit_of(module)
        if unit is None:
            yield f"{module} belongs to no unit: add it to UNITS, or put it with its user"
            continue
        allowed = {unit, *UNITS[unit].may_import.split()}
        for name, line in house.imports(path):
            top = name.partition(".")[0]
            if top == "lmprog":
                other = unit_of(name)
                if other not in allowed:
                    yield f"{module}:{line} ({unit}) imports {name} ({other or 'no unit'})"
            elif top not in sys.stdlib_module_names and not is_door(top, module):
                yield f"{module}:{line} imports {top}, whose doors are: {DOORS.get(top, 'none')}"


def is_door(library: str, module: str) -> bool:
    doors = DOORS.get(library, "").split()
    return any(module == door or module.startswith(door + ".") for door in doors)


DANGEROUS = re.compile(
    "|".join(
        name.rpartition(".")[2]
        for name in sorted(FORBIDDEN_MODULES | FORBIDDEN_CALLS | FORBIDDEN_ARGUMENTS)
    )
)
"""A file without any of these names is not worth parsing."""


def danger_problems(house: House) -> Iterator[str]:
    """Whatever turns bytes into code."""
    for path in house.paths:
        if not DANGEROUS.search(path.read_text()):
            continue
        tree = parsed(path)
        for name, line in house.imports(path):
            if name.partition(".")[0] in FORBIDDEN_MODULES:
                yield f"{path.name}:{line} imports {name}"
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            called = dotted(node.func)
            if called == "torch.load" and is_own_checkpoint(node, path.relative_to(house.root)):
                continue
            if called in FORBIDDEN_CALLS or called.rpartition(".")[2] in PICKLING_CALLS:
                yield f"{path.name}:{node.lineno} calls {called}"
            for keyword in node.keywords:
                is_off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                if keyword.arg in FORBIDDEN_ARGUMENTS and not is_off:
                    yield f"{path.name}:{node.lineno} passes {keyword.arg}"


def is_own_checkpoint(call: ast.Call, path: Path) -> bool:
    """Training may read back what it wrote, as plain tensors; the package itself reads safetensors
    only.
    """
    plain = any(
        keyword.arg == "weights_only"
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is True
        for keyword in call.keywords
    )
    return plain and path.parts[0] == "training"


def shape_problems(house: House) -> Iterator[str]:
    """Files and functions that are too long, names that say nothing."""
    for path, tree in house.trees.items():
        num_lines = len(path.read_text().splitlines())
        is_package = path.relative_to(house.root).parts[0] == "lmprog"
        most = MAX_FILE_LINES if is_package else MAX_TEST_LINES
        if num_lines > most:
            yield f"{path.relative_to(house.root)} has {num_lines} lines, more than {most}"
        if path.stem in FORBIDDEN_FILE_NAMES or path.parent.name in FORBIDDEN_FILE_NAMES:
            yield f"{path.relative_to(house.root)}: name the idea, or put it with its user"
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name.endswith(FORBIDDEN_CLASS_ENDS):
                yield f"{path.name}:{node.lineno} class {node.name}: name what it is"
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    yield (
                        f"{path.name}:{node.lineno} {node.name} has {length} lines, more "
                        f"than {MAX_FUNCTION_LINES}"
                    )


def signature_problems(house: House) -> Iterator[str]:
    """Signatures with too many parameters, protocols with too many methods."""
    for path, tree in house.trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = node.args
                named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
                count = len([one for one in named if one.arg not in ("self", "cls")])
                if count > MAX_PARAMETERS:
                    yield f"{path.name}:{node.lineno} {node.name} has {count} parameters"
            if isinstance(node, ast.ClassDef) and any(
                "Protocol" in ast.dump(b) for b in node.bases
            ):
                methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
                if len(methods) > MAX_PROTOCOL_METHODS:
                    yield f"{path.name}:{node.lineno} {node.name} has {len(methods)} methods"


def prose_problems(house: House) -> Iterator[str]:
    """Modules that do not say what they know."""
    for path, tree in house.trees.items():
        if tree.body and not ast.get_docstring(tree):
            yield f"{path.relative_to(house.root)} has no docstring"


def name_problems(house: House) -> Iterator[str]:
    """Public classes that share their name: one word for one idea, over the whole package."""
    places: dict[str, list[str]] = {}
    for path, tree in house.trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(house.module_of(path))
    for name, found in places.items():
        if len(found) > 1:
            yield f"class {name} is in {', '.join(found)}"


def cycles() -> list[str]:
    """Units that reach themselves through what they may import."""
    found = []
    for start in UNITS:
        seen: set[str] = set()
        todo = UNITS[start].may_import.split()
        while todo:
            name = todo.pop()
            if name == start:
                found.append(start)
                break
            if name not in seen:
                seen.add(name)
                todo += UNITS[name].may_import.split()
    return found


ALL_CODE = House(ROOT, "lmprog tests examples benchmarks training")


def test_every_import_is_in_the_table() -> None:
    assert list(import_problems(HOUSE)) == []


def test_the_table_has_no_cycle_and_names_only_units_and_modules_that_exist() -> None:
    assert cycles() == []
    for name, unit in UNITS.items():
        assert set(unit.may_import.split()) <= set(UNITS), name


def test_nothing_turns_bytes_into_code() -> None:
    assert list(danger_problems(ALL_CODE)) == []


def test_files_and_functions_stay_small_and_names_say_something() -> None:
    assert list(shape_problems(ALL_CODE)) == []


def test_signatures_and_protocols_stay_small() -> None:
    assert list(signature_problems(HOUSE)) == []


def test_every_module_says_what_it_knows() -> None:
    assert list(prose_problems(ALL_CODE)) == []


def test_test_files_have_different_names() -> None:
    """In a folder that is no package, pytest knows a test file by its name alone."""
    tests = [path for path in ALL_CODE.paths if path.name.startswith("test_")]
    names = [path.name for path in tests if not (path.parent / "__init__.py").exists()]
    assert {name for name in names if names.count(name) > 1} == set()


def test_no_two_public_classes_have_the_same_name() -> None:
    assert list(name_problems(HOUSE)) == []


def test_kernels_know_no_framework() -> None:
    sources = [
        path
        for kind in ("*.h", "*.cpp", "*.cu", "*.cuh")
        for path in (ROOT / "kernels").rglob(kind)
    ]
    assert sources
    include = re.compile(r"#\s*include\s*[<\"](torch|ATen|c10|Python\.h|pybind11|nanobind|numpy)")
    assert [path.name for path in sources if include.search(path.read_text())] == []


PLANTED = {
    "radix/tree.py": (
        '"""x."""\nfrom lmprog import wire\n',
        "radix.tree:2 (radix) imports lmprog.wire (wire)",
    ),
    "radix/hidden.py": (
        '"""x."""\ndef f():\n    from lmprog.lang import state\n',
        "radix.hidden:3",
    ),
    "radix/typed.py": (
        '"""x."""\nif TYPE_CHECKING:\n    import lmprog.transport.client\n',
        "radix.typed:3",
    ),
    "radix/relative.py": ('"""x."""\nfrom ..transport import client\n', "radix.relative:2"),
    "lang/torchy.py": (
        '"""x."""\ndef f():\n    import torch.nn as nn\n',
        "lang.torchy:3 imports torch",
    ),
    "lang/dynamic.py": ('"""x."""\nimportlib.import_module("zmq")\n', "lang.dynamic:2 imports zmq"),
    "radix/unknown.py": ('"""x."""\nimport requests\n', "whose doors are: none"),
    "runtime/new_room/a.py": ('"""x."""\n', "belongs to no unit"),
    "wire.py": ('"""x."""\nimport pickle\n', "wire.py:2 imports pickle"),
    "native.py": ('"""x."""\neval("1")\n', "native.py:2 calls eval"),
    "runtime/engine/engine.py": ('"""x."""\ntorch.load("x")\n', "engine.py:2 calls torch.load"),
    "runtime/engine/model/far.py": (
        '"""x."""\nf(trust_remote_code=flag)\n',
        "far.py:2 passes trust_remote_code",
    ),
    "runtime/engine/attention/backend.py": (
        '"""x."""\n' + "x = 1\n" * MAX_FILE_LINES,
        f"lmprog/runtime/engine/attention/backend.py has {MAX_FILE_LINES + 1} lines",
    ),
    "runtime/loop.py": (
        '"""x."""\ndef f():\n' + "    x = 1\n" * MAX_FUNCTION_LINES,
        "loop.py:2 f has",
    ),
    "lang/wide.py": ('"""x."""\ndef f(a, b, c, d, e, f, g, h): ...\n', "f has 8 parameters"),
    "lang/promise.py": (
        '"""x."""\nclass P(Protocol):\n' + "".join(f"    def f{n}(self): ...\n" for n in range(10)),
        "P has 10 methods",
    ),
    "lang/utils.py": ('"""x."""\n', "lmprog/lang/utils.py: name the idea"),
    "lang/names.py": ('"""x."""\nclass BranchManager: ...\n', "class BranchManager"),
    "lang/twice.py": (
        '"""x."""\nclass Planted: ...\nclass Outer:\n    class Planted: ...\n',
        "class Planted is in",
    ),
    "config.py": ("x = 1\n", "lmprog/config.py has no docstring"),
}


@pytest.mark.parametrize("place", PLANTED)
def test_a_planted_violation_is_found(place: str, tmp_path: Path) -> None:
    source, complaint = PLANTED[place]
    files = {
        "__init__.py": '"""x."""\n',
        "wire.py": '"""x."""\n',
        "lang/state.py": '"""x."""\n',
        place: source,
    }
    for name, text in {**files, "transport/client.py": '"""x."""\n'}.items():
        path = tmp_path / "lmprog" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    house = House(tmp_path)
    checks = (
        import_problems,
        danger_problems,
        shape_problems,
        prose_problems,
        name_problems,
        signature_problems,
    )
    found = [problem for check in checks for problem in check(house)]
    assert len([problem for problem in found if complaint in problem]) == 1, found


def test_a_planted_cycle_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(UNITS, "errors", Unit("lmprog.errors", "launch"))
    assert "errors" in cycles()
    assert "launch" in cycles()
