"""The threads in which users' functions run."""

from __future__ import annotations

import contextvars
import os
import threading
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION

import pytest

from lmprog.lang.ops import threads

who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


def test_a_function_has_the_context_of_who_starts_it_and_leaves_none_behind() -> None:
    def look() -> str:
        found = who.get()
        who.set("changed")
        return found

    who.set("starter")
    assert [threads.start("test", look).result() for _ in range(3)] == ["starter"] * 3
    assert who.get() == "starter"


def test_no_more_run_at_once_than_asked_for_and_none_is_left_out() -> None:
    lock, running, most = threading.Lock(), 0, 0

    def count(index: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        with lock:
            running -= 1
        return index

    started = threads.start_all("test", [lambda i=i: count(i) for i in range(200)], 3)  # type: ignore[misc]
    assert [one.result() for one in started] == list(range(200))
    assert most <= 3


def test_as_many_run_at_once_as_asked_for_where_they_wait_for_each_other() -> None:
    barrier = threading.Barrier(5)
    started = threads.start_all("test", [barrier.wait] * 10, 5)
    threads.wait(started)
    assert all(one.exception() is None for one in started)


def test_threads_are_used_again_and_are_daemons() -> None:
    first = threads.start("test", threading.current_thread).result()
    assert first.daemon
    seen = {threads.start("test", threading.get_ident).result() for _ in range(50)}
    assert len(seen) < 50


def test_one_that_has_not_begun_is_cancelled() -> None:
    go, at_work = threading.Event(), threading.Event()

    def body() -> bool:
        at_work.set()
        return go.wait()

    first, second = threads.start_all("test", [body, body], 1)
    at_work.wait()
    threads.cancel([first, second])
    threads.wait([first, second], FIRST_COMPLETED)
    assert (first.done(), second.cancelled()) == (False, True)
    go.set()
    threads.wait([first, second])
    assert first.result() is True


def test_all_or_none_drops_what_has_not_begun_once_one_fails() -> None:
    def fail() -> None:
        raise ValueError("mine")

    started = threads.start_all("test", [fail] * 5, 1, all_or_none=True)
    threads.wait(started, FIRST_EXCEPTION)
    threads.wait(started)
    assert [one.cancelled() for one in started] == [False, True, True, True, True]
    with pytest.raises(ValueError, match="mine"):
        started[0].result()


def test_nothing_to_wait_for_is_over_at_once() -> None:
    threads.wait([])
    assert threads.start_all("test", [], 4) == []


@pytest.mark.filterwarnings("ignore:This process")  # has threads, which is the point
def test_a_forked_process_has_threads_of_its_own() -> None:
    threads.start("test", int).result()
    child = os.fork()
    if not child:
        os._exit(threads.start("test", lambda: 7).result())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
