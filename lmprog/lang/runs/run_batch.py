"""Many runs of a program at once: in threads, or on one event loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias, TypeVar

from lmprog.backends.client import running_loop
from lmprog.errors import Cancelled, InvalidParameter, ProgramError
from lmprog.lang.branches import scope as scopes
from lmprog.lang.runs.executor import Job, RunSettings, awaiting, execute, open_run
from lmprog.lang.runs.results import Run

R = TypeVar("R")
OnBatchError: TypeAlias = Literal["raise", "collect"]


class ProgramBatch:
    """Many runs with at most `concurrency` of them at a time, done once."""

    def __init__(
        self, jobs: Sequence[Job], settings: RunSettings, concurrency: int, on_error: OnBatchError
    ) -> None:
        if on_error not in ("raise", "collect"):
            allowed = "'raise' or 'collect'"
            message = f"on_error={on_error!r} is not allowed; give {allowed}"
            raise InvalidParameter(message, name="on_error", value=on_error, allowed=allowed)
        if concurrency < 1:
            message = f"concurrency={concurrency} is not allowed; give at least 1"
            raise InvalidParameter(message, name="concurrency", value=concurrency, allowed="1 <= x")
        if settings.checkpoint is not None:
            message = "a checkpoint is of one run, and these are many; leave it out"
            raise InvalidParameter(message, name="checkpoint", allowed="None for many runs")
        self._jobs = jobs
        self._concurrency = min(concurrency, max(len(jobs), 1))
        self._stops = on_error == "raise"
        self.failed: BaseException | None = None
        self.runs = [open_run(settings) for _ in jobs]

    def perform(self, step: Callable[[], object]) -> None:
        """Does them all; `step` is told of each end. What failed is in the runs, and the first one
        in `failed`.

        After a failure, unless errors are collected, the others are cancelled.
        """
        if self._jobs and self._jobs[0].is_async:
            if running_loop() is None:
                asyncio.run(self._on_loop(step))
            elif scopes.current.get() is None:
                self._beside_the_loop(step)
            else:
                raise ProgramError(
                    "inside an async program, write `await program.amap(...)` instead of "
                    "`program.map(...)`"
                )
        elif self._jobs:
            self._in_threads(step)
        self._end_unbegun()

    async def perform_async(self, step: Callable[[], object]) -> None:
        """The same without blocking this event loop. Being cancelled ends all runs."""
        if self._jobs:
            await self._on_loop(step)
        self._end_unbegun()

    def _end_unbegun(self) -> None:
        for run in self.runs:
            if not run.outcome.done():
                run.outcome.set_exception(
                    Cancelled("another run of the batch failed before this one began")
                )

    def _beside_the_loop(self, step: Callable[[], object]) -> None:
        """In a notebook, whose loop is busy with this very cell: on a loop in a thread."""
        with ThreadPoolExecutor(1, thread_name_prefix="lmprog-batch") as pool:
            context = contextvars.copy_context()
            pool.submit(context.run, asyncio.run, self._on_loop(step)).result()

    def _next_up(self, todo: Iterator[int]) -> int | None:
        return None if self.failed is not None else next(todo, None)

    def _ended(self, index: int, step: Callable[[], object]) -> None:
        step()
        failure = self.runs[index].failure
        if failure is not None and self._stops and self.failed is None:
            failure.add_note(f"raised by item {index} of {len(self._jobs)}")
            self.failed = failure
            for run in self.runs:
                if not run.outcome.done():
                    run.scope.cancel()

    async def _on_loop(self, step: Callable[[], object]) -> None:
        todo = iter(range(len(self._jobs)))

        async def worker() -> None:
            while (index := self._next_up(todo)) is not None:
                await awaiting(self._jobs[index], self.runs[index])
                self._ended(index, step)

        tasks = [_as_task(worker()) for _ in range(self._concurrency)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _in_threads(self, step: Callable[[], object]) -> None:
        todo = iter(range(len(self._jobs)))
        lock = threading.Lock()

        def worker() -> None:
            while True:
                with lock:
                    index = self._next_up(todo)
                if index is None:
                    return
                execute(self._jobs[index], self.runs[index])
                with lock:
                    self._ended(index, step)

        with ThreadPoolExecutor(self._concurrency, thread_name_prefix="lmprog-batch") as pool:
            workers = [
                pool.submit(contextvars.copy_context().run, worker)
                for _ in range(self._concurrency)
            ]
        for done in workers:
            done.result()


def _as_task(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(coroutine)


def runs_of(batch: ProgramBatch) -> list[Run[Any]]:
    """The runs of a batch that was done. Raises the first failure, unless they are collected."""
    if batch.failed is not None:
        raise batch.failed
    return batch.runs


def in_order(runs: Sequence[Run[R]], *, raises: bool) -> Iterator[Run[R]]:
    """The runs, each when it has ended."""
    for run in runs:
        if raises:
            run.value  # noqa: B018  (raises)
        run.sync()
        yield run


@contextmanager
def progress_bar(size: int, name: str, *, shown: bool) -> Iterator[Callable[[], object]]:
    """What is to be called at the end of each run: it moves a progress bar, if wanted."""
    if not shown:
        yield lambda: None
        return
    from tqdm import tqdm

    with tqdm(total=size, desc=name) as bar:
        yield bar.update
