"""The programs that the page brings: the Python that is shown does what is sent."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any, Literal

import pytest

import lmprog
from lmprog.server.page import STATIC
from tests.server.conftest import Served
from tests.server.live import Live

PROGRAMS: dict[str, dict[str, Any]] = {
    one["id"]: one for one in json.loads((STATIC / "programs.json").read_text("utf-8"))
}


def shown(name: str, folder: Path) -> lmprog.Program[..., Any]:
    """The program that the source which is shown defines."""
    path = folder / f"{name}.py"
    path.write_text(PROGRAMS[name]["source"], "utf-8")
    names = runpy.run_path(str(path), {"lmprog": lmprog, "Literal": Literal})
    (program,) = [value for value in names.values() if isinstance(value, lmprog.Program)]
    return program


def in_words(value: Any) -> list[str]:
    return [one.strip() for one in (value if isinstance(value, list) else [value])]


@pytest.mark.parametrize("name", [name for name in PROGRAMS if "ops" in PROGRAMS[name]])
def test_the_source_and_the_ops_come_to_the_same(
    server: Served, live: Live, name: str, tmp_path: Path
) -> None:
    ops = PROGRAMS[name]["ops"]
    answer = live.ok("/v1/programs", ops=ops)
    assert answer["status"] == "completed"
    calls = [op["call"] for op in ops if "call" in op]
    by_ops = [answer["results"][call]["text"].strip() for call in calls]
    with lmprog.connect(server.runtime) as backend:
        value = shown(name, tmp_path).using(backend=backend).run().value
    words = in_words(value)
    assert words == by_ops[-len(words) :]


def test_the_program_with_tools_calls_them(server: Served, tmp_path: Path) -> None:
    with lmprog.connect(server.runtime) as backend:
        run = shown("tools", tmp_path).using(backend=backend).run()
    assert run.value in ("Oslo", "Lima", "Rome")
    chat = PROGRAMS["tools"]["chat"]
    assert chat["question"] in run.text()
    assert set(chat["steps"]) == {tool["function"]["name"] for tool in chat["tools"]}


def test_lines_are_short_enough_for_the_page() -> None:
    for name, program in PROGRAMS.items():
        assert max(map(len, program["source"].splitlines())) <= 68, name
