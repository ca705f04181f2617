"""The types that users see, as mypy infers them under `--strict`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

HEAD = """
import datetime, decimal, enum, uuid
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional, TypedDict, Union
import pydantic
import lmprog
from lmprog.testing import Scripted

class Color(enum.Enum):
    RED = "red"

@dataclass
class Point:
    x: int

class Row(TypedDict):
    name: str

class Pair(NamedTuple):
    left: int
    right: str

class Invoice(pydantic.BaseModel):
    vendor: str

Age = NewType("Age", int)

def values(s: lmprog.Branch) -> None:
"""
TYPES = {  # what is asked for, and what mypy calls it
    "int": "int",
    "float": "float",
    "bool": "bool",
    "str": "str",
    "Color": "Color",
    'Literal["yes", "no"]': "Literal['yes'] | Literal['no']",
    "Literal[1, 2]": "Literal[1] | Literal[2]",
    "Point": "Point",
    "Row": "TypedDict(Row, {'name': str})",
    "Pair": "tuple[int, str, fallback=Pair]",
    "Invoice": "Invoice",
    "Age": "Age",
    "list[int]": "list[int]",
    "list[Point]": "list[Point]",
    "dict[str, float]": "dict[str, float]",
    "tuple[int, str]": "tuple[int, str]",
    "tuple[int, ...]": "tuple[int, ...]",
    "Optional[int]": "int | None",
    "int | None": "int | None",
    "Point | Invoice": "Point | Invoice",
    "list[int | None]": "list[int | None]",
    "Annotated[int, 3]": "int",
    "decimal.Decimal": "Decimal",
    "datetime.date": "date",
    "uuid.UUID": "UUID",
}
OTHERS = {
    "s.gen().value": "str",
    's.gen("name").value': "str",
    's.gen(regex="a").value': "str",
    's.gen(schema={"type": "null"}).value': "str",
    's.gen(choices=["a"]).value': "str",
    "s.gen(reasoning=True).value": "str",
    "s.gen(reasoning=True).reasoning": "str | None",
    's.select("a", "b").value': "Selected",
    's.select("a").value.scores': "dict[str, float]",
    "s.gen(int, n=3).values": "list[int]",
    "lmprog.vote([s.gen(Point).value], key=lambda point: point.x)": "Point",
    "s.fork(2)": "Branches",
    "s.fork(2).map(lambda b: b.gen(Invoice)).value": "list[Invoice]",
    "s.with_(temperature=0, timeout=3.0)": "Branch",
    "lmprog.gen(int)": "GenOp[int]",
    'lmprog.gen_int("x")': "GenOp[int]",
}


def _mypy(*paths: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("mypy")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        *map(str, paths),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=ROOT)


def test_mypy_infers_the_types_of_programs_and_values() -> None:
    """The snippet asserts types, and expects an error (an ignore that is used) wherever a mistake
    is made.
    """
    done = _mypy(Path(__file__).with_name("typing_snippet.py"))
    assert done.returncode == 0, done.stdout


def test_the_examples_are_typed_strictly() -> None:
    examples = sorted((ROOT / "examples").glob("*.py"))
    assert len(examples) >= 12
    done = _mypy(*examples)
    assert done.returncode == 0, done.stdout


def test_mypy_reveals_the_type_that_was_asked_for(tmp_path: Path) -> None:
    asked = {f"s.gen({tp}).value": shown for tp, shown in TYPES.items()} | OTHERS
    snippet = tmp_path / "revealed.py"
    snippet.write_text(HEAD + "".join(f"    reveal_type({expression})\n" for expression in asked))
    done = _mypy(snippet)
    revealed = re.findall(r'Revealed type is "(.*)"', done.stdout)
    assert len(revealed) == len(asked), done.stdout
    found = {expression: _short(shown) for expression, shown in zip(asked, revealed, strict=True)}
    assert found == asked
    assert ": error:" not in done.stdout


def _short(shown: str) -> str:
    """Without the modules that names come from; new and old spelling of optional types."""
    shown = re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", shown).replace("?", "")
    return re.sub(r"Union\[(.*?), None\]", r"\1 | None", shown)
