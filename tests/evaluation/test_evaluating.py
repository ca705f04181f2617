"""A program is run on every row, and the metric on what it made of each; what is done is kept."""

from __future__ import annotations

import asyncio
import cProfile
import gc
import json
import os
import pstats
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

import lmprog
from lmprog.backends.client import RuntimeBackend
from lmprog.errors import (
    CheckpointMismatch,
    ContextOverflow,
    InvalidParameter,
    ProgramError,
    UnknownName,
)
from lmprog.evaluation.evaluated_row import run_file
from lmprog.evaluation.evaluating import EvaluationLoop, EvaluationPlan
from lmprog.evaluation.rows import rows_of
from lmprog.fleet.fleet_channel import FleetChannel
from lmprog.fleet.members import Member
from lmprog.lang.runs.results import Run
from lmprog.launch import greet
from lmprog.testing import Scripted
from tests.house import ROOT
from tests.lang.small_runtime import Small

MOST_CALLS = 320
"""Of Python functions, that a row adds to a map: seeds, arguments, figures, texts."""
ROWS = [{"word": f"w{index}", "size": index} for index in range(6)]


@lmprog.function
def echo(s: lmprog.Branch, word: str) -> str:
    s += f"Say {word}:"
    return s.gen(max_tokens=8).value


@lmprog.function
async def echo_async(s: lmprog.Branch, word: str) -> str:
    s += f"Say {word}:"
    return await s.gen(max_tokens=8)


def say(prompt: str) -> Any:
    word = prompt.rpartition("Say ")[2].rstrip(":")
    return ContextOverflow("it is too long") if word == "w2" else "w9" if word == "w4" else word


def is_right(value: str, row: dict[str, Any]) -> bool:
    return bool(value == row["word"])


@pytest.mark.parametrize("program", [echo, echo_async])
def test_a_row_has_its_value_its_score_and_what_failed(program: Any) -> None:
    with Scripted(say) as model:
        found = lmprog.evaluate(program.using(backend=model), ROWS, is_right)
    assert [row.index for row in found] == list(range(6))
    assert found.scores() == [1, 1, 0, 1, 0, 1], "what failed counts as 0"
    assert found.score == pytest.approx(4 / 6)
    assert found.interval.low < 4 / 6 < found.interval.high
    assert {kind: [row.index for row in rows] for kind, rows in found.failures.items()} == {
        "ContextOverflow": [2]
    }
    assert "1 failed by ContextOverflow, first row 2: it is too long" in str(found)
    assert found[1].transcript["root"][0].text == "Say w1:"


def test_rows_are_dicts_dataclasses_tables_and_files(tmp_path: Path) -> None:
    @dataclass
    class Line:
        word: str
        size: int

    with (tmp_path / "rows.jsonl").open("w") as file:
        file.writelines(f"{json.dumps(row)}\n" for row in ROWS)
    table = "\n".join(["word,size", *(f"{row['word']},{row['size']}" for row in ROWS)])
    (tmp_path / "rows.csv").write_text(f"{table}\n")

    class Frame:
        columns = ("word", "size")

        def to_dict(self, kind: Literal["records"]) -> list[dict[str, Any]]:
            return ROWS

        def __len__(self) -> int:
            return len(ROWS)

    given: list[object] = [
        ROWS,
        iter(ROWS),
        [Line(f"w{index}", index) for index in range(6)],
        tmp_path / "rows.jsonl",
        str(tmp_path / "rows.csv"),
        Frame(),
    ]
    for one in given:
        assert list(rows_of(one)[0]) == ROWS, one


def test_a_cell_is_a_number_where_its_whole_column_is(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("a,b,c,d,e\n1,1,007,true,x\n2,2.5,1,false,\n")
    assert list(rows_of(file)[0]) == [
        {"a": 1, "b": 1.0, "c": "007", "d": True, "e": "x"},
        {"a": 2, "b": 2.5, "c": "1", "d": False, "e": ""},
    ]


def test_what_is_no_row_and_no_metric_is_refused_by_name(tmp_path: Path) -> None:
    with Scripted(say) as model:
        program = echo.using(backend=model)
        with pytest.raises(
            InvalidParameter, match="needs 'word', and the rows have no such column"
        ):
            lmprog.evaluate(program, [{"wort": "x"}], is_right)
        with pytest.raises(InvalidParameter, match="row 0 is a str, and has no columns"):
            lmprog.evaluate(program, ["x"], is_right)
        with pytest.raises(UnknownName, match="no file"):
            lmprog.evaluate(program, tmp_path / "none.csv", is_right)
        with pytest.raises(InvalidParameter, match="metric"):
            lmprog.evaluate(program, ROWS, 3)  # type: ignore[call-overload]
        wrong = lmprog.evaluate(program, ROWS[:1], lambda value, row: "good")
        assert wrong[0].failure == "ProgramError"
        unknown = lmprog.evaluate(program, ROWS[:1], "wrod")
        assert "did you mean 'word'" in unknown[0].message


def test_a_metric_may_be_async_give_several_scores_or_see_the_run() -> None:
    async def several(value: str, row: dict[str, Any], run: Any) -> dict[str, float]:
        await asyncio.sleep(0)
        return {"right": is_right(value, row), "letters": len(run.text())}

    for program in (echo, echo_async):
        with Scripted(say) as model:
            found = lmprog.evaluate(program.using(backend=model), ROWS[:2], several)
        assert found.names == ["right", "letters"]
        assert found.scores() == [1, 1]
        assert found.scores("letters") == [9, 9]


def test_a_judge_is_a_program_whose_work_is_counted_apart() -> None:
    @lmprog.function
    def judge(s: lmprog.Branch, answer: str, word: str) -> str:
        s += f"Is {answer} like {word}?"
        return s.select("yes", "no").value

    def both(prompt: str) -> Any:
        return say(prompt) if prompt.startswith("Say") else "no" if "w9" in prompt else "yes"

    with Scripted(both) as model:
        found = lmprog.evaluate(echo.using(backend=model), ROWS, judge)
    assert found.scores() == [1, 1, 0, 1, 0, 1]
    assert found.judging.usage.prompt > 0
    assert found.names == ["score"]


def test_rows_come_as_they_end_and_who_stops_reading_ends_all() -> None:
    with Scripted(say) as model:
        stream = lmprog.evaluate(
            echo.using(backend=model), ROWS, is_right, stream=True, concurrency=2
        )
        assert sorted(row.index for row in stream) == list(range(6))
        assert stream.result.score == pytest.approx(4 / 6)
    with Scripted(say) as model:
        endless = ({"word": "w"} for _ in iter(int, 1))
        rows = lmprog.evaluate(
            echo.using(backend=model), endless, is_right, stream=True, concurrency=2
        )
        for _ in zip(range(3), rows, strict=False):
            pass


def test_a_run_that_fails_in_its_forks_or_by_its_budget_fails_its_row_alone() -> None:
    @lmprog.function
    def forked(s: lmprog.Branch, word: str) -> str:
        s += f"Say {word}:"
        with s.fork(2) as branches:
            branches.map(lambda branch: branch.gen(max_tokens=4))
        return s.gen(max_tokens=8).value

    with Scripted(say) as model:
        found = lmprog.evaluate(forked.using(backend=model), ROWS, is_right)
        assert {row.index: row.failure for row in found if row.failure} == {2: "ContextOverflow"}
        short = lmprog.evaluate(forked.using(backend=model, max_total_tokens=2), ROWS, is_right)
    assert {row.failure for row in short} == {"TokenBudgetExceeded", "ContextOverflow"}
    assert short[0].transcript["root"]


def test_rows_are_drawn_as_there_is_room_for_them() -> None:
    drawn: list[int] = []
    most: list[int] = []

    def rows() -> Any:
        for row in ROWS:
            drawn.append(1)
            yield row

    def metric(value: str, row: dict[str, Any]) -> bool:
        most.append(len(drawn) - len(most))
        return True

    with Scripted(say) as model:
        lmprog.evaluate(echo.using(backend=model), rows(), metric, concurrency=2)
    assert max(most) <= 3, "the two under way, and the row that failed"


def test_raising_ends_all_and_tells_what_is_done() -> None:
    for program in (echo, echo_async):
        with Scripted(say) as model:
            failing = program.using(backend=model)
            with pytest.raises(ContextOverflow) as caught:
                lmprog.evaluate(failing, ROWS, is_right, on_error="raise", concurrency=1)
        assert [row.index for row in caught.value.results] == [0, 1]  # type: ignore[attr-defined]
        assert "raised by row 2" in caught.value.__notes__


def test_inside_an_async_program_it_is_awaited() -> None:
    @lmprog.function
    async def outer(s: lmprog.Branch, wrong: bool) -> float:
        if wrong:
            return lmprog.evaluate(echo_async, ROWS, is_right).score
        return (await lmprog.aevaluate(echo_async, ROWS, is_right)).score

    with Scripted(say) as model:
        assert outer.using(backend=model).run(False).value == pytest.approx(4 / 6)
        with pytest.raises(ProgramError, match="aevaluate"):
            outer.using(backend=model).run(True)


def test_it_is_saved_and_read_again_and_prices_are_counted_by_branch(tmp_path: Path) -> None:
    @lmprog.function
    def forked(s: lmprog.Branch, word: str) -> str:
        s += f"Say {word}:"
        with s.fork(2) as branches:
            branches.map(lambda branch: branch.gen(max_tokens=4))
        return s.gen(max_tokens=8).value

    with Scripted(lambda prompt: "x y") as model:
        found = lmprog.evaluate(
            forked.using(backend=model), ROWS, "word", prices={"scripted": (1, 0.5, 2)}
        )
    found.save(tmp_path / "found.json")
    again = lmprog.Evaluation.load(tmp_path / "found.json")
    assert again.rows == found.rows
    assert str(again) == str(found)
    works = found.by_branch
    assert sorted(works) == ["fork0[0]", "fork0[1]", "root"]
    assert found.cost == pytest.approx(sum(one.cost or 0 for one in works.values()))
    usage = found.usage
    assert found.cost == pytest.approx((usage.prompt + 2 * usage.generated) / 1e6)
    assert found[0].transcript["fork0[1]"][-1].text == "x y"
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ProgramError, match="is no evaluation"):
        lmprog.Evaluation.load(tmp_path / "other.json")


class Places:
    """Runtimes of this process as the members of a fleet."""

    def __init__(self, runtimes: list[Small]) -> None:
        self._channels = {str(nth): one.channel for nth, one in enumerate(runtimes)}

    @property
    def size(self) -> int:
        return len(self._channels)

    def current(self) -> list[Member]:
        return [Member(name, partial(self._dial, name)) for name in self._channels]

    def _dial(self, name: str) -> Any:
        return greet(self._channels[name].connect())

    def end(self, name: str, why: str, grace: float) -> None:
        """It belongs to the test."""

    def close(self, grace: float) -> bool:
        return True


def _values(found: lmprog.Evaluation) -> list[tuple[Any, ...]]:
    return [(row.index, row.value, row.scores, row.seed) for row in found]


@lmprog.function
def slotted(s: lmprog.Branch, word: str) -> str:
    s.examples("shots", format="{word}\n")
    s += f"Say {word}:"
    return s.gen(max_tokens=4, temperature=1.0).value


def _tuned(program: Any, concurrency: int) -> tuple[Any, ...]:
    rows = [{"word": f"w{index}"} for index in range(24)]
    options: dict[str, Any] = {"budget": 90, "candidates": 3, "shots": [1]}
    found = program.tune(
        rows, lambda value, row: len(value.encode()) % 7 / 7, concurrency=concurrency, **options
    )
    scores = [one.scores for one in found.candidates]
    return found.winner.as_json(), scores, found.num_calls, found.comparison.differences


def test_one_seed_gives_one_result_at_any_concurrency_and_on_a_fleet(small: Small) -> None:
    sampled = echo.using(temperature=1.0, seed=5)
    others = [Small() for _ in range(3)]
    try:
        with RuntimeBackend(greet(small.channel.connect())) as backend:
            one = lmprog.evaluate(sampled.using(backend=backend), ROWS, is_right, concurrency=1)
            many = lmprog.evaluate(sampled.using(backend=backend), ROWS, is_right, concurrency=64)
            other = lmprog.evaluate(sampled.using(backend=backend, seed=6), ROWS, is_right)
            tuned = [_tuned(slotted.using(backend=backend), at_once) for at_once in (1, 64)]
        with RuntimeBackend(FleetChannel(Places(others))) as fleet:
            spread = lmprog.evaluate(sampled.using(backend=fleet), ROWS, is_right)
            tuned.append(_tuned(slotted.using(backend=fleet), 64))
    finally:
        for each in others:
            each.end()
    assert _values(one) == _values(many) == _values(spread) != _values(other)
    assert len({row.seed for row in one}) == len(ROWS), "rows have seeds of their own"
    assert tuned[0] == tuned[1] == tuned[2]
    assert len(tuned[0][1]) > 1, "candidates were compared"


KILLED = """
import os, sys
import lmprog
from lmprog.testing import Scripted

log = open({log!r}, "a", buffering=1)

@lmprog.function
def steps(s: lmprog.Branch, word: str) -> str:
    s += f"Say {{word}}:"
    first = s.gen(max_tokens=8).value
    s += " and"
    return first + s.gen(max_tokens=8).value

@lmprog.function
def judge(s: lmprog.Branch, answer: str) -> str:
    s += f"Judge {{answer}}:"
    return s.select("yes", "no").value

num = 0
def model(prompt):
    global num
    num += 1
    if num == {after}:
        os.kill(os.getpid(), 9)
    log.write(repr(prompt) + "\\n")
    return "yes" if prompt.startswith("Judge") else "x"

rows = [{{"word": f"w{{index}}"}} for index in range(5)]
with Scripted(model) as backend:
    found = lmprog.evaluate(steps.using(backend=backend), rows, judge,
                            checkpoint={file!r}, concurrency={concurrency})
print(found.score, len(found))
"""


@pytest.mark.parametrize("concurrency", [1, 4])
def test_after_a_kill_it_goes_on_and_nothing_that_was_answered_is_asked_again(
    tmp_path: Path, concurrency: int
) -> None:
    """Concurrent calls may be open when the process dies; those have no answer yet."""
    log, file = tmp_path / "log", tmp_path / "rows.jsonl"
    ended = []
    for after in (4, 6, 0):
        code = KILLED.format(log=str(log), file=str(file), after=after, concurrency=concurrency)
        ended.append(
            subprocess.run(
                [sys.executable, "-c", code],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
                check=False,
            )
        )
    assert [one.returncode for one in ended] == [-9, -9, 0], ended[-1].stderr
    assert ended[-1].stdout == "1.0 5\n"
    asked = log.read_text().splitlines()
    assert set(asked) == {
        f"'{text}'"
        for index in range(5)
        for text in (f"Say w{index}:", f"Say w{index}:x and", "Judge xx:")
    }
    first_calls = [one for one in asked if not one.startswith("'Judge")]
    most_open = 0 if concurrency == 1 else 2 * (concurrency - 1)  # of two processes that died
    assert len(first_calls) <= 10 + most_open
    assert len(asked) <= 15 + most_open
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "rows.jsonl"]


def test_files_of_runs_that_a_kill_left_beside_a_row_that_is_done_are_removed(
    tmp_path: Path,
) -> None:
    file = tmp_path / "rows.jsonl"
    with Scripted(say) as model:
        lmprog.evaluate(echo.using(backend=model), ROWS, is_right, checkpoint=file)
    left = [run_file(file, 0, what) for what in ("run", "judge")]
    for one in left:
        one.write_text("")
    with Scripted(lambda prompt: "w2") as model:
        lmprog.evaluate(echo.using(backend=model), ROWS, is_right, checkpoint=file)
    assert not any(one.exists() for one in left)


def test_a_checkpoint_is_of_one_evaluation_and_failed_rows_are_tried_again(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    with Scripted(say) as model:
        lmprog.evaluate(echo.using(backend=model), ROWS, is_right, checkpoint=file)
    with Scripted(lambda prompt: "w2") as model:
        found = lmprog.evaluate(echo.using(backend=model), ROWS, is_right, checkpoint=file)
        assert model.prompts == ["Say w2:"]
        assert found.scores() == [1, 1, 1, 1, 0, 1]
        with pytest.raises(CheckpointMismatch, match="with metric 'is_right'"):
            lmprog.evaluate(echo.using(backend=model), ROWS, "word", checkpoint=file)
        with pytest.raises(CheckpointMismatch, match="another row 0"):
            lmprog.evaluate(echo.using(backend=model), ROWS[1:], is_right, checkpoint=file)
    with file.open("a") as broken:
        broken.write('{"index": 3, "ro')
    with Scripted([]) as model:
        lmprog.evaluate(echo.using(backend=model), ROWS, is_right, checkpoint=file)


def test_a_row_adds_few_calls_to_a_map_and_keeps_no_run() -> None:
    """Of a run, which has its branches, calls and ops, a row keeps figures and texts. Calls of
    functions are counted, since their time depends on what else the machine does.
    """
    rows = [{"word": f"w{index}"} for index in range(100)]
    words = [row["word"] for row in rows]
    with Scripted(lambda prompt: "x") as model:
        program = echo_async.using(backend=model)

        def calls(body: Any) -> int:
            body()
            counted = cProfile.Profile()
            counted.runcall(body)
            return int(pstats.Stats(counted).total_calls)  # type: ignore[attr-defined]

        mapped = calls(lambda: program.map(words))
        evaluated = calls(lambda: lmprog.evaluate(program, rows, is_right))
        found = lmprog.evaluate(program, rows, is_right, concurrency=2)
        gc.collect()
        runs = [one for one in gc.get_objects() if isinstance(one, Run)]
    assert len(found) == len(rows)
    assert len(runs) <= 2, "at most the last one of each worker"
    assert 50 < (evaluated - mapped) / len(rows) <= MOST_CALLS


def test_the_loop_takes_no_concurrency_below_one() -> None:
    with pytest.raises(InvalidParameter, match="concurrency"):
        EvaluationLoop(EvaluationPlan.of(echo, ROWS, is_right, {}), 0, progress=False)
