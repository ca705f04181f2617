"""Which of the compiles that are under way go on: those that have computed least; and when."""

from __future__ import annotations

import threading
import time

import pytest

from lmprog.runtime.programs import compile_pool
from lmprog.runtime.programs.call_constraints import CallConstraints
from lmprog.runtime.programs.compile_pool import CompilePool
from tests.constrained.test_compiling import Later, Slow, text_of
from tests.constrained.writer import byte_tokenizer


def test_of_long_compiles_those_go_on_that_have_computed_least(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compile_pool, "STANDSTILL", 60.0)  # nobody goes on by that
    pool, begun, may_end = CompilePool(), threading.Semaphore(0), threading.Event()
    ended, is_over = list[str](), threading.Event()

    def longest() -> None:
        begun.release()
        while not may_end.is_set():
            pool.pause()
        ended.append("longest")

    def long() -> None:
        until = time.thread_time() + 8 * compile_pool.LONG_SECONDS
        while time.thread_time() < until:
            pool.pause()
        ended.append("long")
        is_over.set()

    for _ in range(compile_pool.MAX_LONG + 1):
        pool.submit(longest, "greedy")
    for _ in range(compile_pool.MAX_LONG + 1):
        assert begun.acquire(timeout=60)
    pool.submit(long, "modest")
    assert is_over.wait(60)
    assert ended == ["long"]
    may_end.set()


def test_a_long_compile_stands_still_while_a_short_one_has_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compile_pool, "STANDSTILL", 60.0)
    monkeypatch.setattr(compile_pool, "TURN", 60.0)
    monkeypatch.setattr(compile_pool, "LONG_SHARE", 0.0)
    pool, paused, may_end = CompilePool(), threading.Semaphore(0), threading.Event()
    num_paused, seen = 0, list[int]()
    is_over = threading.Event()

    def long() -> None:
        nonlocal num_paused
        while not may_end.is_set():
            num_paused += 1
            paused.release()
            pool.pause()
        is_over.set()

    def short() -> None:
        seen.append(num_paused)
        for _ in range(1000):
            time.sleep(0)  # whoever may run does
        seen.append(num_paused)

    pool.submit(long, "greedy")
    for _ in range(3):
        assert paused.acquire(timeout=60)
    while pool._short is not None:
        time.sleep(0.001)
    pool.turn(busy=True)  # the long one stands still from here on
    pool.submit(short, "modest")
    pool.turn(busy=True)
    assert len(seen) == 2
    assert seen[0] == seen[1]
    may_end.set()
    pool.turn(busy=False)
    assert is_over.wait(60)


def test_what_is_compiled_quickly_is_there_for_the_step_that_follows_its_request() -> None:
    class InTheirTurn(Later):
        def turn(self, busy: bool) -> None:
            while self.jobs:
                self.jobs.pop(0)()

    slow = Slow(CallConstraints(byte_tokenizer(), workers=InTheirTurn()))
    slow.gen(1, "[ab]{3}")
    slow.writer.loop.step()
    assert slow.writer.scheduler.stats.steps == 1
    assert len(text_of(slow.replies()[1])) == 3
