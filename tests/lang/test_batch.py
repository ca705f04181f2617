"""Many runs at once."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import lmprog
from lmprog.errors import InvalidParameter, ModelError
from lmprog.lang.ops import threads
from lmprog.lang.runs.run_batch import ProgramBatch
from lmprog.testing import Hold, Scripted, Scripting
from tests.backends.scripted_api import until


@lmprog.function
def plain(s: lmprog.Branch, word: str) -> str:
    s.append(word)
    return s.gen("a").value


@lmprog.function
async def awaiting(s: lmprog.Branch, word: str) -> str:
    s.append(word)
    return await s.gen("a")


def _echo(prompt: str) -> Scripting:
    return ModelError(f"no {prompt}") if prompt == "bad" else prompt.upper()


@pytest.mark.parametrize("program", [plain, awaiting])
def test_map_keeps_the_order_and_sums_the_work(program: lmprog.Program[[str], str]) -> None:
    words = [f"w{index}" for index in range(20)]
    with Scripted(_echo) as scripted:
        results = program.map(words, backend=scripted, concurrency=4, progress=False)
    assert list(results) == [word.upper() for word in words]
    assert results.usage.generated == 20
    assert results.errors == {}


@pytest.mark.parametrize("program", [plain, awaiting])
def test_collected_errors_are_raised_where_their_value_is_read(
    program: lmprog.Program[[str], str],
) -> None:
    with Scripted(_echo) as scripted:
        results = program.map(["a", "bad", "c"], backend=scripted, on_error="collect")
    assert results.values == ["A", "C"]
    assert list(results.errors) == [1]
    with pytest.raises(ModelError, match="no bad"):
        results[1]


@pytest.mark.parametrize("program", [plain, awaiting])
def test_by_default_map_raises_the_first_failure_and_ends_the_others(
    program: lmprog.Program[[str], str],
) -> None:
    def script(prompt: str) -> Scripting:
        if prompt == "bad":
            return ModelError("no bad")
        return Hold()

    with Scripted(script) as scripted, pytest.raises(ModelError, match="no bad") as caught:
        program.map(["a", "bad", "c"], backend=scripted)
    assert any("item 1 of 3" in note for note in caught.value.__notes__)
    assert scripted.runtime.open_branches() == 0


@pytest.mark.parametrize("program", [plain, awaiting])
def test_no_more_programs_run_at_once_than_asked_for(program: lmprog.Program[[str], str]) -> None:
    most = 0
    running = 0
    lock = threading.Lock()

    @lmprog.function
    async def counted(s: lmprog.Branch, word: str) -> None:
        nonlocal most, running
        with lock:
            running += 1
            most = max(most, running)
        await asyncio.sleep(0.001)
        with lock:
            running -= 1

    with Scripted() as scripted:
        counted.map([str(index) for index in range(30)], backend=scripted, concurrency=3)
    assert most == 3


def test_run_batch_takes_dicts_and_tuples() -> None:
    with Scripted(_echo) as scripted:
        states = plain.run_batch([{"word": "x"}, ("y",)], backend=scripted, num_threads=2)
        assert [state["a"] for state in states] == ["X", "Y"]
        lazily = plain.run_batch(
            [{"word": "x"}, {"word": "y"}], backend=scripted, generator_style=True
        )
        assert [state.ret_value for state in lazily] == ["X", "Y"]


def test_a_batch_given_one_by_one_raises_where_it_failed_and_never_hangs() -> None:
    with Scripted(_echo) as scripted:
        states = plain.run_batch(
            [{"word": "x"}, {"word": "bad"}, {"word": "z"}],
            backend=scripted,
            num_threads=1,
            generator_style=True,
            on_error="raise",
        )
        assert next(states)["a"] == "X"
        with pytest.raises(ModelError, match="no bad"):
            next(states)


def test_an_interrupted_reader_stops_the_batch_before_it_ends_any_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the thread of the run that ended would begin another one."""
    wait, stop, ended = threads.wait, ProgramBatch.stop, list[list[bool]]()

    def interrupted(futures: Any, *given: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            return wait(futures, *given)
        until(lambda: len(scripted.runtime.held()) == 2)
        raise KeyboardInterrupt

    def stopping(batch: ProgramBatch) -> None:
        ended.append([run.outcome.done() for run in batch.runs])
        stop(batch)

    monkeypatch.setattr(threads, "wait", interrupted)
    monkeypatch.setattr(ProgramBatch, "stop", stopping)
    with Scripted(lambda prompt: Hold()) as scripted:
        runs = plain.run_batch(
            [(str(item),) for item in range(4)],
            backend=scripted,
            num_threads=2,
            generator_style=True,
        )
        with pytest.raises(KeyboardInterrupt):
            next(runs)
        assert ended[0] == [False] * 4
        assert len(scripted.asked) == 2


def test_a_progress_bar_counts_the_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with Scripted(_echo) as scripted:
        plain.map(["a", "b"], backend=scripted, progress=True)
    assert "2/2" in capsys.readouterr().err


def test_wrong_settings_of_a_batch_are_refused() -> None:
    with Scripted() as scripted:
        with pytest.raises(InvalidParameter, match="on_error"):
            plain.map(["a"], backend=scripted, on_error="ignore")  # type: ignore[arg-type]
        with pytest.raises(InvalidParameter, match="at least 1"):
            plain.map(["a"], backend=scripted, concurrency=0)
        with pytest.raises(InvalidParameter, match="unknown option 'tempature'"):
            plain.map(["a"], backend=scripted, tempature=1)  # type: ignore[call-arg]


def test_an_empty_batch_is_empty() -> None:
    with Scripted() as scripted:
        assert len(plain.map([], backend=scripted)) == 0
