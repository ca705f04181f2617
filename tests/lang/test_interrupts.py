"""Ctrl-C, and everything else that leaves runs behind: nothing begins any more, and what runs is
cancelled where it runs. Nothing here is measured in time: what is left to do waits for an answer
that comes only once all has been counted.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

import lmprog
from lmprog.errors import Cancelled, ModelError
from lmprog.testing import Hold, Scripted, Scripting
from tests.backends.scripted_api import Fault, ScriptedApi, until
from tests.lang.interrupted_programs import CONCURRENCY, MODES, THREADS

ROOT = Path(__file__).parents[2]
NUM_ANSWERED = CONCURRENCY
"""Then the service answers nothing any more."""
LONG = 240.0
"""Seconds after which a process that has not ended is taken to hang."""
BATCHES = {mode for mode in MODES if "map" in mode} | {"run_batch", "generator"}
NUM_WAITING = {"fork": 32, "race": 8}  # calls; one where it is not said


@contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process with pipes, killed where it hangs."""
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    guard = threading.Timer(LONG, process.kill)
    guard.start()
    try:
        yield process
    finally:
        guard.cancel()
        process.kill()
        process.communicate()


class Silent:
    """A service that answers so many requests, and from then on none before `hold` is set."""

    def __init__(self, num_answered: int) -> None:
        self.num_answered = 0
        self._num_left = num_answered
        self.api = ScriptedApi(self._answer)
        if num_answered == 0:
            self.api.hold.clear()

    def _answer(self, prompt: str) -> str:
        self.num_answered += 1
        self._num_left -= 1
        if self._num_left == 0:
            self.api.hold.clear()
        return "yes"


def read(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise AssertionError(f"the process ended early: {process.communicate()[1]}")
    found: dict[str, Any] = json.loads(line)
    return found


def say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


@pytest.mark.parametrize(
    ("mode", "how"),
    [
        *((mode, "signal") for mode in MODES),
        *((mode, "thread") for mode in ("map plain", "cell map async", "cell run plain")),
    ],
)
def test_after_an_interrupt_nothing_is_asked_and_what_was_asked_is_cancelled(
    mode: str, how: str
) -> None:
    service = Silent(NUM_ANSWERED if mode in BATCHES else 0)
    expected = CONCURRENCY if mode in BATCHES else NUM_WAITING.get(mode, 1)
    command = ("-m", "tests.lang.interrupted_programs", mode)
    with service.api as api, started(*command, api.base_url) as process:
        # not those that were read but will be answered: their clients would not leave
        until(lambda: api.num_held == expected or process.poll() is not None, LONG)
        num_asked = len(api.requests)
        if how == "signal":
            process.send_signal(signal.SIGINT)
        else:
            say(process, "interrupt")
        told = read(process)
        until(lambda: api.left == expected, LONG)  # the prompt is back, and they are cancelled
        api.hold.set()  # what went on would go on now
        say(process, "go")
        at_last = read(process)
        assert process.wait(LONG) == 0
    assert told["kind"] == "KeyboardInterrupt"
    assert at_last["begun"] == told["begun"]
    assert len(api.requests) == num_asked
    if mode in BATCHES:
        assert told["done"] == (0 if mode == "map stubborn" else service.num_answered)


NEVER_ENDING = """
import sys, threading
import lmprog

@lmprog.function
def waiting(s, item):
    sys.stdout.write("begun\\n")  # in one piece, unlike print
    sys.stdout.flush()
    s.append("Mia lives in")
    s.gen(max_tokens=2).value
    if item >= 20:
        threading.Event().wait()  # nothing ever ends this

waiting.map(range(1000), concurrency=8)
"""


def test_ctrl_c_ends_a_process_whose_programs_are_busy_with_what_never_ends() -> None:
    """On the embedded model, which is told once."""
    with started("-c", NEVER_ENDING) as process:
        assert process.stdout is not None
        for _ in range(28):
            assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LONG)
    assert out == ""
    assert process.returncode == -signal.SIGINT
    assert "20 of 1,000 runs had ended well; this exception's `results` has them" in err
    assert err.count("runs on nano, the toy model") == 1


ENDLESS = """
import lmprog

@lmprog.function
def endless(s):
    s.append("Mia lives in")
    print("begun", flush=True)
    while True:
        with s.copy() as branch:
            branch.gen(max_tokens=64, ignore_eos=True).value

@lmprog.function
async def endless_async(s):
    s.append("Mia lives in")
    print("begun", flush=True)
    while True:
        with s.copy() as branch:
            await branch.gen(max_tokens=64, ignore_eos=True)

@lmprog.function
def endless_map(s):
    s.append("Mia")
    endless_async.map([(), ()])

@lmprog.function
def endless_fork(s):
    s.append("Mia lives in")
    with s.fork(2) as branches:
        branches.each(endless)
"""


@pytest.mark.parametrize("name", ["endless", "endless_async", "endless_fork"])
def test_ctrl_c_ends_lmprog_run(name: str, tmp_path: Path) -> None:
    file = tmp_path / "programs.py"
    file.write_text(ENDLESS)
    with started("-m", "lmprog.cli", "run", f"{file}::{name}") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=LONG)
    assert process.returncode == 130
    assert err == "", "neither a traceback, nor a word on the model, which was chosen"


def test_ctrl_c_ends_lmprog_bench_while_its_requests_wait() -> None:
    service = Silent(0)
    with service.api as api, started("-m", "lmprog.cli", "bench", api.base_url) as process:
        until(lambda: api.num_held == 16 or process.poll() is not None, LONG)
        process.send_signal(signal.SIGINT)
        assert process.wait(LONG) == 130


PAUSING = """
import sys
from lmprog.cli import batch, main
batch.LONGEST_PAUSE = 1e6
sys.exit(main(["batch", "-i", sys.argv[1], "-o", sys.argv[2], "--url", sys.argv[3]]))
"""


def test_ctrl_c_ends_lmprog_batch_while_it_waits_to_ask_again(tmp_path: Path) -> None:
    asks = {"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "x"}}
    (tmp_path / "in").write_text(json.dumps(asks))
    full = Fault(503, headers={"Retry-After": "1000000"})
    with ScriptedApi(lambda prompt: "yes") as api:
        api.faults.append(full)
        files = (str(tmp_path / "in"), str(tmp_path / "out"))
        with started("-c", PAUSING, *files, api.url) as process:
            until(lambda: api.requests or process.poll() is not None, LONG)
            process.send_signal(signal.SIGINT)
            assert process.wait(LONG) == 130


LEFT_OPEN = """
import threading
import lmprog
from lmprog.testing import Hold, Scripted

@lmprog.function
def waiting(s, item):
    s.append("x")
    if item == 0:
        return s.gen().value
    threading.Event().wait()  # nothing ever ends this

backend = Scripted(lambda prompt: "yes")
runs = waiting.run_batch([(0,), (1,)], backend=backend, generator_style=True)
print(next(runs).value)
events = iter(waiting.using(backend=backend).stream(0))
print(next(events).delta)
"""


def test_iterators_that_are_left_open_do_not_keep_a_process_from_ending() -> None:
    with started("-c", LEFT_OPEN) as process:
        out, err = process.communicate(timeout=LONG)
    assert (out, process.returncode) == ("yes\nyes\n", 0), err


# --- the same without processes: other ways to leave runs behind


@lmprog.function
def plain(s: lmprog.Branch, item: str) -> str:
    s.append(item)
    return s.gen("a").value


@lmprog.function
async def awaiting(s: lmprog.Branch, item: str) -> str:
    s.append(item)
    return await s.gen("a")


def first_then_hold(prompt: str) -> Scripting:
    return "yes" if prompt == "0" else Hold()


def ended_threads() -> None:
    """All threads of programs have ended."""
    until(lambda: not any(thread.name in THREADS for thread in threading.enumerate()), LONG)


@pytest.mark.parametrize("end", ["close", "drop"])
def test_closing_the_iterator_of_a_batch_ends_what_runs_and_begins_nothing(
    end: Literal["close", "drop"],
) -> None:
    with Scripted(first_then_hold) as scripted:
        runs = plain.run_batch(
            [(str(item),) for item in range(100)],
            backend=scripted,
            num_threads=4,
            generator_style=True,
        )
        assert next(runs)["a"] == "yes"
        until(lambda: len(scripted.runtime.held()) == 4)
        if end == "close":
            runs.close()  # type: ignore[attr-defined]
        else:
            del runs
        assert scripted.runtime.held() == []
        ended_threads()
        assert len(scripted.asked) == 5


def test_an_iterator_of_a_batch_that_nobody_read_ends_the_batch() -> None:
    with Scripted(lambda prompt: Hold()) as scripted:
        runs = plain.run_batch(
            [(str(item),) for item in range(100)],
            backend=scripted,
            num_threads=4,
            generator_style=True,
        )
        until(lambda: len(scripted.runtime.held()) == 4)
        del runs
        ended_threads()
        assert len(scripted.asked) == 4
        assert scripted.runtime.open_branches() == 0


@pytest.mark.parametrize("program", [plain, awaiting])
def test_a_failure_that_leaves_a_batch_has_the_results(
    program: lmprog.Program[[str], str],
) -> None:
    def script(prompt: str) -> Scripting:
        return ModelError("no bad") if prompt == "bad" else "yes"

    with Scripted(script) as scripted, pytest.raises(ModelError, match="no bad") as caught:
        program.map(["a", "b", "bad", "c"], backend=scripted, concurrency=1)
    results = caught.value.results  # type: ignore[attr-defined]
    assert results.values == ["yes", "yes"]
    assert list(results.errors) == [2, 3]
    assert isinstance(results.errors[3], Cancelled)


def test_in_order_the_cause_is_raised_and_not_what_it_has_cancelled() -> None:
    def script(prompt: str) -> Scripting:
        return Hold() if prompt == "a" else ModelError("no bad")

    with Scripted(script) as scripted:
        runs = plain.run_batch(
            [("a",), ("bad",)],
            backend=scripted,
            num_threads=2,
            generator_style=True,
            on_error="raise",
        )
        with pytest.raises(ModelError, match="no bad"):
            next(runs)


@pytest.mark.parametrize("program", [plain, awaiting])
def test_a_cancelled_amap_has_the_results(program: lmprog.Program[[str], str]) -> None:
    async def main() -> list[str]:
        task = asyncio.ensure_future(
            program.amap([str(item) for item in range(50)], backend=scripted, concurrency=3)
        )
        while len(scripted.runtime.held()) < 3:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        found: list[str] = caught.value.results.values  # type: ignore[attr-defined]
        return found

    with Scripted(first_then_hold) as scripted:
        assert asyncio.run(main()) == ["yes"]
        ended_threads()
        assert len(scripted.asked) == 4
        assert scripted.runtime.open_branches() == 0


def test_an_exception_with_results_of_its_own_keeps_them() -> None:
    class Mine(Exception):
        results = 7

    @lmprog.function
    def failing(s: lmprog.Branch, item: int) -> None:
        raise Mine

    with Scripted() as scripted, pytest.raises(Mine) as caught:
        failing.map([1], backend=scripted)
    assert caught.value.results == 7


def test_plain_programs_that_are_busy_do_not_keep_a_cancelled_amap() -> None:
    never = threading.Event()

    @lmprog.function
    def busy(s: lmprog.Branch, item: int) -> None:
        begun.append(item)
        never.wait()
        s.append("x")

    async def main() -> None:
        task = asyncio.ensure_future(busy.amap(range(50), backend=scripted, concurrency=3))
        while len(begun) < 3:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    begun: list[int] = []
    with Scripted() as scripted:
        asyncio.run(main())
        never.set()
        ended_threads()
    assert len(begun) == 3


def test_a_run_inside_of_one_that_was_ended_does_not_begin() -> None:
    """A plain program learns of its end when it asks for something."""
    at_work, ended = threading.Event(), threading.Event()
    told: list[BaseException] = []
    begun: list[str] = []

    @lmprog.function
    def inner(s: lmprog.Branch) -> None:
        begun.append("inner")

    @lmprog.function
    def outer(s: lmprog.Branch) -> None:
        s.append("x")
        s.gen().value
        at_work.set()
        ended.wait()
        try:
            inner.run()
        except Cancelled as error:
            told.append(error)

    with Scripted(["yes"]) as scripted:
        for _ in outer.using(backend=scripted).stream():
            at_work.wait()
            break
        ended.set()
        ended_threads()
    assert begun == []
    assert len(told) == 1


@pytest.mark.parametrize("how", ["the program fails", "a body fails"])
def test_bodies_of_a_fork_that_wait_for_a_thread_do_not_begin_once_it_has_failed(how: str) -> None:
    begun: list[int] = []
    both = threading.Barrier(33 if how == "the program fails" else 32)

    def body(branch: lmprog.Branch) -> str:
        begun.append(1)
        both.wait()
        if how == "a body fails":
            raise ValueError("mine")
        return branch.gen().value

    @lmprog.function
    def forking(s: lmprog.Branch) -> None:
        s.append("x")
        with s.fork(40) as branches:
            bodies = branches.each(body)
            if how == "the program fails":
                both.wait()
                raise ValueError("mine")
            bodies.value

    with Scripted(lambda prompt: Hold()) as scripted:
        with pytest.raises((ValueError, ExceptionGroup)):
            forking.using(backend=scripted).run()
        ended_threads()
        assert scripted.runtime.held() == []
    assert len(begun) == 32
