"""Programs: Python functions whose first parameter is a branch, made runnable.

Keeps the function's signature: `program.run(...)` takes its other parameters. Settings of a run are
given by `program.using(temperature=0, backend=...)`, or, as SGLang programs do, among the arguments
of `run`; a name that the program itself has as a parameter is always the program's. Knows how to
start runs; `executor` does them.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import os
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sized,
)
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    ParamSpec,
    Self,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)

from lmprog import wire
from lmprog.backends import Backend
from lmprog.backends.connecting.default import backend_at
from lmprog.errors import InvalidParameter, ProgramError, hint, not_allowed
from lmprog.lang.branches.branch import Branch
from lmprog.lang.branches.scope import RunSettings
from lmprog.lang.ops import threads
from lmprog.lang.ops.sampling import (
    ALIASES,
    Sampling,
    SamplingOptions,
    check_lora,
    is_sampling,
    sampling_of,
)
from lmprog.lang.runs.executor import (
    Job,
    awaiting,
    backend_ready,
    blocking,
    in_thread,
    open_run,
)
from lmprog.lang.runs.results import Results, Run, stop_runs
from lmprog.lang.streaming.feed import Done, Event, Feed

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from lmprog.evaluation.rows import Metric
    from lmprog.evaluation.tuning import TuneOptions, Tuning
    from lmprog.lang.branches.slots import Tuned
    from lmprog.lang.checkpoints.run_progress import Answer
    from lmprog.lang.rehearsal.cost import Explanation
    from lmprog.lang.rehearsal.graph import Graph
    from lmprog.lang.rehearsal.preview import Preview
    from lmprog.lang.runs.run_batch import OnBatchError, ProgramBatch, RunsAsTheyCome


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Program(Generic[P, R]):
    """A program of `lmprog.function`. `R` is what it returns (for an `async def`, once awaited)."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        settings: RunSettings | None = None,
        bound: Mapping[str, Any] | None = None,
    ) -> None:
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters or parameters[0].kind not in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        ):
            raise ProgramError(
                f"{function.__name__} needs a first parameter: the branch that it writes to"
            )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ProgramError(
                f"{function.__name__} yields; a program returns its value, and .stream(...) "
                "tells of it early"
            )
        self.function = function
        self.settings = settings or RunSettings()
        self.bound = dict(bound or {})
        self._names = {
            parameter.name for parameter in parameters[1:] if parameter.kind not in _VARIADIC
        }
        self._takes_any = any(
            parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters
        )
        functools.update_wrapper(self, function)

    @property
    def num_api_spec_tokens(self) -> int | None:
        """How many tokens a black-box API may say beyond a call's stop, for later calls."""
        return self.settings.num_api_spec_tokens

    # --- variants

    def bind(self, **arguments: Any) -> Program[..., R]:
        """The same program with some of its own arguments given, by name."""
        unknown = set(arguments) - self._names
        if unknown and not self._takes_any:
            name = sorted(unknown)[0]
            said = f"{self.function.__name__} has no parameter {name!r}{hint(name, self._names)}"
            raise TypeError(said)
        return self._variant(self.settings, {**self.bound, **arguments})

    def using(self, **options: Unpack[RunOptions]) -> Program[P, R]:
        """The same program with settings for its runs: sampling, and the other `RunOptions`
        (`timeout` in seconds).
        """
        return self._variant(self._with(options), self.bound)

    def _variant(self, settings: RunSettings, bound: Mapping[str, Any]) -> Program[P, R]:
        return type(self)(self.function, settings=settings, bound=bound)

    def _with(self, options: Mapping[str, Any]) -> RunSettings:
        return with_options(self.settings, options) if options else self.settings

    def _job(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Job, RunSettings]:
        """The arguments apart: the program's own, and the settings of the run."""
        options = {
            name: value
            for name, value in kwargs.items()
            if name not in self._names and is_setting(name)
        }
        own = {name: value for name, value in kwargs.items() if name not in options}
        job = Job(self.function, args, {**self.bound, **own})
        try:  # a wrong call fails here, before a run
            inspect.signature(self.function).bind(None, *job.args, **job.kwargs)
        except TypeError as error:
            settings = {*RunOptions.__annotations__, *ALIASES}
            unknown = [name for name in own if name not in self._names and not self._takes_any]
            said = f", and no setting of a run{hint(unknown[0], settings)}" if unknown else ""
            raise TypeError(f"{self.function.__name__}(): {error}{said}") from None
        return job, self._with(options)

    # --- before running

    def preview(self, *args: P.args, **kwargs: P.kwargs) -> Preview:
        """The exact prompts, written and counted by the runtime, with marks for results; generates
        nothing.
        """
        from lmprog.lang.rehearsal import rehearsing  # not needed to run programs

        return rehearsing.preview(*self._job(args, kwargs))

    def explain(self, *args: P.args, **kwargs: P.kwargs) -> Explanation:
        """Calls, shared prefixes, and the most tokens and pages that a run can take; generates
        nothing.
        """
        from lmprog.lang.rehearsal import rehearsing  # not needed to run programs

        return rehearsing.explain(*self._job(args, kwargs))

    def trace(self, *args: Any, **kwargs: Any) -> Graph:
        """The program's ops as a graph: `print` it, or `to_dot()`. Arguments left out are
        placeholders.
        """
        given = inspect.signature(self.function).bind_partial(None, *args).arguments
        own = {name for name in kwargs if name in self._names} | set(self.bound) | set(given)
        for parameter in list(inspect.signature(self.function).parameters.values())[1:]:
            if (
                parameter.default is parameter.empty
                and parameter.name not in own
                and parameter.kind not in _VARIADIC
            ):
                kwargs[parameter.name] = f"⟨{parameter.name}⟩"
        from lmprog.lang.rehearsal import rehearsing  # not needed to run programs

        return rehearsing.trace(*self._job(args, kwargs))

    def cache(self, *args: Any, **kwargs: Any) -> wire.Usage:
        """Computes ahead what every run begins with: the text before the first argument that is
        left out; blocks.

        Seldom needed: runs that begin together share that text anyway. Gives the work that it was.
        """
        options = {
            name: value
            for name, value in kwargs.items()
            if name not in self._names and is_setting(name)
        }
        from lmprog.lang.rehearsal import rehearsing  # not needed to run programs

        return rehearsing.compute_ahead(self.trace(*args, **kwargs), self._with(options))

    # --- running

    @overload
    def __call__(self, s: Branch, /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]
        """`program(s, ...)` goes on with the branch `s` of the calling program; without a branch it
        is `run`.
        """
        if args and isinstance(args[0], Branch):
            branch = args[0].over(self.settings.sampling)
            return self.function(branch, *args[1:], **{**self.bound, **kwargs})
        return self.run(*args, **kwargs)

    def run(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Runs the program and blocks. Raises what it raised, and what failed in it without being
        read.
        """
        rest: dict[str, Any] = dict(kwargs)
        stream = False if "stream" in self._names else rest.pop("stream", False)
        if "use_thread" not in self._names:
            rest.pop("use_thread", None)  # SGLang's: here no op needs a thread
        job, settings = self._job(args, rest)
        if stream:
            streaming = open_run(settings, Feed())
            in_thread(job, streaming)
            return streaming
        run = open_run(settings)
        blocking(job, run)
        run.value  # noqa: B018  (raises)
        return run

    async def arun(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """The same without blocking the event loop. Cancelling the task ends the run and frees what
        it held.
        """
        job, settings = await _connecting(kwargs, self._job, args, kwargs)
        await backend_ready(settings)
        run = open_run(settings)
        await awaiting(job, run)
        run.value  # noqa: B018  (raises)
        return run

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Stream[R]:
        """Runs the program while it is iterated over (`for` or `async for`): `Text`, `Value`, at
        last `Done`.
        """
        return Stream(*self._job(args, kwargs))

    def map(
        self,
        items: Iterable[Any],
        *,
        concurrency: int = 64,
        progress: bool = False,
        on_error: OnBatchError = "raise",
        **options: Unpack[RunOptions],
    ) -> Results[R]:
        """Runs the program once for each item, its first argument; values in the items' order."""
        calls: list[Call] = [((item,), {}) for item in items]
        batch = self._batch(calls, concurrency, on_error, self._settings(options))
        with self._progress_bar(calls, progress) as step:
            batch.perform(step)
        return Results(batch.runs)

    async def amap(
        self,
        items: Iterable[Any],
        *,
        concurrency: int = 64,
        progress: bool = False,
        on_error: OnBatchError = "raise",
        **options: Unpack[RunOptions],
    ) -> Results[R]:
        """The same without blocking the event loop. Cancelling the task ends all runs."""
        calls: list[Call] = [((item,), {}) for item in items]
        settings = await _connecting(options, self._settings, options)
        await backend_ready(settings)
        batch = self._batch(calls, concurrency, on_error, settings)
        with self._progress_bar(calls, progress) as step:
            await batch.perform_async(step)
        return Results(batch.runs)

    def imap(
        self,
        items: Iterable[T],
        *,
        concurrency: int = 64,
        ordered: bool = True,
        progress: bool = False,
        on_error: OnBatchError = "raise",
        **options: Unpack[RunOptions],
    ) -> RunsAsTheyCome[T, R]:
        """`map` for any number of items: iterated over (`for` or `async for`) it gives each item
        with its run, in the items' order or, with `ordered=False`, as they end.

        Keeps only what is under way: items are drawn while fewer than `concurrency` runs go on, and
        fewer than twice as many are unread. Leaving the loop early ends those.
        """
        from lmprog.lang.runs.run_batch import RunsAsTheyCome

        settings = self._settings(options)
        jobs = ((item, self._job((item,), {})[0]) for item in items)
        bar = self._progress_bar(items, progress)
        return RunsAsTheyCome(jobs, settings, concurrency, on_error, bar, ordered=ordered)

    @overload
    def run_batch(
        self, batch_kwargs: Iterable[Any], *, generator_style: Literal[True], **options: Any
    ) -> Iterator[Run[R]]: ...
    @overload
    def run_batch(
        self,
        batch_kwargs: Iterable[Any],
        *,
        generator_style: Literal[False] = False,
        **options: Any,
    ) -> list[Run[R]]: ...
    def run_batch(self, batch_kwargs: Iterable[Any], **options: Any) -> Any:
        """SGLang's batch: each item a dict or a tuple of arguments. Reading from a run that failed
        raises why.

        Options: `num_threads` ("auto"), `progress_bar`, `on_error` ("collect"), `generator_style`,
        and `using`'s.
        """
        num_threads = options.pop("num_threads", "auto")
        concurrency = 64 if num_threads == "auto" else int(num_threads)
        progress = options.pop("progress_bar", False)
        on_error = options.pop("on_error", "collect")
        is_generator = options.pop("generator_style", False)
        settings, bar = self._settings(options), self._progress_bar(batch_kwargs, progress)
        calls = (
            ((), dict(item)) if isinstance(item, Mapping) else (tuple(item), {})
            for item in batch_kwargs
        )
        if is_generator:
            from lmprog.lang.runs.run_batch import RunsAsTheyCome

            jobs = ((None, self._job(args, kwargs)[0]) for args, kwargs in calls)
            return RunsAsTheyCome(jobs, settings, concurrency, on_error, bar).runs()
        batch = self._batch(calls, concurrency, on_error, settings)
        with bar as step:
            batch.perform(step)
        return batch.runs

    def tune(self, train: object, metric: Metric, **options: Unpack[TuneOptions]) -> Tuning:
        """Looks for what fills the program's slots best, on rows, and blocks; see `lmprog.tune`."""
        from lmprog.evaluation.tuning import tune  # not needed to run programs

        return tune(self, train, metric, **options)

    def _settings(self, options: Mapping[str, Any]) -> RunSettings:
        """Of all runs of a batch. Raises `InvalidParameter` for an argument of the program."""
        own = next((name for name in options if name in self._names), None)
        if own is not None and not is_setting(own):
            raise InvalidParameter(
                f"{own!r} is an argument of {self.function.__name__}, and no setting of its runs; "
                f"give it to all of them by bind: {self.function.__name__}.bind({own}=...)",
                name=own,
                allowed="settings of a run",
            )
        return self._with(options)

    def _batch(
        self,
        calls: Iterable[Call],
        concurrency: int,
        on_error: OnBatchError,
        settings: RunSettings,
    ) -> ProgramBatch:
        from lmprog.lang.runs.run_batch import ProgramBatch

        jobs = [self._job(args, kwargs)[0] for args, kwargs in calls]
        return ProgramBatch(jobs, settings, concurrency, on_error)

    def _progress_bar(
        self, items: Iterable[Any], shown: bool
    ) -> AbstractContextManager[Callable[[], object]]:
        """What is to be called at the end of each run."""
        from lmprog.lang.runs.run_batch import progress_bar

        size = len(items) if isinstance(items, Sized) else None
        return progress_bar(size, self.function.__name__, shown=shown)

    async def acall(self, s: Branch, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """`program(s, ...)` for a plain program inside an async one: it runs in a thread, where it
        may read values without stopping the event loop.
        """
        call = functools.partial(self, s, *args, **kwargs)
        found = await threads.call("lmprog-call", call)
        return await found if inspect.isawaitable(found) else found

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        """A method, `def program(self, s, ...)`: the program of that instance."""
        if instance is None:
            return self
        bound = functools.partial(self.function, instance)
        bound.__name__ = self.function.__name__  # type: ignore[attr-defined]
        bound.__doc__ = self.function.__doc__
        return type(self)(bound, settings=self.settings, bound=self.bound)

    def __repr__(self) -> str:
        return f"<program {self.function.__name__}>"


class AsyncProgram(Program[P, R]):
    """A program made from `async def`: called with a branch it is awaited."""

    @overload  # type: ignore[override]
    def __call__(
        self, s: Branch, /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]
        return super().__call__(*args, **kwargs)


class RunOptions(SamplingOptions, total=False):
    """What a run can be told besides the program's own arguments."""

    backend: Backend | str | None
    backends: Mapping[str, Backend | str]
    sampling: Sampling
    timeout: float | None
    max_total_tokens: int | None
    cache_salt: str
    lora: str | None
    heal: bool
    num_api_spec_tokens: int | None
    cache: str | Path | None
    checkpoint: str | Path | None
    answer: Any
    tuned: str | Path | Mapping[str, Any] | Tuned | None


def is_setting(name: str) -> bool:
    """Whether `name` is a setting of a run, and no argument of a program."""
    return is_sampling(name) or name in RunOptions.__annotations__


def with_options(settings: RunSettings, options: Mapping[str, Any]) -> RunSettings:
    """`settings` with `options` over them. Raises `InvalidParameter` for an unknown one."""
    rest = dict(options)
    for name in ("backend", "timeout", "max_total_tokens", "num_api_spec_tokens", "heal"):
        if name in rest:
            settings = replace(settings, **{name: rest.pop(name)})
    if isinstance(settings.backend, str):
        settings = replace(settings, backend=backend_at(settings.backend))
    if "backends" in rest:
        named = rest.pop("backends").items()
        others = {name: backend_at(one) if isinstance(one, str) else one for name, one in named}
        settings = replace(settings, backends={**settings.backends, **others})
    if "cache" in rest:
        settings = replace(settings, cache=_folder(rest.pop("cache")))
    if "checkpoint" in rest:
        settings = replace(settings, checkpoint=_file(rest.pop("checkpoint")))
    if "tuned" in rest:
        settings = replace(settings, tuned=_tuned(rest.pop("tuned")))
    if "answer" in rest:
        settings = replace(settings, answer=_answer(rest.pop("answer")))
    if "cache_salt" in rest:
        settings = replace(settings, salt=rest.pop("cache_salt"))
    if "lora" in rest:
        settings = replace(settings, lora=check_lora(rest.pop("lora")))
    given = rest.pop("sampling", None) or Sampling()
    own = sampling_of(rest, RunOptions.__annotations__)
    return replace(settings, sampling=own.over(given).over(settings.sampling))


async def _connecting(
    options: Mapping[str, Any], make: Callable[P, R], *args: P.args, **kwargs: P.kwargs
) -> R:
    """What `make` makes of `options`: in a thread where they have addresses, which it connects to,
    so that the event loop goes on.
    """
    named = options.get("backends")
    others = named.values() if isinstance(named, Mapping) else ()
    if any(isinstance(one, str) for one in (options.get("backend"), *others)):
        return await threads.call("lmprog-start", functools.partial(make, *args, **kwargs))
    return make(*args, **kwargs)


def _file(given: object) -> Path | None:
    """A file in a folder that is there."""
    if given is None:
        return None
    allowed = "the path of a file in a folder that is there"
    try:
        path = Path(given).expanduser().absolute()  # type: ignore[arg-type]
        if path.parent.is_dir() and not path.is_dir():
            return path
    except TypeError:
        pass
    raise not_allowed("checkpoint", given, allowed)


def _tuned(given: object) -> Tuned | None:
    if given is None:
        return None
    from lmprog.lang.branches.slots import Tuned

    return Tuned.of(given)


def _answer(given: object) -> Answer:
    """As the program sees it, which is as JSON has it."""
    from lmprog.lang.checkpoints.run_progress import Answer

    try:
        return Answer(json.loads(json.dumps(given)))
    except (TypeError, ValueError) as error:
        allowed = "a value that JSON has"
        raise not_allowed("answer", given, allowed, str(error)) from None


def _folder(given: object) -> Path | None:
    """A folder that can be written to, made if it is not there."""
    if given is None:
        return None
    allowed = "the path of a folder that can be written to"
    try:
        folder = Path(given).expanduser().absolute()  # type: ignore[arg-type]
        folder.mkdir(parents=True, exist_ok=True)
        problem = "" if os.access(folder, os.W_OK) else " (it cannot be written to)"
    except (TypeError, OSError) as error:
        problem = f" ({error})"
    if not problem:
        return folder
    raise InvalidParameter(
        f"cache={given!r} is not allowed; give {allowed}{problem}",
        name="cache",
        value=repr(given),
        allowed=allowed,
    )


class Stream(Generic[R]):
    """A run that goes on while its events are read. Leaving the loop early ends the run."""

    def __init__(self, job: Job, settings: RunSettings) -> None:
        self._job = job
        self._settings = settings

    def __iter__(self) -> Iterator[Event | Done[R]]:
        feed = Feed()
        run = open_run(self._settings, feed)
        thread = in_thread(self._job, run)
        try:
            yield from feed.follow(feed.unseen())
            threads.wait([thread])
            yield Done(cast(R, run.value), run.usage)
        finally:
            stop_runs([run], "nobody reads the stream any more")

    async def __aiter__(self) -> AsyncIterator[Event | Done[R]]:
        feed = Feed()
        await backend_ready(self._settings)
        run = open_run(self._settings, feed)
        task = asyncio.ensure_future(awaiting(self._job, run))
        try:
            async for event in feed.follow_async(feed.unseen()):
                yield event
            await task
            yield Done(cast(R, run.value), run.usage)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
