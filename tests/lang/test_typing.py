"""The types that users see, as mypy infers them, strict as in `make check`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SNIPPET = Path(__file__).with_name("typing_snippet.py")
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
REVEALING = "revealed.py"

HEAD = """
import datetime, decimal, enum, uuid
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional, TypedDict, Union
import pydantic
import lmprog, lmprog.sglang
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
    'lmprog.sglang.gen_int("x")': "GenOp[int]",
}
ASKED = {f"s.gen({tp}).value": shown for tp, shown in TYPES.items()} | OTHERS


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What mypy says of all that is looked at here: one run, with the options of `make check`, so
    that each finds what the other has kept of the package.
    """
    pytest.importorskip("mypy")
    revealing = tmp_path_factory.mktemp("typing") / REVEALING
    revealing.write_text(HEAD + "".join(f"    reveal_type({expression})\n" for expression in ASKED))
    paths = [revealing, SNIPPET, *EXAMPLES]
    command = [sys.executable, "-m", "mypy", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=ROOT)
    lines = done.stdout.splitlines()
    told = f"no issues found in {len(paths)} source files", f"checked {len(paths)} source files"
    assert lines, done.stderr
    assert any(end in lines[-1] for end in told), done.stdout + done.stderr
    return lines


def errors_of(path: Path, said: list[str]) -> list[str]:
    return [line for line in said if f"{path.name}:" in line and ": error:" in line]


def test_mypy_infers_the_types_of_programs_and_values(said: list[str]) -> None:
    """The snippet asserts types, and expects an error (an ignore that is used) wherever a mistake
    is made.
    """
    assert not errors_of(SNIPPET, said)


def test_the_examples_are_typed_strictly(said: list[str]) -> None:
    assert len(EXAMPLES) >= 12
    assert not [error for example in EXAMPLES for error in errors_of(example, said)]


def test_mypy_reveals_the_type_that_was_asked_for(said: list[str]) -> None:
    revealed = re.findall(r'Revealed type is "(.*)"', "\n".join(said))
    assert len(revealed) == len(ASKED), said
    found = {expression: _short(shown) for expression, shown in zip(ASKED, revealed, strict=True)}
    assert found == ASKED
    assert not errors_of(Path(REVEALING), said)


def _short(shown: str) -> str:
    """Without the modules that names come from; new and old spelling of optional types."""
    shown = re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", shown).replace("?", "")
    return re.sub(r"Union\[(.*?), None\]", r"\1 | None", shown)
