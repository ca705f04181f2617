"""Many runs of a program at once: in threads, or on one event loop.

Whatever leaves a batch early (Ctrl-C, a cancelled task, the first failure, an iterator of its runs
that is closed), one rule holds: nothing begins any more, what runs is cancelled and has a moment to
end, and the exception has the results.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

from lmprog.backends.client import running_loop
from lmprog.errors import Cancelled, InvalidParameter, ProgramError, not_allowed
from lmprog.lang.branches import scope as scopes
from lmprog.lang.branches.scope import RunSettings
from lmprog.lang.ops import threads
from lmprog.lang.runs.executor import Job, awaiting, execute, open_run
from lmprog.lang.runs.results import Run, carry, stop_runs

OnBatchError: TypeAlias = Literal["raise", "collect"]


class ProgramBatch:
    """Many runs with at most `concurrency` of them at a time, done once."""

    def __init__(
        self, jobs: Sequence[Job], settings: RunSettings, concurrency: int, on_error: OnBatchError
    ) -> None:
        if on_error not in ("raise", "collect"):
            raise not_allowed("on_error", on_error, "'raise' or 'collect'")
        if concurrency < 1:
            raise not_allowed("concurrency", concurrency, "at least 1")
        if settings.checkpoint is not None:
            message = "a checkpoint is of one run, and these are many; leave it out"
            raise InvalidParameter(message, name="checkpoint", allowed="None for many runs")
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


def _as_task(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(coroutine)


def in_order(batch: ProgramBatch, done: Future[None], *, raises: bool) -> Iterator[Run[Any]]:
    """The runs of a batch that is being `done`, each when it has ended. Who stops reading, or is
    interrupted, stops the batch.
    """
    runs = _in_order(batch, done, raises=raises)
    weakref.finalize(runs, batch.stop).atexit = False  # one that was never read, too
    return runs


def _in_order(batch: ProgramBatch, done: Future[None], *, raises: bool) -> Iterator[Run[Any]]:
    try:
        for run in batch.runs:
            threads.wait([run.outcome])  # to read the run would, interrupted, end that one first
            if run.outcome.exception() is not None and raises:
                break
            yield run
        threads.wait([done])
        done.result()  # raises the batch's first failure
    except BaseException as error:
        batch.stop()
        if not isinstance(error, GeneratorExit):
            carry(error, batch.runs)
        raise


@contextmanager
def progress_bar(size: int, name: str, *, shown: bool) -> Iterator[Callable[[], object]]:
    """What is to be called at the end of each run: it moves a progress bar, if wanted."""
    if not shown:
        yield lambda: None
        return
    from tqdm import tqdm

    with tqdm(total=size, desc=name) as bar:
        yield bar.update
