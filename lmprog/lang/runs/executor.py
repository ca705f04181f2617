"""Runs programs: one in this thread or on this event loop, many at once in threads or on one loop.

A run opens a scope, calls the program's function with its branch, waits for what the program did
not read, raises what failed unread, and closes everything it opened, however it ends. Knows nothing
of decorators and signatures.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from lmprog.backends import Backend
from lmprog.backends.caching.caching_backend import RunCache
from lmprog.backends.client import running_loop
from lmprog.backends.default import run_began, run_ended
from lmprog.errors import Cancelled, InvalidParameter, ProgramError
from lmprog.lang import threads
from lmprog.lang.branches import scope as scopes
from lmprog.lang.branches.branch import Branch
from lmprog.lang.branches.budget import Budget
from lmprog.lang.branches.call_request import BranchSettings
from lmprog.lang.branches.cursor import Cursor
from lmprog.lang.branches.failures import raise_together, unread_failures
from lmprog.lang.branches.marks import forget_marks, resolved, warn_of_leaks
from lmprog.lang.branches.scope import Scope
from lmprog.lang.branches.variables import settle
from lmprog.lang.checkpoints.run_progress import Answer
from lmprog.lang.ops.sampling import Sampling
from lmprog.lang.runs import checkpointed_run
from lmprog.lang.runs.results import Run, stop_runs
from lmprog.lang.streaming.feed import Feed
from lmprog.lang.streaming.trace_events import RunTrace, callbacks

R = TypeVar("R")
GRACE = 0.1  # seconds in which the runtime may say first which call was out of time


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How a run is done, besides the program's own arguments."""

    backend: Backend | None = None
    sampling: Sampling = field(default_factory=Sampling)
    timeout: float | None = None
    max_total_tokens: int | None = None
    salt: str = ""
    lora: str | None = None
    """The adapter that computes it; None: the calling program's, on the same backend."""
    num_api_spec_tokens: int | None = None
    heal: bool | None = None
    backends: Mapping[str, Backend] = field(default_factory=dict)
    """Others that branches may go to, by name."""
    cache: Path | None = None
    """The folder of replies that are not asked for again."""
    checkpoint: Path | None = None
    """The file that the run is written to while it goes on, and that it goes on from."""
    answer: Answer | None = None
    """What the run is told that has paused."""

    def as_json(self) -> dict[str, Any]:
        """Those that decide on the results, as the keywords of `using`; without backends."""
        found: dict[str, Any] = {
            **self.sampling.given(),
            "timeout": self.timeout,
            "max_total_tokens": self.max_total_tokens,
            "num_api_spec_tokens": self.num_api_spec_tokens,
            "heal": self.heal,
            "cache_salt": self.salt or None,
            "lora": self.lora,
            "cache": None if self.cache is None else str(self.cache),
        }
        return {name: value for name, value in found.items() if value is not None}

    def __post_init__(self) -> None:
        tokens = self.num_api_spec_tokens
        if tokens is not None and not (isinstance(tokens, int) and 0 <= tokens <= 65_536):
            allowed = "0 <= x <= 65536"
            message = f"num_api_spec_tokens={tokens!r} is not allowed; give {allowed}"
            raise InvalidParameter(
                message, name="num_api_spec_tokens", value=repr(tokens), allowed=allowed
            )


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
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)


def backend_of(settings: RunSettings) -> Backend:
    """The one that was given, the calling program's, or the default one."""
    return scopes.backend_of(settings.backend)


def _cache_of(settings: RunSettings, outer: Scope | None) -> RunCache | None:
    """The folder that was given, or the calling program's."""
    around = None if outer is None or outer.cache is None else outer.cache.folder
    folder = settings.cache or around
    seeded = settings.sampling.given().get("seed") is not None
    return None if folder is None else RunCache(folder, seeded)


def open_run(
    settings: RunSettings, feed: Feed | None = None, *, is_rehearsal: bool = False
) -> Run[Any]:
    """A run that has not begun: its scope and its root branch. Without a backend it is the
    caller's, or the default.
    """
    outer = scopes.current.get()
    around = None if outer is None else outer.budget
    budget = Budget(around, timeout=settings.timeout, max_total_tokens=settings.max_total_tokens)
    backend = settings.backend if is_rehearsal and settings.backend else backend_of(settings)
    is_rehearsal = is_rehearsal or (outer is not None and outer.is_rehearsal)
    cache = None if is_rehearsal else _cache_of(settings, outer)
    if cache is not None:
        backend = cache.over(backend, None if outer is None else outer.backend)
    scope = Scope(
        backend, settings.sampling, parent=outer, budget=budget, salt=settings.salt, feed=feed
    )
    scope.cache = cache
    inherits = settings.lora is None and outer is not None and outer.client is scope.client
    scope.lora = outer.lora if inherits and outer is not None else settings.lora or ""
    scope.is_rehearsal = is_rehearsal
    if not is_rehearsal:
        checkpointed_run.join(
            scope, outer, settings.checkpoint, settings.answer, settings.as_json()
        )
    told = () if scope.is_rehearsal else callbacks.get()
    if told:
        scope.trace = RunTrace(
            told, None if outer is None or outer.trace is None else outer.trace.id
        )
    scope.backends = {**scope.backends, **settings.backends}
    inherited = 0 if outer is None else outer.num_api_spec_tokens
    scope.num_api_spec_tokens = (
        inherited if settings.num_api_spec_tokens is None else settings.num_api_spec_tokens
    )
    return Run(Branch(Cursor(scope), BranchSettings(settings.sampling, budget, settings.heal)))


def execute(job: Job, run: Run[Any]) -> None:
    """Runs a `def` program here; its end is in `run.outcome`, where an error stays until it is
    read.
    """
    token = scopes.current.set(run.scope)
    ended = _tell_of(job, run)
    try:
        run.scope.check()
        checkpointed_run.begin(run.scope, job.function, job.args, job.kwargs)
        run.scope.budget.begin()
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
        value = _finish(run, value)
    except BaseException as error:
        run.scope.cancel(_broken_off(error))
        checkpointed_run.end(run.scope, error)
        run.fail(run.scope.progress.paused or error)
        if not isinstance(error, Exception):
            raise
    else:
        run.end(value)
    finally:
        scopes.current.reset(token)
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
        run.scope.check()
        checkpointed_run.begin(run.scope, job.function, job.args, job.kwargs)
        run.scope.budget.begin()
        value = await _in_time(job, run)
        raise_together(
            [failure for task in run.scope.tasks for failure in await task.finish_async()]
        )
        await settle(run.scope.all_gens())
        value = _finish(run, value)
    except BaseException as error:
        cancelled = isinstance(error, asyncio.CancelledError)
        why = run.scope.ended or Cancelled("the run was cancelled") if cancelled else error
        run.scope.stop, stop.is_over = None, True  # its task ends here
        run.scope.cancel(_broken_off(why))
        await asyncio.gather(*(task.abandon() for task in run.scope.tasks))
        checkpointed_run.end(run.scope, error)
        run.fail(run.scope.progress.paused or why)
        if not isinstance(error, Exception) and not (cancelled and stop.was_used()):
            raise
    else:
        run.end(value)
    finally:
        run.scope.stop, stop.is_over = None, True
        scopes.current.reset(token)
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
        """Not twice: a run within the run may wait in the same task."""
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


def _finish(run: Run[Any], value: Any) -> Any:
    """The program has returned `value` and all its calls are done: raises what failed and was
    never read, and gives the value with the results that it refers to.
    """
    checkpointed_run.check(run.scope)
    run.scope.check()  # what a program returns that went on from its end is no result
    raise_together(unread_failures(run.scope.all_gens()))
    run.scope.budget.check()
    value = resolved(value, run.scope)
    warn_of_leaks(run.scope)
    with run.scope.client.together():
        run.branch.cursor.close(keep_text=True)
        run.scope.close()
    return value


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
