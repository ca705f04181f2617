"""A thousand programs with forks on one loop and one real runtime: some are cancelled, some fail,
nothing is left.
"""

from __future__ import annotations

import asyncio
import threading
import time
import traceback

import lmprog
from lmprog.backends.client import RuntimeBackend
from lmprog.errors import ContextOverflow
from lmprog.launch import greet
from tests.lang.small_runtime import Real

NUM_PROGRAMS = 1000
NUM_STAGES = 4


def kind_of(index: int) -> str:
    if index % 10 == 3:
        return "cancelled"
    if index % 40 == 7:
        return "raises"
    return "too long" if index % 40 == 27 else "well"


class Stages:
    """How far each program has come: cancelling waits for it."""

    def __init__(self) -> None:
        self.reached = [[asyncio.Event() for _ in range(NUM_STAGES)] for _ in range(NUM_PROGRAMS)]

    async def cancel(self, index: int, task: asyncio.Task[object]) -> None:
        """At a stage that depends on the program, at the latest in its last call, which is long."""
        await self.reached[index][index // 10 % NUM_STAGES].wait()
        task.cancel()


@lmprog.function
async def program(s: lmprog.Branch, index: int, stages: Stages) -> list[str]:
    kind, reached = kind_of(index), stages.reached[index]
    reached[0].set()
    s.append(f"The same beginning of all programs, then number {index % 50}: ")
    first = s.gen(max_tokens=3)
    reached[1].set()
    s.append(f"{await first} and ")
    reached[2].set()
    async with s.fork(2) as branches:
        branches[1].append("other ")
        if kind == "raises":
            await branches[0].gen(max_tokens=2)
            raise ValueError(f"mine {index}")
        if kind == "too long":
            await branches[1].gen(max_tokens=100_000)
        gens = [b.gen(max_tokens=400 if kind == "cancelled" else 3) for b in branches]
        reached[3].set()
        return [await gen for gen in gens]


async def run_all(backend: RuntimeBackend) -> list[object]:
    stages = Stages()
    on = program.using(backend=backend, ignore_eos=True, temperature=1.0)
    tasks = [asyncio.ensure_future(on.arun(index, stages)) for index in range(NUM_PROGRAMS)]
    chosen = [(at, task) for at, task in enumerate(tasks) if kind_of(at) == "cancelled"]
    await asyncio.gather(*(stages.cancel(at, task) for at, task in chosen))
    outcomes: list[object] = await asyncio.gather(*tasks, return_exceptions=True)
    assert asyncio.all_tasks() == {asyncio.current_task()}, "no task is left"
    return outcomes


def own_line(error: BaseException) -> str:
    """The innermost line of the program's own in the traceback."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if frame.name == "program"
    ]
    return (frames[-1].line or "") if frames else ""


def check(index: int, outcome: object) -> None:
    kind = kind_of(index)
    if kind == "well":
        assert isinstance(outcome, lmprog.Run), outcome
        assert len(outcome.value) == 2
    elif kind == "cancelled":
        assert isinstance(outcome, asyncio.CancelledError), outcome
    elif kind == "raises":
        assert isinstance(outcome, ValueError), outcome
        assert str(outcome) == f"mine {index}"
        assert own_line(outcome).startswith("raise ValueError")
    else:
        assert isinstance(outcome, ContextOverflow), outcome
        assert "max_tokens=100_000" in own_line(outcome)


def other_threads() -> int:
    """All but the runtime's own, which asks for memory as long as the runtime is there."""
    return sum(not one.name.startswith("kv-memory") for one in threading.enumerate())


def test_every_program_has_its_own_end_and_nothing_is_left(real: Real) -> None:
    threads = other_threads()
    with RuntimeBackend(greet(real.channel.connect())) as backend:
        outcomes = asyncio.run(run_all(backend))
        for index, outcome in enumerate(outcomes):
            check(index, outcome)
        interpreter = real.loop.interpreter
        deadline = time.monotonic() + 120
        while any(client.branches or client.calls for client in interpreter.clients.values()):
            assert time.monotonic() < deadline, "branches or calls are left"
            time.sleep(0.01)
        assert not backend.client._calls, "nobody waits for a reply any more"
    scheduler = interpreter.scheduler
    while interpreter.clients:
        assert time.monotonic() < deadline, "the client is still known"
        time.sleep(0.01)
    assert scheduler.idle
    assert scheduler.tree.num_pinned == 0
    assert scheduler.pages.num_free + scheduler.tree.num_evictable == scheduler.pages.num_pages
    assert other_threads() <= threads
