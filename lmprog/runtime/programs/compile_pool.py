"""Compiles constraints and stop patterns in the background: what is pending, and the threads.

The loop never waits for a compiler: it submits a job, lets the branch wait as for any promise, and
collects what is finished between two steps. How jobs run is an argument (`Submit`): in threads of
the runtime process, at once in tests and in the simulation. Knows queues and threads; does not
know patterns.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

from lmprog.constraints.constraint import CompileTooLong
from lmprog.errors import Cancelled, LmprogError
from lmprog.runtime.programs.branch import Awaited

log = logging.getLogger("lmprog")

Job = Callable[[], None]
Made = TypeVar("Made")


class Submit(Protocol):
    """Runs a job, now or later, on this thread or another. The job never raises. Owners, the
    clients, take turns."""

    def __call__(self, job: Job, owner: Hashable = None) -> None: ...


TURN = 0.003
"""Seconds by which a step may take longer while something is compiled."""
LONG_SHARE, LEAST_TURN = 0.2, 0.0005
"""What long jobs take of that: a part of the time between two turns, but so many seconds. Others
have streams, and there is always somebody who compiles."""
STANDSTILL = 0.05
"""Seconds after which a paused worker goes on, whatever the loop does: nothing hangs for ever."""
LONG_SECONDS, LONG_WAIT = 0.001, 0.25
"""A job that has computed, or has been under way, for so long makes room: others begin, and go
before it."""
MAX_LONG, MAX_THREADS = 2, 32
"""Of the long jobs so many go on at a time, those that have computed least, and so many have
begun."""
MOST_MASKS = 64
"""That wait for the thread that makes them."""
STEP_WORK = 400_000
"""What all masks of a step may take of the loop's thread, in steps of five to ten nanoseconds: 2 to
4 ms. Work is counted, so that what is made where does not depend on the clock."""
_SWITCH_INTERVAL = 0.0005
"""Python's switch interval, in seconds, once something was compiled."""
_CHECK_SECONDS = 0.0002


class Pending(Awaited, Generic[Made]):
    """What is being compiled, or the result of that.

    Only the loop's thread reads and writes this, but for `is_abandoned`; a worker hands its result
    over through a queue.
    """

    __slots__ = ("error", "is_abandoned", "made", "num_callers")

    def __init__(self, made: Made | None = None, error: LmprogError | None = None) -> None:
        super().__init__()
        self.made = made
        self.error = error
        self.num_callers = 0
        """Calls that wait for it. Without any it is abandoned: the worker begins it no more, and
        ends it soon where it has begun."""
        self.is_abandoned = False

    @property
    def is_known(self) -> bool:
        return self.made is not None or self.error is not None

    def result(self) -> Made:
        """Raises the error where compiling failed. Only once it is known."""
        if self.error is not None:
            raise self.error
        assert self.made is not None, "the result is not known yet"
        return self.made

    def let_go(self) -> None:
        """One of its callers has ended."""
        self.num_callers -= 1
        if self.num_callers <= 0 and not self.is_known:
            self.is_abandoned = True


def at_once(job: Job, owner: Hashable = None) -> None:
    """Runs the job on this thread."""
    job()


class _Worker:
    """A thread's job: since when it computes."""

    __slots__ = ("began", "began_computing", "level")

    def __init__(self) -> None:
        self.began, self.began_computing = time.monotonic(), time.thread_time()
        self.level = 0
        """Of long ones: those of a lower level go first. It rises as the job computes twice as
        long."""

    @property
    def is_late(self) -> bool:
        """Asked by any thread."""
        return time.monotonic() - self.began > LONG_WAIT

    def level_now(self) -> int:
        """Asked by its own thread; 0: it is not long."""
        level = int((time.thread_time() - self.began_computing) / LONG_SECONDS).bit_length()
        return max(level, int(self.is_late))


class CompilePool:
    """Threads that run jobs in turns that the loop gives them, one of each owner after the other.

    One thread does, until its job proves to be long: then the next job begins in another, and goes
    first, so that what is compiled quickly never waits for what takes long.

    Python runs one thread at a time, and a computing thread would keep the loop waiting for the
    interpreter lock for milliseconds at every tensor operation. So jobs call `pause` again and
    again: there a worker waits while a step runs, and goes on in the `turn` after it. Workers are
    daemons: a pattern that takes long must not delay the end of the process. They are started with
    the first jobs.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # one condition for each kind of waiter: a thread that wakes in vain takes the interpreter
        self._idle, self._paused, self._turn = (threading.Condition(self._lock) for _ in range(3))
        self._jobs: OrderedDict[Hashable, deque[Job]] = OrderedDict()
        """By owner; the next one's turn comes first."""
        self._num_idle = self._num_threads = 0
        self._is_refused = False
        """Whether the system had no thread for the next job; each turn asks again."""
        self._short: _Worker | None = None
        """Whose job is not long yet: the next one begins when there is none."""
        self._long: list[_Worker] = []
        """By level; the first `MAX_LONG` go on where none is short."""
        self._own = threading.local()
        self._may_run = {True: threading.Event(), False: threading.Event()}
        """Of short jobs, and of long ones, whose turn is after theirs: Python runs one thread at a
        time, and hands over only every `_SWITCH_INTERVAL`."""
        for event in self._may_run.values():
            event.set()
        self._turned = time.monotonic()

    def submit(self, job: Job, owner: Hashable = None) -> None:
        if not self._num_threads:
            sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_INTERVAL))
        with self._lock:
            self._jobs.setdefault(owner, deque()).append(job)
            if self._may_run[True].is_set():
                self._get_worker()

    def _get_worker(self) -> None:
        """A thread for the next job, if one may begin."""
        if not self._jobs or self._short is not None:
            return
        if self._num_idle:
            self._idle.notify()
        elif self._num_threads < MAX_THREADS:
            name = f"constraints-{self._num_threads + 1}"
            try:
                threading.Thread(target=self._work, name=name, daemon=True).start()
            except RuntimeError as error:
                if not self._is_refused:
                    log.warning("constraints wait, the system has no thread for them: %s", error)
                self._is_refused = True
            else:
                self._num_threads += 1
                self._is_refused = False

    def turn(self, busy: bool) -> None:
        """Lets the workers go on: for a moment where the loop is `busy`, else until the next turn
        ends. What is compiled quickly is done in that moment, so that its call is in the next step.
        """
        short = self._short
        if short is not None and short.is_late:  # perhaps in one call that does not come to pause
            self._make_room(short)
        began = time.monotonic()
        self._may_run[True].set()
        with self._lock:
            self._get_worker()
        if busy:
            share = min(TURN, LONG_SHARE * (began - self._turned))
            with self._lock:
                if self._turn.wait_for(self._are_short_done, TURN) and self._long:
                    self._may_run[False].set()
                    left = max(LEAST_TURN, began + share - time.monotonic())
                    self._turn.wait_for(lambda: self._are_short_done() and not self._long, left)
            for event in self._may_run.values():
                event.clear()
        else:
            self._may_run[False].set()
        self._turned = time.monotonic()

    def _are_short_done(self) -> bool:
        return self._short is None and not self._jobs

    def pause(self) -> None:
        """Called by jobs: waits while a step of the loop runs, and a long job for others' turns.

        The worker may hold a lock here that the loop needs (the logging module's, say). A loop that
        gives no turn for `STANDSTILL` either waits for it or is in a long step: then the worker
        goes on.
        """
        worker: _Worker | None = getattr(self._own, "worker", None)
        if worker is not None:
            level = worker.level_now()
            if level > worker.level:
                self._make_room(worker, level)
            if worker is not self._short and not self._may_go_on(worker):
                with self._lock:
                    self._paused.wait_for(lambda: self._may_go_on(worker), STANDSTILL)
        may_run = self._may_run[worker is None or worker is self._short]
        if not may_run.is_set() and not may_run.wait(STANDSTILL):
            may_run.set()

    def _may_go_on(self, worker: _Worker) -> bool:
        """Whether a long job may: where no short one is under way."""
        return self._short is None and worker in self._long[:MAX_LONG]

    def _make_room(self, worker: _Worker, level: int = 1) -> None:
        """For others, of a lower level."""
        with self._lock:
            worker.level = max(level, worker.level)
            if worker is self._short:
                self._short = None
                self._long.append(worker)
                self._get_worker()
            self._long.sort(key=attrgetter("level"))
            self._paused.notify_all()
            self._turn.notify()

    def _work(self) -> None:
        while True:
            job = self._next()
            self.pause()
            job()
            self._end(self._own.worker)

    def _next(self) -> Job:
        """The next job of the owner who waited longest; that owner comes last then."""
        with self._lock:
            self._num_idle += 1
            self._idle.wait_for(lambda: self._jobs and self._short is None)
            self._num_idle -= 1
            self._short = self._own.worker = _Worker()
            owner, jobs = self._jobs.popitem(last=False)
            job = jobs.popleft()
            if jobs:
                self._jobs[owner] = jobs
            return job

    def _end(self, worker: _Worker) -> None:
        with self._lock:
            if worker is self._short:
                self._short = None
            else:
                self._long.remove(worker)
            if not self._jobs:
                self._paused.notify_all()
                self._turn.notify()


class MaskThread:
    """Makes the masks that take too long for a step, in the order in which they are asked for. They
    are made in native code, without the interpreter's lock. Starts with the first one.
    """

    def __init__(self, most_waiting: int = MOST_MASKS) -> None:
        self.left = STEP_WORK
        self._jobs: queue.Queue[Job] = queue.Queue(most_waiting)
        self._is_started = False

    def turn(self) -> None:
        """Another step of the loop begins."""
        self.left = STEP_WORK

    def begin(self, job: Job) -> bool:
        if not self._is_started:
            try:
                threading.Thread(target=self._work, name="masks", daemon=True).start()
            except RuntimeError as error:
                log.warning("masks wait, the system has no thread for them: %s", error)
                return False
            self._is_started = True
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            return False
        return True

    def _work(self) -> None:
        while True:
            self._jobs.get()()


class TimeLimit:
    """Called again and again while something is compiled: pauses where it has to, and raises
    CompileTooLong once this thread has computed for so many seconds, Cancelled once nobody waits
    for `pending` any more."""

    def __init__(
        self,
        seconds: float,
        pause: Callable[[], None],
        pending: Pending[Made] | None = None,
    ) -> None:
        self._seconds = seconds
        self._pause = pause
        self._pending = pending
        self._next = 0.0
        self.begin()

    def begin(self) -> None:
        """All of the time is left."""
        self._until = time.thread_time() + self._seconds

    def __call__(self) -> None:
        if time.perf_counter() < self._next:
            return
        self._pause()
        self._next = time.perf_counter() + _CHECK_SECONDS
        if self._pending is not None and self._pending.is_abandoned:
            raise Cancelled("nobody waits for this constraint any more.")
        if time.thread_time() > self._until:
            raise CompileTooLong(
                f"compiling the constraint takes more than {self._seconds:g} s of processor time; "
                "make it smaller.",
                position=None,
            )


def never_pause() -> None:
    """For jobs that run at once."""
