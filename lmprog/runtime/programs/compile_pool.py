"""Compiles constraints in the background: pending constraints, and the thread that compiles them.

The loop never waits for a compiler: it submits a job, lets the branch wait as for any promise, and
collects finished constraints between two steps. How jobs run is an argument (`Submit`): in a thread
in the runtime process, at once in tests and in the simulation. Knows queues and threads; does not
know patterns.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from lmprog.constraints.constraint import Constraint
from lmprog.errors import GrammarError, LmprogError
from lmprog.runtime.programs.branch import Awaited

Submit = Callable[[Callable[[], None]], None]
"""Runs a job, now or later, on this thread or another. The job never raises."""

TURN = 0.003
"""Seconds by which a step may take longer while something is compiled."""
STANDSTILL = 0.05
"""Seconds after which a paused worker goes on, whatever the loop does: nothing hangs for ever."""
_SWITCH_INTERVAL = 0.0005
"""Python's switch interval, in seconds, once something was compiled."""
_CALLS_PER_CHECK = 64


class PendingConstraint(Awaited):
    """A constraint that is being compiled, or the result of that.

    Only the loop's thread reads and writes this; a worker hands its result over through a queue.
    """

    __slots__ = ("constraint", "error")

    def __init__(
        self, constraint: Constraint | None = None, error: LmprogError | None = None
    ) -> None:
        super().__init__()
        self.constraint = constraint
        self.error = error

    @property
    def is_known(self) -> bool:
        return self.constraint is not None or self.error is not None

    def result(self) -> Constraint:
        """Raises the error where compiling failed. Only once it is known."""
        if self.error is not None:
            raise self.error
        assert self.constraint is not None, "the result is not known yet"
        return self.constraint


def at_once(job: Callable[[], None]) -> None:
    """Runs the job on this thread."""
    job()


class CompilePool:
    """A thread that runs jobs in their order, in turns that the loop gives it.

    Python runs one thread at a time, and a computing thread would keep the loop waiting for the
    interpreter lock for milliseconds at every tensor operation. So the worker pauses at its next
    function call while a step runs, and goes on in the `turn` after it. It is a daemon: a pattern
    that takes long must not delay the end of the process. It is started with the first job.
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
            sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_INTERVAL))
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

        The worker may hold a lock here that the loop needs (the logging module's, say). A loop that
        gives no turn for `STANDSTILL` either waits for it or is in a long step: then the worker
        goes on.
        """
        if not self._may_run.is_set() and not self._may_run.wait(STANDSTILL):
            self._may_run.set()


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises GrammarError inside once this thread has computed for so long.

    That is checked at function calls.
    """
    outer = sys.getprofile()
    until = time.thread_time() + seconds
    count = itertools.count(1)

    def check(frame: FrameType, event: Any, argument: object) -> None:
        if outer is not None:
            outer(frame, event, argument)
        if next(count) % _CALLS_PER_CHECK == 0 and time.thread_time() > until:
            raise GrammarError(
                f"compiling the constraint takes more than {seconds:g} s of processor time; "
                "make it smaller.",
                position=None,
            )

    sys.setprofile(check)
    try:
        yield
    finally:
        sys.setprofile(outer)
