"""Compiling away from the loop: a constraint that is on its way, and the threads that make constraints.

The loop never waits for a compiler: it begins one, lets the branch wait as for any promise, and collects what is
finished between two steps. Who runs the work is an argument (`Submit`): threads in a process, nobody (`at_once`) in
tests and in the simulation. Knows queues and threads; knows neither patterns nor branches.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lmprog.errors import LmprogError
from lmprog.runtime.fsm.constraint import Constraint

Submit = Callable[[Callable[[], None]], None]
"""Has a job run, now or later, here or on another thread. The job never raises."""


@dataclass(eq=False, slots=True)
class Compiling:
    """A constraint that will be there, or the reason why there will be none. Only the loop's thread reads and writes
    this; a worker hands its result over through a queue."""

    constraint: Constraint | None = None
    error: LmprogError | None = None
    waiting: list[Any] = field(default_factory=list)
    """Whatever the one who waits wants to be told when it is known."""

    @property
    def known(self) -> bool:
        return self.constraint is not None or self.error is not None

    def result(self) -> Constraint:
        """Raises the error, if that is what came of it."""
        if self.error is not None:
            raise self.error
        assert self.constraint is not None, "nobody asks before it is known"
        return self.constraint


def at_once(job: Callable[[], None]) -> None:
    """Runs the job here and now."""
    job()


class Workers:
    """A few threads that run jobs in their order. They are daemons: nothing that a stranger's pattern keeps busy may
    hold up the end of the process. Threads are started with the first job."""

    def __init__(self, count: int = 2) -> None:
        self._count = count
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._started = False

    def submit(self, job: Callable[[], None]) -> None:
        if not self._started:
            self._started = True
            for number in range(self._count):
                threading.Thread(target=self._work, name=f"constraints-{number}", daemon=True).start()
        self._jobs.put(job)

    def _work(self) -> None:
        while True:
            self._jobs.get()()
