"""Compiling away from the loop: a constraint that is on its way, and the thread that makes
constraints.

The loop never waits for a compiler: it begins one, lets the branch wait as for any promise, and
collects what is finished between two steps. Who runs the work is an argument (`Submit`): a thread
in a process, nobody (`at_once`) in tests and in the simulation. Knows queues and threads; knows
neither patterns nor branches.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from lmprog.constraints.constraint import Constraint
from lmprog.errors import GrammarError, LmprogError

Submit = Callable[[Callable[[], None]], None]
"""Has a job run, now or later, here or on another thread. The job never raises."""

TURN = 0.003
"""Seconds that a step of others may take longer while something is compiled."""
STANDSTILL = 0.05
"""Seconds that the worker stands still at most, whatever the loop does: nothing may hang for
ever.
"""
_SWITCH = 0.0005
"""Seconds after which Python takes itself away from a thread that others wait behind."""
_LOOK_EVERY = 64


@dataclass(eq=False, slots=True)
class PendingConstraint:
    """A constraint that will be there, or the reason why there will be none. Only the loop's thread
    reads and writes this; a worker hands its result over through a queue."""

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


class CompilePool:
    """A thread that runs jobs in their order, in turns that the loop gives it.

    Python runs one thread at a time, and a thread that computes does not let go of it for
    milliseconds, again and again, at every tensor operation of the loop's. So the worker stands
    still while a step runs, at its next function call, and goes on in the `turn` after it. It is a
    daemon: nothing that a stranger's pattern keeps busy may hold up the end of the process. It is
    started with the first job.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._started = False
        self._may_run = threading.Event()
        self._may_run.set()
        self._all_done = threading.Event()

    def submit(self, job: Callable[[], None]) -> None:
        if not self._started:
            self._started = True
            sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH))
            threading.Thread(target=self._work, name="constraints", daemon=True).start()
        self._jobs.put(job)
        self._all_done.clear()

    def turn(self, busy: bool) -> None:
        """Lets the worker go on: for a moment where the loop is `busy`, else until the next turn
        ends.
        """
        self._may_run.set()
        if busy:
            self._all_done.wait(TURN)
            self._may_run.clear()

    def _work(self) -> None:
        sys.setprofile(self._pause)
        while True:
            job = self._jobs.get()
            job()
            if self._jobs.empty():
                self._all_done.set()

    def _pause(self, _frame: FrameType, _event: str, _argument: object) -> None:
        """Called by Python at every function call and return of the worker.

        It may hold a lock here that the loop waits for (the logging module's, say). A loop that
        gives no turn for `STANDSTILL` is either waiting so or in a long step: then the worker goes
        on.
        """
        if not self._may_run.is_set() and not self._may_run.wait(STANDSTILL):
            self._may_run.set()


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises GrammarError inside, once this thread has computed for so long; looked at in function
    calls.
    """
    outer = sys.getprofile()
    until = time.thread_time() + seconds
    count = itertools.count(1)

    def look(frame: FrameType, event: Any, argument: object) -> None:
        if outer is not None:
            outer(frame, event, argument)
        if next(count) % _LOOK_EVERY == 0 and time.thread_time() > until:
            raise GrammarError(
                f"compiling the constraint takes more than {seconds:g} s of processor time; make it smaller.",
                position=None,
            )

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(outer)
