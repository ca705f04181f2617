"""Runs programs: one in this thread or on this event loop, many at once in threads or on one loop.

A run opens a scope, calls the program's function with its branch, waits for what the program did
not read, raises what failed unread, and closes everything it opened, however it ends. Knows nothing
of decorators and signatures.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import re
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from lmprog.backends import Backend
from lmprog.backends.client import running_loop
from lmprog.backends.connecting.default import (
    default_backend,
    default_is_ready,
    run_began,
    run_ended,
)
from lmprog.errors import Cancelled, CheckpointMismatch, ProgramError
from lmprog.lang.branches import scope as scopes
from lmprog.lang.branches.branch import Branch
from lmprog.lang.branches.call_request import BranchSettings
from lmprog.lang.branches.cursor import Cursor
from lmprog.lang.branches.gen import settle
from lmprog.lang.branches.marks import forget_marks, read, resolved, warn_of_leaks
from lmprog.lang.branches.pending_call import raise_together, unread_failures
from lmprog.lang.branches.scope import RunSettings, Scope
from lmprog.lang.ops import threads
from lmprog.lang.runs.results import Run, stop_runs
from lmprog.lang.streaming.feed import Feed

if TYPE_CHECKING:
    from lmprog.lang.checkpoints.checkpoint_file import RunOrigin

R = TypeVar("R")
GRACE = 0.1  # seconds in which the runtime may say first which call was out of time


@dataclass(frozen=True, slots=True)
class Job:
    """A program's function with the arguments of one run."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", self.function))

    @property
    def path(self) -> str:
        """By which a program is found again."""
        plain: Any = getattr(self.function, "func", self.function)  # of a method
        return f"{plain.__module__}:{plain.__qualname__}"

    @property
    def gives_pending(self) -> bool:
        """Whether the program is annotated to return `Gen` objects, with all that these tell of a
        result; otherwise their values are what a run gives.
        """
        plain: Any = getattr(self.function, "func", self.function)  # of a method
        returned = getattr(plain, "__annotations__", {}).get("return", "")
        return (
            re.search(r"\bGen\b", returned if isinstance(returned, str) else repr(returned))
            is not None
        )

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)


def backend_of(settings: RunSettings) -> Backend:
    """The one that was given, the calling program's, or the default one."""
    return scopes.backend_of(settings.backend)


def open_run(
    settings: RunSettings, feed: Feed | None = None, *, is_rehearsal: bool = False
) -> Run[Any]:
    """A run that has not begun: its scope and its root branch. Without a backend it is the
    caller's, or the default.
    """
    outer = scopes.current.get()
    backend = settings.backend if is_rehearsal and settings.backend else backend_of(settings)
    is_rehearsal = is_rehearsal or (outer is not None and outer.is_rehearsal)
    folder = settings.cache or (None if outer is None else outer.cache_folder)
    cache = None
    if folder is not None and not is_rehearsal:
        from lmprog.backends.caching import RunCache

        cache = RunCache(folder, settings.sampling.given().get("seed") is not None)
        backend = cache.over(backend, None if outer is None else outer.backend)
    scope = Scope(backend, settings, outer, feed=feed, cache=cache, is_rehearsal=is_rehearsal)
    limits = BranchSettings(settings.sampling, scope.budget, settings.heal)
    return Run(Branch(Cursor(scope), limits))


async def backend_ready(settings: RunSettings) -> None:
    """For an event loop, before `open_run`: a default backend that has to be started first, which
    takes seconds, is started in a thread.
    """
    if settings.backend is None and scopes.current.get() is None and not default_is_ready():
        await threads.call("lmprog-start", default_backend)


def _begin(job: Job, run: Run[Any]) -> None:
    """The program begins. Raises `CheckpointMismatch` where its checkpoint is of another run."""
    scope = run.scope
    scope.check()
    if scope.place == "" and not scope.is_rehearsal:
        scope.record.origin = functools.partial(_origin, job, scope)
        if scope.record.progress is not None:
            scope.record.progress.begin(scope.client.welcome)
    scope.budget.begin()


def _origin(job: Job, scope: Scope) -> RunOrigin:
    """Which run it is, for a checkpoint. Raises `InvalidParameter` for arguments that JSON does not
    have.
    """
    from lmprog.lang.checkpoints.checkpoint_file import RunOrigin
    from lmprog.lang.ops.type_values import written_arguments

    welcome, settings = scope.client.welcome, scope.settings.as_json()
    documents = {
        name: backend.client.welcome.fingerprint.documents
        for name, backend in scope.backends.items()
    }
    return RunOrigin(
        job.path,
        written_arguments(job.function, job.args, job.kwargs),
        json.loads(json.dumps(settings)),
        welcome.model,
        welcome.vocab_size,
        scope.seed,
        dict(welcome.adapters),
        welcome.fingerprint.documents,
        {name: parts for name, parts in documents.items() if parts},
    )


def _failed(run: Run[Any], error: BaseException, why: BaseException) -> None:
    """The program has ended with `error`, and the run with `why`."""
    scope, progress = run.scope, run.scope.record.progress
    if progress is not None and scope.place == "":
        progress.ended_by(error)
    scope.end_record()
    run.fail(why if progress is None or progress.paused is None else progress.paused)


def execute(job: Job, run: Run[Any]) -> None:
    """Runs a `def` program here; its end is in `run.outcome`, where an error stays until it is
    read.
    """
    token = scopes.current.set(run.scope)
    ended = _tell_of(job, run)
    try:
        _begin(job, run)
        value = job.function(run.branch, *job.args, **job.kwargs)
        if inspect.iscoroutine(value):
            value.close()
            raise ProgramError(
                f"{job.name} gives a coroutine that nobody awaits; make it `async def` and "
                "await inside"
            )
        raise_together([failure for task in run.scope.tasks for failure in task.finish()])
        for gen in run.scope.all_gens():
            gen.wait()
        value = _finish(job, run, value)
    except BaseException as error:
        run.scope.cancel(_broken_off(error))
        _failed(run, error, error)
        if not isinstance(error, Exception):
            raise
    else:
        run.scope.end_record()
        run.end(value)
    finally:
        scopes.current.reset(token)
        if run.scope.marks:
            forget_marks(run.scope)
        run.scope.over()
        ended()
        _end_feed(run)


async def execute_async(job: Job, run: Run[Any]) -> None:
    """The same for an `async def` program, on this event loop; being cancelled frees everything and
    goes on up.
    """
    token = scopes.current.set(run.scope)
    run.scope.stop = stop = _Stop()
    ended = _tell_of(job, run)
    try:
        _begin(job, run)
        value = await _in_time(job, run)
        raise_together(
            [failure for task in run.scope.tasks for failure in await task.finish_async()]
        )
        await settle(run.scope.all_gens())
        value = _finish(job, run, value)
    except BaseException as error:
        cancelled = isinstance(error, asyncio.CancelledError)
        why = run.scope.ended or Cancelled("the run was cancelled") if cancelled else error
        run.scope.stop, stop.is_over = None, True  # its task ends here
        run.scope.cancel(_broken_off(why))
        await asyncio.gather(*(task.abandon() for task in run.scope.tasks))
        _failed(run, error, why)
        if not isinstance(error, Exception) and not (cancelled and stop.was_used()):
            raise
    else:
        run.scope.end_record()
        run.end(value)
    finally:
        run.scope.stop, stop.is_over = None, True
        scopes.current.reset(token)
        if run.scope.marks:
            forget_marks(run.scope)
        run.scope.over()
        ended()
        _end_feed(run)


def _tell_of(job: Job, run: Run[Any]) -> Callable[[], None]:
    """Tells that the run begins, also those who trace; what is given back tells that it has
    ended.
    """
    scope, trace = run.scope, run.scope.trace
    run_began(scope, scope.uncached)
    if trace is None:
        return lambda: run_ended(scope)
    told = trace.begin(job.name, scope.client.welcome.model)

    def ended() -> None:
        run_ended(scope)
        told(run.usage, run.outcome.exception())

    return ended


def _broken_off(error: BaseException) -> Cancelled:
    """What threads and runs that the program has left behind are told."""
    return Cancelled(f"the run has ended with {type(error).__name__}")


class _Stop:
    """Ends a run on this event loop, from any thread, also while it waits for something that is no
    call.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._has_cancelled = False
        self.is_over = False

    def __call__(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        """Cancels a task only once, since a nested run may wait in the same task."""
        if self._task is not None and not self.is_over and not self._task.cancelling():
            self._has_cancelled = self._task.cancel()

    def was_used(self) -> bool:
        """Whether this is why the task was cancelled; if so, that is over."""
        if self._has_cancelled and self._task is not None:
            self._task.uncancel()
        return self._has_cancelled


async def _in_time(job: Job, run: Run[Any]) -> Any:
    """Awaits the program; what else it waits for ends with the run's time, too."""
    budget = run.scope.budget
    left = budget.time_left()
    limit = asyncio.timeout(None if left is None else left + GRACE)
    try:
        async with limit:
            return await job.function(run.branch, *job.args, **job.kwargs)
    except TimeoutError:
        if limit.expired():
            raise budget.out_of_time() from None
        raise


def _finish(job: Job, run: Run[Any], value: Any) -> Any:
    """The program has returned `value` and all its calls are done: raises what failed and was
    never read, and gives the value with the results that it refers to.
    """
    if isinstance(run.scope.ended, CheckpointMismatch):
        raise run.scope.ended
    run.scope.check()  # what a program returns that went on from its end is no result
    raise_together(unread_failures(run.scope.all_gens()))
    run.scope.budget.check()
    if run.scope.marks:
        value = resolved(value, run.scope)
        warn_of_leaks(run.scope)
    if run.scope.gens and not job.gives_pending:
        value = read(value)
    _warn_of_cut_texts(run)
    with run.scope.client.together():
        run.branch.cursor.close(keep_text=True)
        run.scope.close()
    return value


def _warn_of_cut_texts(run: Run[Any]) -> None:
    """Warns, once at each line, of texts that ended at a limit that nobody has given."""
    for gen in run.scope.gens:
        if gen.is_cut_unasked and not run.scope.is_rehearsal:
            most = 0 if gen.usage is None else gen.usage.generated
            warnings.warn_explicit(
                f"{gen!r} was cut after {most:,} tokens, the limit of what names none; give "
                "max_tokens=..., or max_tokens=None for what is left of the context "
                "(run.truncated has all such results)",
                UserWarning,
                gen.site.file,
                gen.site.line,
            )


def _end_feed(run: Run[Any]) -> None:
    if run.scope.feed is not None:
        for gen in run.scope.all_gens():
            if gen.done():
                gen.show()
        run.scope.feed.end()


# --- one run


def blocking(job: Job, run: Run[Any]) -> None:
    """Runs any program and blocks until it has ended."""
    if running_loop() is not None:
        if scopes.current.get() is not None:
            raise ProgramError(
                "inside an async program, write `await program.arun(...)` instead of "
                "`program.run(...)`"
            )
        try:
            threads.wait([in_thread(job, run)])  # a notebook: its loop is busy with this very cell
        except BaseException:
            stop_runs([run], "the run was interrupted")
            raise
    elif job.is_async:
        asyncio.run(execute_async(job, run))
    else:
        execute(job, run)


def in_thread(job: Job, run: Run[Any]) -> Future[None]:
    """Starts any program in a thread of its own."""

    def body() -> None:
        if job.is_async:
            asyncio.run(execute_async(job, run))
        else:
            execute(job, run)

    return threads.start("lmprog-run", body)


async def awaiting(job: Job, run: Run[Any]) -> None:
    """Runs any program without blocking this event loop. Being cancelled ends the program; a plain
    one that is busy with something else is left behind.
    """
    if job.is_async:
        await execute_async(job, run)
        return
    work = asyncio.wrap_future(threads.start("lmprog-run", execute, job, run))
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        run.scope.cancel()
        await asyncio.wait([work], timeout=threads.STOP_SECONDS)
        work.cancel()
        run.fail(Cancelled("the run was cancelled"))
        raise
