"""The demo: what it prints is shaped for its terminal, and the figures in it are those of the
programs it shows.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from lmprog.cli import demo
from lmprog.cli.arguments import parser

ROOT = Path(__file__).parents[1]
CONTROL = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(scope="module")
def printed() -> str:
    """What a pipe of 80 columns gets, from one run."""
    with pytest.MonkeyPatch.context() as patch:
        return _run(patch, columns=80)


def _run(patch: pytest.MonkeyPatch, columns: int, **more: str) -> str:
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        patch.delenv(name, raising=False)
    for name, value in {"COLUMNS": str(columns), **more}.items():
        patch.setenv(name, value)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert demo.run(parser().parse_args(["demo"])) == 0
    return out.getvalue()


def _table(printed: str) -> dict[str, list[int]]:
    """The closing table: the figures of each program, and of all."""
    rows = [
        re.split(r"\s*[│|]\s*", line.strip("│| "))
        for line in printed.splitlines()
        if re.match(r"[│|] \w", line)
    ]
    return {name: [int(figure.replace(",", "")) for figure in figures] for name, *figures in rows}


def test_a_pipe_gets_no_control_codes_and_no_line_over_80_columns(printed: str) -> None:
    assert "\x1b" not in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_a_terminal_gets_color_and_a_wide_one_keeps_a_margin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    colored = _run(monkeypatch, columns=120, FORCE_COLOR="1", TERM="xterm-256color")
    assert CONTROL.search(colored)
    widths = [len(line) for line in CONTROL.sub("", colored).splitlines()]
    assert 80 < max(widths) <= demo.WIDEST


def test_it_shows_each_program_and_what_came_out(printed: str) -> None:
    for part in demo.PARTS:
        assert f"def {part.program.function.__name__}(s: lmprog.Branch" in printed
        assert part.call in printed
    assert printed.count("  -> ") == len(demo.REVIEWS) + len(demo.QUESTIONS)
    assert len(re.findall(r"\(positive \d+%, negative \d+%\)", printed)) == len(demo.REVIEWS)
    assert re.search(
        r"Person\(name='.*', age=-?\d+, town='.*', animal='.*'\)", printed.replace("\n  ", " ")
    )
    assert re.findall(r"^  ([123])\.", printed, re.MULTILINE) == ["1", "2", "3"]


def test_its_figures_add_up_and_show_that_work_was_shared(printed: str) -> None:
    table = _table(printed)
    total = table.pop("all")
    assert list(table) == [part.program.function.__name__ for part in demo.PARTS]
    for column, figure in enumerate(total[:5]):
        assert figure == sum(row[column] for row in table.values())
    prompt, in_tree, computed, forced, passes = zip(
        *(row[:5] for row in table.values()), strict=True
    )
    classify, ask_all, extract, samples = range(4)
    assert in_tree[classify] > computed[classify] / 2
    assert passes[classify] <= len(demo.REVIEWS)
    assert in_tree[ask_all] > 2 * len(demo.PASSAGE.split())
    assert forced[extract] > 10
    assert passes[extract] < computed[extract] / 2
    assert in_tree[samples] == 2 * (
        prompt[samples] - 1
    )  # two of the three compute no more than its last token


def test_the_ways_to_go_on_exist(printed: str) -> None:
    for what, _ in demo.WAYS:
        assert what in printed
        if what.startswith("lmprog "):
            parser().parse_args(what.split()[1:])
        else:
            assert all((ROOT / file).is_file() for file in what.split(", ")), what
