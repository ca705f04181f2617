"""A function on every branch of a fork at once: the values of all, or the value of the first that
has one.

Within an event loop each branch has a task, in a plain program a thread. Knows results; what a
branch is, and how branches are closed, is the group's business.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Generator,
    Iterator,
    Sequence,
)
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

from lmprog.backends.client import running_loop
from lmprog.errors import Cancelled, ProgramError
from lmprog.lang.branches.gen import Gen
from lmprog.lang.branches.pending_call import raise_together
from lmprog.lang.branches.vote import Contested
from lmprog.lang.ops import threads

T = TypeVar("T")
B = TypeVar("B")
MAX_THREADS = 32  # of one `map` in a plain program


class BranchGroup(Protocol[B]):
    """The branches of a fork."""

    def __iter__(self) -> Iterator[B]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> B: ...

    def cancel(self) -> None:
        """Closes the branches: their calls end with `Cancelled`."""
        ...

    def known_winner(self) -> int | None:
        """The index of the branch that won this race before the run was resumed."""
        ...

    def tell_winner(self, place: int) -> None:
        """Who has won it, for a checkpoint."""
        ...

    def drop(self, losers: Sequence[B]) -> None:
        """Cancels some of the branches; their failures are not reported."""
        ...


class Mapped(Generic[T]):
    """The values that a function gives on each branch: `await` for the list, or `.value`, which
    blocks.
    """

    def __init__(self, branches: BranchGroup[B], each: Callable[[B], Any], *, keep: bool) -> None:
        self._branches = branches
        self._keep = keep
        self._was_read = False
        begun = _begun(branches, each, all_or_none=not keep)
        self._tasks, self._threads = begun.tasks, begun.threads

    @property
    def value(self) -> list[T]:
        """The values in the branches' order; blocks. Raises what failed."""
        if self._tasks:
            raise ProgramError(
                "write `await` before the map: waiting for it here would stop the event loop"
            )
        raise_together(self.finish())
        return [cast(T, _outcome(thread)) for thread in self._threads]

    def __await__(self) -> Generator[Any, None, list[T]]:
        raise_together((yield from self.finish_async().__await__()))
        return [cast(T, _outcome(task)) for task in self._tasks]

    def finish(self) -> list[Exception]:
        """Waits for the threads; the first failure cancels the other branches. What failed, unless
        that was told.
        """
        threads.wait(self._threads, "ALL_COMPLETED" if self._keep else FIRST_EXCEPTION)
        ended = [thread for thread in self._threads if thread.done()]
        if not self._keep and any(_error(thread) is not None for thread in ended):
            self.stop()
            self._branches.cancel()
        threads.wait(self._threads)
        return self._failures(self._threads)

    async def finish_async(self) -> list[Exception]:
        """The same for tasks."""
        if self._tasks:
            try:
                await asyncio.wait(
                    self._tasks, return_when="ALL_COMPLETED" if self._keep else FIRST_EXCEPTION
                )
            except asyncio.CancelledError:
                await self.abandon()
                raise
            if not self._keep and any(
                _error(task) is not None for task in self._tasks if task.done()
            ):
                await self.abandon()
                self._branches.cancel()
        return self._failures(self._tasks)

    async def abandon(self) -> None:
        """Cancels the tasks that still run, and waits until they have ended."""
        await _abandon(self._tasks)

    def stop(self) -> None:
        """What waits for a thread does not begin."""
        threads.cancel(self._threads)

    def _failures(self, runs: Sequence[Future[Any] | asyncio.Task[Any]]) -> list[Exception]:
        was_read, self._was_read = self._was_read, True
        if self._keep or was_read:
            return []
        return [error for run in runs if (error := _error(run)) is not None]


class BranchRace(Generic[T, B]):
    """The value of the branch whose function ended well first: `await` it, or read `.value`, which
    blocks.

    Who fails takes no part; when all have failed, the failure of the first branch is raised. Within
    an event loop, and where the function gives pending results and no coroutines, the runtime
    decides.
    """

    def __init__(self, branches: BranchGroup[B], each: Callable[[B], Any]) -> None:
        self._branches = branches
        self._won: int | None = None
        self._failed: Exception | None = None
        self._was_told = False
        self._contest: Contested[Any] | None = None
        if running_loop() is not None:
            asked = _asked(branches, each)
            if all(isinstance(found, Gen) for found in asked):
                self._contest = Contested(asked, "first")
            each = dict(zip(branches, asked, strict=True)).__getitem__
        begun = (
            _Begun([], [])
            if self._contest is not None
            else _begun(branches, each, all_or_none=False)
        )
        self._tasks, self._threads = begun.tasks, begun.threads

    @property
    def value(self) -> T:
        """The winner's value; blocks. Raises the first failure where nobody has won."""
        if running_loop() is not None:
            raise ProgramError(
                "write `await` before the race: waiting for it here would stop the event loop"
            )
        self.finish()
        return self._value(self._threads)

    def __await__(self) -> Generator[Any, None, T]:
        yield from self.finish_async().__await__()
        return self._value(self._tasks)

    @property
    def branch(self) -> B:
        """The one that has won, once the race was awaited, or its value read."""
        if self._won is None:
            raise ProgramError("nobody has won this race (yet); await it, or read its value")
        return self._branches[self._won]

    def finish(self) -> list[Exception]:
        """Waits for the threads. Why nobody has won, unless that was told; those who lost may
        fail.
        """
        pending: Collection[Future[Any]] = self._threads
        while pending and not self._is_decided():
            threads.wait(pending, FIRST_COMPLETED)
            pending = [thread for thread in pending if not thread.done()]
            self._decide(self._threads)
        self.stop()
        threads.wait(self._threads)
        return self._untold()

    async def finish_async(self) -> list[Exception]:
        """The same for tasks."""
        if self._contest is not None and not self._is_decided():
            await self._contest.arrive()
            self._end(self._contest.place, self._contest.failure)
        pending: Collection[asyncio.Task[Any]] = self._tasks
        try:
            while pending and not self._is_decided():
                _, pending = await asyncio.wait(pending, return_when=FIRST_COMPLETED)
                self._decide(self._tasks)
        finally:
            await self.abandon()
        return self._untold()

    async def abandon(self) -> None:
        """Cancels the tasks that still run, and waits until they have ended."""
        await _abandon(self._tasks)

    def stop(self) -> None:
        """What waits for a thread does not begin."""
        threads.cancel(self._threads)

    def _is_decided(self) -> bool:
        return self._won is not None or self._failed is not None

    def _decide(self, runs: Sequence[Future[Any] | asyncio.Task[Any]]) -> None:
        """Of those that have ended at the same time the earliest branch wins; the others are
        dropped.
        """
        ended = [(index, _error(run)) for index, run in enumerate(runs) if run.done()]
        known = self._branches.known_winner()
        well = (index for index, error in ended if error is None)
        won = next((index for index in well if known in (None, index)), None)
        if won is not None or len(ended) == len(runs):
            self._end(won, next((error for _, error in ended if error is not None), None))

    def _end(self, won: int | None, failed: Exception | None) -> None:
        self._won, self._failed = won, failed if won is None else None
        if won is not None:
            self._branches.tell_winner(won)
        self._branches.drop([child for index, child in enumerate(self._branches) if index != won])

    def _untold(self) -> list[Exception]:
        was_told, self._was_told = self._was_told, True
        return [] if was_told or self._failed is None else [self._failed]

    def _value(self, runs: Sequence[Future[Any] | asyncio.Task[Any]]) -> T:
        if self._failed is not None:
            raise self._failed
        assert self._won is not None
        if self._contest is not None:
            return cast(T, self._contest.value)
        return cast(T, runs[self._won].result())


@dataclass(frozen=True, slots=True)
class _Begun:
    """A function under way on every branch: in tasks within an event loop, else in threads."""

    tasks: list[asyncio.Task[Any]]
    threads: list[Future[Any]]


def _asked(branches: BranchGroup[B], each: Callable[[B], Any]) -> list[Any]:
    """What the function gives for each branch, not yet awaited."""
    found: list[Any] = []
    try:
        found.extend(each(child) for child in branches)
    except BaseException:
        for one in found:
            if isinstance(one, Coroutine):
                one.close()
        raise
    return found


def _begun(branches: BranchGroup[B], each: Callable[[B], Any], *, all_or_none: bool) -> _Begun:
    if running_loop() is not None:
        return _Begun([asyncio.ensure_future(_run_one(each, child)) for child in branches], [])
    bodies = [functools.partial(_run_blocking, each, child) for child in branches]
    started = threads.start_all("lmprog-branch", bodies, MAX_THREADS, all_or_none=all_or_none)
    return _Begun([], started)


async def _abandon(tasks: Sequence[asyncio.Task[Any]]) -> None:
    pending = [task for task in tasks if not task.done()]
    for task in pending:
        task.cancel()
    if pending:
        await asyncio.wait(pending)
    for task in tasks:
        _error(task)  # retrieved: asyncio has nothing to complain about


def _error(run: Future[Any] | asyncio.Task[Any]) -> Exception | None:
    if run.cancelled():
        return Cancelled("a sibling branch failed")
    error = run.exception()
    if error is not None and not isinstance(error, Exception):
        raise error
    return error


def _outcome(run: Future[Any] | asyncio.Task[Any]) -> object:
    """The value, or the error where errors are kept."""
    error = _error(run)
    return run.result() if error is None else error


async def _run_one(each: Callable[[B], Any], child: B) -> Any:
    found = each(child)
    return await found if isinstance(found, Awaitable) else found


def _run_blocking(each: Callable[[B], Any], child: B) -> Any:
    found = each(child)
    if isinstance(found, Coroutine):
        found.close()
        raise ProgramError(
            "a plain program cannot map a coroutine function; make the program `async def`"
        )
    return found.value if isinstance(found, Gen) else found
