"""Many runs of a program at once, in threads or on one event loop: all of them, which are kept, or
as they come, of which only those under way are.

Whatever leaves a batch early (Ctrl-C, a cancelled task, the first failure, an iterator of its runs
that is closed), one rule holds: nothing begins any more, what runs is cancelled and has a moment to
end, and the exception has the results.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from lmprog.backends.client import running_loop
from lmprog.errors import Cancelled, InvalidParameter, ProgramError, not_allowed
from lmprog.lang.branches import scope as scopes
from lmprog.lang.branches.scope import RunSettings
from lmprog.lang.ops import threads
from lmprog.lang.runs.executor import (
    Job,
    awaiting,
    backend_ready,
    execute,
    execute_async,
    open_run,
)
from lmprog.lang.runs.results import Run, carry, stop_runs

R = TypeVar("R")
T = TypeVar("T")
OnBatchError: TypeAlias = Literal["raise", "collect"]


class ProgramBatch:
    """Many runs with at most `concurrency` of them at a time, done once."""

    def __init__(
        self, jobs: Sequence[Job], settings: RunSettings, concurrency: int, on_error: OnBatchError
    ) -> None:
        _check_batch(settings, concurrency, on_error)
        self._jobs = jobs
        self._concurrency = min(concurrency, max(len(jobs), 1))
        self._raises = on_error == "raise"
        self._lock = threading.Lock()  # guards the two below
        self._num_begun = 0
        self._is_stopped = False
        self._telling = threading.Lock()
        self.runs = [open_run(settings) for _ in jobs]

    def perform(self, step: Callable[[], object]) -> None:
        """Does them all; `step` is told of each end. Raises the first failure, unless errors are
        collected: then what failed is in the runs.
        """
        if not self._jobs:
            return
        is_async, is_on_loop = self._jobs[0].is_async, running_loop() is not None
        if is_async and is_on_loop and scopes.current.get() is not None:
            raise ProgramError(
                "inside an async program, write `await program.amap(...)` instead of "
                "`program.map(...)`"
            )
        with self._telling_what_is_done():
            if not is_async:
                self._in_threads(step)
            elif is_on_loop:
                self._beside_the_loop(step)
            else:
                asyncio.run(self._on_loop(step))

    async def perform_async(self, step: Callable[[], object]) -> None:
        """The same without blocking this event loop. Being cancelled ends all runs."""
        with self._telling_what_is_done():
            if self._jobs:
                await self._on_loop(step)

    def stop(self) -> None:
        """Starts no more runs, cancels those under way, and gives them a moment to end."""
        with self._lock:
            self._is_stopped = True
            num_begun = self._num_begun
        stop_runs(self.runs[:num_begun], "the batch was stopped before this run had ended")
        for run in self.runs[num_begun:]:
            run.fail(Cancelled("the batch was stopped before this run began"))
            run.scope.over()

    @contextmanager
    def _telling_what_is_done(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.stop()
            carry(error, self.runs)
            raise

    def _next_up(self) -> int | None:
        with self._lock:
            if self._is_stopped or self._num_begun == len(self._jobs):
                return None
            self._num_begun += 1
            return self._num_begun - 1

    def _ended(self, index: int, step: Callable[[], object]) -> None:
        """Raises the first failure of the batch."""
        with self._telling:
            step()
        failure = self.runs[index].failure
        if failure is None or not self._raises:
            return
        with self._lock:
            was_stopped, self._is_stopped = self._is_stopped, True
        if not was_stopped:
            failure.add_note(f"raised by item {index} of {len(self._jobs)}")
            raise failure

    def _beside_the_loop(self, step: Callable[[], object]) -> None:
        """For notebooks, whose event loop is busy with the current cell: runs on a loop in a
        thread.
        """
        done = threads.start("lmprog-batch", asyncio.run, self._on_loop(step))
        threads.wait([done])
        done.result()

    async def _on_loop(self, step: Callable[[], object]) -> None:
        async def worker() -> None:
            while (index := self._next_up()) is not None:
                await awaiting(self._jobs[index], self.runs[index])
                self._ended(index, step)

        tasks = [_as_task(worker()) for _ in range(self._concurrency)]
        try:
            await asyncio.gather(*tasks)
        finally:
            with self._lock:
                self._is_stopped = True  # also for a program that is cancelled and goes on
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _in_threads(self, step: Callable[[], object]) -> None:
        def worker() -> None:
            while (index := self._next_up()) is not None:
                execute(self._jobs[index], self.runs[index])
                self._ended(index, step)

        workers = threads.start_all("lmprog-batch", [worker] * self._concurrency, self._concurrency)
        threads.wait(workers, FIRST_EXCEPTION)
        for ended in workers:
            if ended.done():
                ended.result()


def _check_batch(settings: RunSettings, concurrency: int, on_error: OnBatchError) -> None:
    if on_error not in ("raise", "collect"):
        raise not_allowed("on_error", on_error, "'raise' or 'collect'")
    if concurrency < 1:
        raise not_allowed("concurrency", concurrency, "at least 1")
    if settings.checkpoint is not None:
        message = "a checkpoint is of one run, and these are many; leave it out"
        raise InvalidParameter(message, name="checkpoint", allowed="None for many runs")


def _as_task(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(coroutine)


class RunsAsTheyCome(Generic[T, R]):
    """Runs of as many items as there are, each given out, and forgotten, when it has ended. At most
    `concurrency` of them go on, and twice as many are kept, with those that nobody has read yet.
    """

    def __init__(
        self,
        jobs: Iterator[tuple[T, Job]],
        settings: RunSettings,
        concurrency: int,
        on_error: OnBatchError,
        bar: AbstractContextManager[Callable[[], object]],
        *,
        ordered: bool = True,
    ) -> None:
        _check_batch(settings, concurrency, on_error)
        self._jobs = jobs
        self._settings = settings
        self._concurrency = concurrency
        self._raises = on_error == "raise"
        self._bar = bar
        self._ordered = ordered
        self._num_drawn = 0
        self._num_given = 0
        self._kept: dict[int, tuple[T, Run[R]]] = {}
        self._unread: dict[int, None] = {}  # those that have ended, in that order
        self._ended: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._loop: _LoopThread | None = None

    def __iter__(self) -> Iterator[tuple[T, Run[R]]]:
        pairs = self._pairs()
        weakref.finalize(pairs, self.stop).atexit = False
        return pairs

    def runs(self) -> Iterator[Run[R]]:
        """Without the items. They begin now; a reader that is closed or dropped ends them."""
        self._fill()
        runs = self._only_runs()
        weakref.finalize(runs, self.stop).atexit = False  # one that was never read, too
        return runs

    def _only_runs(self) -> Iterator[Run[R]]:
        for _, run in self._pairs():
            yield run
            del run

    def _pairs(self) -> Iterator[tuple[T, Run[R]]]:
        try:
            with self._bar as step:
                self._fill()
                while self._kept:
                    while (given := self._next()) is None:
                        self._note(threads.take(self._ended), step)
                        self._fill()  # the one that is read next may take long
                    self._fill()  # the reader may need some time
                    yield given
                    del given
        except BaseException as error:
            self._leave(error)
            raise
        finally:
            if self._loop is not None:
                self._loop.end()

    async def __aiter__(self) -> AsyncIterator[tuple[T, Run[R]]]:
        await backend_ready(self._settings)
        ended: asyncio.Queue[int] = asyncio.Queue()
        tasks: dict[int, asyncio.Task[None]] = {}

        def begin(index: int, job: Job, run: Run[R]) -> None:
            tasks[index] = task = _as_task(awaiting(job, run))
            task.add_done_callback(lambda _: ended.put_nowait(index))

        try:
            with self._bar as step:
                self._draw(begin)
                while self._kept:
                    while (given := self._next()) is None:
                        index = await ended.get()
                        del tasks[index]
                        self._note(index, step)
                        self._draw(begin)
                    self._draw(begin)
                    yield given
                    del given
        except BaseException as error:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
            self._leave(error)
            raise

    def stop(self) -> None:
        """Draws no more, cancels what goes on, and gives that a moment to end."""
        self._jobs = iter(())
        runs = [run for _, run in self._kept.values()]
        stop_runs(runs, "the batch was stopped before this run had ended")

    def _leave(self, error: BaseException) -> None:
        self.stop()
        if not isinstance(error, GeneratorExit):
            carry(error, [run for _, run in self._kept.values()])

    def _fill(self) -> None:
        """Begins as many runs as there is room for, in threads."""
        self._draw(self._begin)

    def _draw(self, begin: Callable[[int, Job, Run[R]], None]) -> None:
        while self._has_room() and (drawn := next(self._jobs, None)) is not None:
            item, job = drawn
            index, run = self._num_drawn, open_run(self._settings)
            self._num_drawn += 1
            self._kept[index] = item, run
            begin(index, job, run)

    def _has_room(self) -> bool:
        """In the items' order, one that takes long keeps others from being read."""
        num_kept, num_unread = len(self._kept), len(self._unread)
        return num_kept - num_unread < self._concurrency and num_kept < 2 * self._concurrency

    def _begin(self, index: int, job: Job, run: Run[R]) -> None:
        run.outcome.add_done_callback(lambda _: self._ended.put(index))
        if not job.is_async:
            threads.start("lmprog-batch", execute, job, run)
            return
        if running_loop() is not None and scopes.current.get() is not None:
            raise ProgramError("inside an async program, write `async for` instead of `for`")
        if self._loop is None:
            self._loop = _LoopThread()
        self._loop.begin(execute_async(job, run))

    def _note(self, index: int, step: Callable[[], object]) -> None:
        """A run has ended. Raises why it failed, unless errors are collected."""
        step()
        self._unread[index] = None
        failure = self._kept[index][1].failure
        if failure is not None and (self._raises or not isinstance(failure, Exception)):
            failure.add_note(f"raised by item {index}")
            raise failure

    def _next(self) -> tuple[T, Run[R]] | None:
        """What is to be given out now."""
        index = self._num_given if self._ordered else next(iter(self._unread), None)
        if index is None or index not in self._unread:
            return None
        del self._unread[index]
        self._num_given += 1
        return self._kept.pop(index)


class _LoopThread:
    """An event loop in a thread, for coroutines that are begun from another one."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        threads.start("lmprog-batch", self._run)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._wait())

    async def _wait(self) -> None:
        await self._over.wait()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop)

    def end(self) -> None:
        """What goes on there is cancelled."""
        with suppress(RuntimeError):  # an interrupt in a program has ended it
            self._loop.call_soon_threadsafe(self._over.set)


@contextmanager
def progress_bar(size: int | None, name: str, *, shown: bool) -> Iterator[Callable[[], object]]:
    """What is to be called at the end of each run: it moves a progress bar, if wanted."""
    if not shown:
        yield lambda: None
        return
    from tqdm import tqdm

    with tqdm(total=size, desc=name) as bar:
        yield bar.update
