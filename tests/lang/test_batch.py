"""Many runs at once."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import lmprog
from lmprog.errors import Cancelled, InvalidParameter, ModelError
from lmprog.lang.branches.gen import Gen
from lmprog.lang.branches.scope import Scope
from lmprog.lang.ops import threads
from lmprog.lang.runs.results import Run
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
    """Else the run after it would begin."""

    def interrupted(source: Any) -> None:
        until(lambda: len(scripted.runtime.held()) == 2)
        raise KeyboardInterrupt

    monkeypatch.setattr(threads, "take", interrupted)
    with Scripted(lambda prompt: Hold()) as scripted:
        runs = plain.run_batch(
            [(str(item),) for item in range(4)],
            backend=scripted,
            num_threads=2,
            generator_style=True,
        )
        with pytest.raises(KeyboardInterrupt) as caught:
            next(runs)
        assert len(scripted.asked) == 2
        assert [type(error) for error in caught.value.results.errors.values()] == [Cancelled] * 2  # type: ignore[attr-defined]


# --- as they come


def _living() -> int:
    gc.collect()
    return sum(isinstance(one, Run | Scope | Gen) for one in gc.get_objects())


@pytest.mark.usefixtures("frozen_heap")  # only what comes into being here is looked at
@pytest.mark.parametrize("program", [plain, awaiting])
@pytest.mark.parametrize("way", ["for", "async for", "run_batch"])
def test_runs_that_come_one_by_one_keep_only_what_is_under_way(
    program: lmprog.Program[[str], str], way: str
) -> None:
    """A run, its scope and its result are 3 objects; 3 runs go on, 3 wait, one is with the
    reader.
    """
    drawn, most, values = 0, 0, list[str]()

    def words() -> Iterator[str]:
        nonlocal drawn
        for index in range(200):
            drawn = index + 1
            yield f"w{index}"

    def see(run: lmprog.Run[str]) -> None:
        nonlocal most
        values.append(run.value)
        assert drawn <= len(values) + 6
        if len(values) % 40 == 0:
            most = max(most, _living() - before)

    async def read() -> None:
        async for _, run in program.imap(words(), backend=scripted, concurrency=3):
            see(run)
            del run

    before = _living()
    with Scripted(_echo) as scripted:
        if way == "for":
            for item, run in program.imap(words(), backend=scripted, concurrency=3):
                see(run)
                assert item.upper() == run.value
                del run
        elif way == "async for":
            asyncio.run(read())
        else:
            lazily = ((word,) for word in words())
            for run in program.run_batch(
                lazily, backend=scripted, num_threads=3, generator_style=True
            ):
                see(run)
                del run
    assert values == [f"W{index}" for index in range(200)]
    assert 3 <= most <= 3 * 8


@pytest.mark.parametrize("program", [plain, awaiting])
def test_runs_come_in_the_order_of_their_ends_where_that_is_asked_for(
    program: lmprog.Program[[str], str],
) -> None:
    def script(prompt: str) -> Scripting:
        return Hold() if prompt == "slow" else prompt

    def in_turn(items: Iterable[str], ordered: bool) -> list[str]:
        with Scripted(script) as scripted:
            came = []
            runs = program.imap(items, backend=scripted, concurrency=2, ordered=ordered)
            for item, _ in runs:
                came.append(item)
                if len(came) == 2 and not ordered:
                    scripted.release("at last")
            return came

    assert in_turn(["slow", "a", "b"], ordered=False)[:2] == ["a", "b"]
    assert in_turn(["a", "b", "c"], ordered=True) == ["a", "b", "c"]


@pytest.mark.parametrize("program", [plain, awaiting])
@pytest.mark.parametrize("way", ["for", "async for"])
def test_a_first_run_that_takes_long_keeps_no_other_from_beginning(
    program: lmprog.Program[[str], str], way: str
) -> None:
    """Six are kept, twice as many as go on at once."""
    items = ["slow", *"abcdefgh"]

    def script(prompt: str) -> Scripting:
        return Hold() if prompt == "slow" else prompt

    async def read() -> list[str]:
        runs = program.imap(items, backend=scripted, concurrency=3)
        return [item async for item, _ in runs]

    def read_here() -> list[str]:
        return [item for item, _ in program.imap(items, backend=scripted, concurrency=3)]

    with Scripted(script) as scripted, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_here if way == "for" else lambda: asyncio.run(read()))
        try:
            until(lambda: len(scripted.asked) == 6)
        finally:
            scripted.release("at last")
        assert reading.result() == items


@pytest.mark.parametrize("program", [plain, awaiting])
def test_the_first_failure_of_runs_that_come_ends_the_others_unless_it_is_collected(
    program: lmprog.Program[[str], str],
) -> None:
    def script(prompt: str) -> Scripting:
        return Hold() if prompt == "held" else _echo(prompt)

    with Scripted(script) as scripted:
        with pytest.raises(ModelError, match="no bad") as caught:
            list(program.imap(["held", "bad", "never"], backend=scripted, concurrency=2))
        assert any("item 1" in note for note in caught.value.__notes__)
        assert scripted.runtime.open_branches() == 0
        pairs = program.imap(["a", "bad"], backend=scripted, on_error="collect")
        assert [(item, run.failure is None) for item, run in pairs] == [("a", True), ("bad", False)]


@pytest.mark.parametrize("program", [plain, awaiting])
def test_a_loop_over_runs_that_is_left_early_ends_those_under_way(
    program: lmprog.Program[[str], str],
) -> None:
    def script(prompt: str) -> Scripting:
        return "yes" if prompt == "0" else Hold()

    async def read() -> None:
        pairs = aiter(program.imap(map(str, range(50)), backend=scripted, concurrency=4))
        assert (await anext(pairs))[1].value == "yes"
        while len(scripted.runtime.held()) < 4:
            await asyncio.sleep(0.001)
        await pairs.aclose()  # type: ignore[attr-defined]

    with Scripted(script) as scripted:
        for _, run in program.imap(map(str, range(50)), backend=scripted, concurrency=4):
            assert run.value == "yes"
            until(lambda: len(scripted.runtime.held()) == 4)
            break
        assert scripted.runtime.held() == []
        asyncio.run(read())
        assert scripted.runtime.held() == []
        assert len(scripted.asked) == 10


def test_items_that_cannot_be_drawn_end_the_runs_that_go_on() -> None:
    def items() -> Iterator[str]:
        yield "a"
        raise OSError("the file is gone")

    with Scripted(lambda prompt: Hold()) as scripted:
        with pytest.raises(OSError, match="gone"):
            list(plain.imap(items(), backend=scripted))
        assert scripted.runtime.open_branches() == 0


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
