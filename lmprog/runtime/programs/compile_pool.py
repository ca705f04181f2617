"""Compiles constraints in the background: pending constraints, and the thread that compiles them.

The loop never waits for a compiler: it submits a job, lets the branch wait as for any promise, and
collects finished constraints between two steps. How jobs run is an argument (`Submit`): in a thread
in the runtime process, at once in tests and in the simulation. Knows queues and threads; does not
know patterns.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Protocol

from lmprog.constraints.constraint import CompileTooLong, Constraint
from lmprog.errors import LmprogError
from lmprog.runtime.programs.branch import Awaited

Job = Callable[[], None]


class Submit(Protocol):
    """Runs a job, now or later, on this thread or another. The job never raises. Owners, the
    clients, take turns."""

    def __call__(self, job: Job, owner: Hashable = None) -> None: ...


TURN = 0.003
"""Seconds by which a step may take longer while something is compiled."""
STANDSTILL = 0.05
"""Seconds after which a paused worker goes on, whatever the loop does: nothing hangs for ever."""
_SWITCH_INTERVAL = 0.0005
"""Python's switch interval, in seconds, once something was compiled."""
_CALLS_PER_CHECK = 32


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


def at_once(job: Job, owner: Hashable = None) -> None:
    """Runs the job on this thread."""
    job()


class CompilePool:
    """A thread that runs jobs in turns that the loop gives it, one of each owner after the other.

    Python runs one thread at a time, and a computing thread would keep the loop waiting for the
    interpreter lock for milliseconds at every tensor operation. So jobs call `pause` again and
    again: there the worker waits while a step runs, and goes on in the `turn` after it. It is a
    daemon: a pattern that takes long must not delay the end of the process. It is started with the
    first job.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._jobs: OrderedDict[Hashable, deque[Job]] = OrderedDict()
        """By owner; the next one's turn comes first."""
        self._started = False
        self._may_run = threading.Event()
        self._may_run.set()
        self._all_done = threading.Event()

    def submit(self, job: Job, owner: Hashable = None) -> None:
        if not self._started:
            self._started = True
            sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_INTERVAL))
            threading.Thread(target=self._work, name="constraints", daemon=True).start()
        with self._lock:
            self._all_done.clear()
            self._jobs.setdefault(owner, deque()).append(job)
            self._lock.notify()

    def turn(self, busy: bool) -> None:
        """Lets the worker go on: for a moment where the loop is `busy`, else until the next turn
        ends.
        """
        self._may_run.set()
        if busy:
            self._all_done.wait(TURN)
            self._may_run.clear()

    def pause(self) -> None:
        """Called by jobs: waits while a step of the loop runs.

        The worker may hold a lock here that the loop needs (the logging module's, say). A loop that
        gives no turn for `STANDSTILL` either waits for it or is in a long step: then the worker
        goes on.
        """
        if not self._may_run.is_set() and not self._may_run.wait(STANDSTILL):
            self._may_run.set()

    def _work(self) -> None:
        while True:
            job = self._next()
            self.pause()
            job()
            with self._lock:
                if not self._jobs:
                    self._all_done.set()

    def _next(self) -> Job:
        """The next job of the owner who waited longest; that owner comes last then."""
        with self._lock:
            while not self._jobs:
                self._lock.wait()
            owner, jobs = self._jobs.popitem(last=False)
            job = jobs.popleft()
            if jobs:
                self._jobs[owner] = jobs
            return job


class TimeLimit:
    """Called again and again while a constraint is compiled: pauses where it has to, and raises
    CompileTooLong once this thread has computed for so many seconds."""

    def __init__(self, seconds: float, pause: Callable[[], None]) -> None:
        self._seconds = seconds
        self._until = time.thread_time() + seconds
        self._pause = pause
        self._calls = 0

    def __call__(self) -> None:
        self._calls += 1
        if self._calls % _CALLS_PER_CHECK != 1:
            return
        self._pause()
        if time.thread_time() > self._until:
            raise CompileTooLong(
                f"compiling the constraint takes more than {self._seconds:g} s of processor time; "
                "make it smaller.",
                position=None,
            )


def never_pause() -> None:
    """For jobs that run at once."""
