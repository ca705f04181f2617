"""What the benchmarks share: options of a function's signature, sides in turn, and that every
command that is named somewhere is there.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import math
import os
import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from benchmarks import runner

ROOT = Path(__file__).parents[2]
SEEN: list[dict[str, Any]] = []
MOST_FILES, MOST_LINES = 68, 16_588
"""Of benchmarks/, which shrinks; the aim is 6,000 lines."""


def measures(
    model: str,
    times: int = 3,
    *,
    memory: runner.Floats = (0.5, 0.25),
    rows: Sequence[int] = (1, 16),
    what: Literal["one", "two"] = "one",
    json_: Annotated[Path | None, "also write here"] = None,
    is_small: bool = False,
    field: Annotated[Sequence[str], {"type": str, "action": "append", "nargs": None}] = (),
) -> int:
    SEEN.append(dict(locals()))
    if model == "nowhere":
        raise runner.WrongOptions("there is no such model")
    return 7


def test_parameters_are_the_options() -> None:
    usual = {"model": "nano", "times": 3, "memory": (0.5, 0.25), "rows": (1, 16), "what": "one"}
    usual |= {"json_": None, "is_small": False, "field": []}
    assert runner.run(measures, ["nano"]) == 7
    assert SEEN.pop() == usual
    given = "nano 5 --memory 1,0.25 --rows 4 8 --what two --json a.json --is-small --field a=1 --field b=2"
    runner.run(measures, given.split())
    asked = {"times": 5, "memory": [1.0, 0.25], "rows": [4, 8], "what": "two"}
    assert SEEN.pop() == usual | asked | {
        "json_": Path("a.json"),
        "is_small": True,
        "field": ["a=1", "b=2"],
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nano --what three", "invalid choice"),
        ("nano --times 5", "unrecognized arguments"),
        ("nowhere", "there is no such model"),
    ],
)
def test_options_that_cannot_be_are_refused(
    given: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        runner.run(measures, given.split())
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_sides_take_turns_and_the_median_of_their_rounds_counts() -> None:
    asked: list[str] = []
    values = iter([1.0, 10.0, 3.0, 30.0, 2.0, 20.0])

    def side(name: str) -> Any:
        return lambda: (asked.append(name), next(values))[1]

    assert runner.medians({"a": side("a"), "b": side("b")}, 3) == {"a": 2.0, "b": 20.0}
    assert asked == ["a", "b"] * 3


def test_a_percentile_is_one_of_the_values() -> None:
    values = [3.0, 1.0, 2.0, 4.0]
    assert [runner.percentile(values, part) for part in (0.0, 0.5, 1.0)] == [1.0, 3.0, 4.0]
    assert math.isnan(runner.percentile([], 0.5))


def test_a_started_process_is_of_the_checkout_and_ends(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text("import json, os, sys\nWHERE = os.getcwd()\n")
    code = "import json, told, sys; print(json.dumps({'at': told.WHERE}), flush=True); input()"
    with runner.started(["-c", code], tmp_path) as said:
        assert said["at"] == str(tmp_path)
        assert said["pid"] in runner.children_of(os.getpid())
        assert runner.Footprint.of(said["pid"]).threads >= 1
        assert runner.processor_time(said["pid"]) > 0.0
    assert said["pid"] not in runner.children_of(os.getpid())


def test_processor_time_is_that_of_the_process() -> None:
    before = time.process_time()
    assert before <= runner.processor_time(os.getpid()) <= time.process_time()


def pages() -> str:
    places = [*ROOT.glob("docs/*.md"), *ROOT.glob("*.md"), ROOT / "kernels" / "README.md"]
    places += [ROOT / "Makefile", *ROOT.glob(".github/workflows/*.yml")]
    return "\n".join(place.read_text("utf-8") for place in places)


def named_commands() -> set[str]:
    return set(re.findall(r"-m\s+(benchmarks\.[a-z_.]*[a-z_])", pages()))


def test_every_command_that_is_named_is_there() -> None:
    commands = named_commands()
    assert len(commands) > 25
    assert [name for name in sorted(commands) if importlib.util.find_spec(name) is None] == []


def test_the_first_word_names_one_of_several_commands_and_the_first_one_needs_none() -> None:
    named = runner.commands(measures, pages)
    assert list(named) == ["measures", "pages"]
    assert runner.chosen(named, ["pages", "nano"]) == (pages, ["nano"])
    assert runner.chosen(named, ["nano"]) == (measures, ["nano"])
    assert runner.chosen(named, []) == (measures, [])


def spelled_commands() -> set[tuple[str, str]]:
    """Modules with the words behind them: those of a quotation, or of a line of code. What is spelled
    as a pattern, with a name in capitals for a choice, is none."""
    command = r"python -m\s+(benchmarks\.[a-z_.]*[a-z_])"
    found = re.findall(rf"`{command}([^`]*)`", pages())
    found += re.findall(rf"^(?:    |\s+- ){command}(.*?)(?:  .*)?$", pages(), re.MULTILINE)
    whole = {(name, " ".join(words.split())) for name, words in found}
    return {one for one in whole if not re.search(r"[\[|<>$]|\.\.\.|TRIAL", one[1])}


@pytest.mark.parametrize(("name", "words"), sorted(spelled_commands()))
def test_every_command_takes_the_options_that_are_named(name: str, words: str) -> None:
    package = importlib.util.find_spec(name)
    assert package is not None
    if package.submodule_search_locations:
        name += ".__main__"
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"needs more than is installed: {error}")
    named = vars(module).get("COMMANDS") or {"main": module.main}
    command, options = runner.chosen(named, shlex.split(words))
    if options or len(named) > 1:
        runner.parser_of(command).parse_args(options)


def test_nothing_stands_behind_a_command_which_would_run_before_that_is_there() -> None:
    found, count = [], 0
    for path in (ROOT / "benchmarks").rglob("*.py"):
        body = ast.parse(path.read_text("utf-8")).body
        for number, node in enumerate(body):
            marks = node.decorator_list if isinstance(node, ast.FunctionDef) else []
            if "runner.command" in map(ast.unparse, marks):
                count += 1
                found += [path.name] * (number < len(body) - 1)
    assert count > 15
    assert found == []


def test_the_benchmarks_do_not_grow() -> None:
    """What is measured anew is a command or a case of a module that is there."""
    files = list((ROOT / "benchmarks").rglob("*.py"))
    assert len(files) <= MOST_FILES
    assert sum(len(path.read_text("utf-8").splitlines()) for path in files) <= MOST_LINES


def test_options_are_the_runner_s() -> None:
    for path in (ROOT / "benchmarks").rglob("*.py"):
        text = path.read_text("utf-8")
        if path.name != "runner.py":
            assert "argparse" not in text, path
