"""A fork's branches together: structured concurrency over them, and SGLang's group spelling.

Leaving the `with` joins: it waits for the branches' calls, raises what failed unread, and closes the branches. When
one branch fails, its siblings are cancelled, which frees what they held. One failure is raised as it is, several as
an `ExceptionGroup`. This module does not know how a branch talks to the runtime.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, overload

from lmprog.errors import Cancelled, DeadlineExceeded, InvalidParameter, ProgramError
from lmprog.lang.client import running_loop
from lmprog.lang.values import Gen
from lmprog.lang.variables import Gathered, settle

if TYPE_CHECKING:
    from lmprog.lang.state import Branch

T = TypeVar("T")
OnError = Literal["raise", "keep"]
MAX_THREADS = 32  # of one `map` in a plain program


def raise_together(errors: Sequence[Exception]) -> None:
    """Raises what is there: nothing, one error as it is, or several as a group. Cancelled siblings are no causes."""
    causes = [error for error in errors if not isinstance(error, Cancelled)] or list(errors[:1])
    # a budget that is over ends many calls, and is one cause
    once = {error.message if isinstance(error, DeadlineExceeded) else id(error): error for error in reversed(causes)}
    causes = list(reversed(once.values()))
    if len(causes) == 1:
        raise causes[0]
    if causes:
        raise ExceptionGroup(f"{len(causes)} branches failed", causes)


class Branches(Sequence["Branch"]):
    """The children of one fork. With `on_error="keep"` failures are results like others and nothing is cancelled."""

    def __init__(self, parent: Branch, children: list[Branch], on_error: OnError = "raise") -> None:
        if on_error not in ("raise", "keep"):
            allowed = "'raise' or 'keep'"
            message = f"on_error={on_error!r} is not allowed; give {allowed}"
            raise InvalidParameter(message, name="on_error", value=on_error, allowed=allowed)
        self._parent = parent
        self._children = children
        self._on_error: OnError = on_error
        self._mapped: list[Mapped[Any]] = []

    @overload
    def __getitem__(self, index: int) -> Branch: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Branch]: ...
    def __getitem__(self, index: int | slice) -> Branch | Sequence[Branch]:
        return self._children[index]

    def __setitem__(self, index: int, child: Branch) -> None:
        """What `branches[0] += ...` ends with. Raises for a branch that does not stand there."""
        if self._children[index] is not child:
            raise ProgramError("the branches of a fork cannot be replaced")

    def __len__(self) -> int:
        return len(self._children)

    def __iter__(self) -> Iterator[Branch]:
        return iter(self._children)

    def map(self, function: Callable[[Branch], Awaitable[T]]) -> Mapped[T]:
        """Runs `function` on every branch at once; `await` the result, or read its `.value`, for the list of values.

        `function` is a coroutine function, or one that gives a pending result: `lambda b: b.gen()`.
        """
        return self._start(function)

    def each(self, function: Callable[[Branch], T]) -> Mapped[T]:
        """The same for a plain function, which may read values: in a plain program each branch has a thread."""
        return self._start(function)

    def _start(self, function: Callable[[Branch], Any]) -> Mapped[Any]:
        mapped: Mapped[Any] = Mapped(self, function, keep=self._on_error == "keep")
        self._mapped.append(mapped)
        self._parent.cursor.scope.mapped.append(mapped)
        return mapped

    def __iadd__(self, content: object) -> Branches:
        """Appends to every branch: the same content, or what a list or a function of the index says for each."""
        if isinstance(content, list | tuple) and len(content) != len(self._children):
            raise ProgramError(f"{len(content)} contents cannot be appended to {len(self._children)} branches")
        with self._parent.cursor.scope.client.together():
            for index, child in enumerate(self._children):
                if isinstance(content, list | tuple):
                    child.append(content[index])
                else:
                    child.append(content(index) if callable(content) else content)
        return self

    def join(self, mode: str = "gather_variable") -> None:
        """Ends the fork without waiting for it.

        "gather_variable": each name that the children set becomes, in the parent, the list of their values.
        "concate_and_append": the parent appends what each child gained, in order.
        """
        cursors = [child.cursor for child in self._children]
        if mode == "gather_variable":
            names = dict.fromkeys(name for cursor in cursors for name in sorted(cursor.own_names))
            for name in names:
                parts = tuple(cursor.names[name] for cursor in cursors if name in cursor.own_names)
                self._parent.cursor.name(name, Gathered(parts))
        elif mode == "concate_and_append":
            for cursor in cursors:
                self._parent.cursor.put_gained(cursor)
        else:
            allowed = "'gather_variable' or 'concate_and_append'"
            raise InvalidParameter(
                f"there is no join mode {mode!r}; there are {allowed}", name="mode", value=mode, allowed=allowed
            )
        with self._parent.cursor.scope.client.together():
            for cursor in cursors:
                cursor.close_when_done()

    # --- ends ---------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Closes the branches: their calls and whatever else is asked of them end with `Cancelled`."""
        self._close(cancelled=True)

    def _close(self, *, cancelled: bool) -> None:
        for child in self._children:
            for gen in child.cursor.gens:
                gen.was_read = gen.was_read or not gen.done()
            child.cursor.close(cancelled=cancelled)
        self._parent.cursor.scope.client.hurry()

    def _failed(self) -> list[Exception]:
        """The failures in the branches that nobody has read yet."""
        gens = [gen for child in self._children for gen in child.cursor.gens]
        unread = [gen for gen in gens if not gen.was_read and gen.failure() is not None]
        first = {id(gen.root()): gen for gen in reversed(unread)}  # a branch's later failures have the same root
        if self._on_error == "keep":
            for gen in unread:
                gen.was_read = True
            return []
        return [gen.error_at_site() for gen in reversed(first.values())]

    def _check_budget(self) -> None:
        """Also a fork that got all its results may have taken more than it was given."""
        if self._on_error == "raise":
            self._children[0].cursor.budget.check()

    def _gens(self) -> list[Gen[Any]]:
        return [gen for child in self._children for gen in child.cursor.gens]

    def __enter__(self) -> Branches:
        if running_loop() is not None:
            raise ProgramError("inside an async program, write `async with s.fork(...)`")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                raise_together([failure for mapped in self._mapped for failure in mapped.finish()])
                for gen in self._gens():
                    gen.wait()
                raise_together(self._failed())
                self._check_budget()
        finally:
            self._close(cancelled=error is not None)

    async def __aenter__(self) -> Branches:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                raise_together([failure for mapped in self._mapped for failure in await mapped.finish_async()])
                await settle(self._gens())
                raise_together(self._failed())
                self._check_budget()
        finally:
            self._close(cancelled=error is not None)
            await asyncio.gather(*(mapped.abandon() for mapped in self._mapped))


class Mapped(Generic[T]):
    """The values that a function gives on each branch: `await` for the list, or `.value`, which blocks."""

    def __init__(self, branches: Branches, each: Callable[[Branch], Any], *, keep: bool) -> None:
        self._branches = branches
        self._keep = keep
        self._was_read = False
        self._tasks: list[asyncio.Task[Any]] = []
        self._threads: list[Future[Any]] = []
        if running_loop() is not None:
            self._tasks = [asyncio.ensure_future(_run_one(each, child)) for child in branches]
        else:
            pool = ThreadPoolExecutor(min(len(branches), MAX_THREADS), thread_name_prefix="lmprog-branch")
            for child in branches:
                self._threads.append(pool.submit(contextvars.copy_context().run, _run_blocking, each, child))
            pool.shutdown(wait=False)

    @property
    def value(self) -> list[T]:
        """The values in the branches' order; blocks. Raises what failed."""
        if self._tasks:
            raise ProgramError("write `await` before the map: waiting for it here would stop the event loop")
        raise_together(self.finish())
        return [cast(T, _outcome(thread)) for thread in self._threads]

    def __await__(self) -> Generator[Any, None, list[T]]:
        raise_together((yield from self.finish_async().__await__()))
        return [cast(T, _outcome(task)) for task in self._tasks]

    def finish(self) -> list[Exception]:
        """Waits for the threads; the first failure cancels the other branches. What failed, unless that was told."""
        wait(self._threads, return_when="ALL_COMPLETED" if self._keep else FIRST_EXCEPTION)
        if not self._keep and any(thread.done() and thread.exception() for thread in self._threads):
            self._branches.cancel()
        wait(self._threads)
        return self._failures(self._threads)

    async def finish_async(self) -> list[Exception]:
        """The same for tasks."""
        if self._tasks:
            try:
                await asyncio.wait(self._tasks, return_when="ALL_COMPLETED" if self._keep else FIRST_EXCEPTION)
            except asyncio.CancelledError:
                await self.abandon()
                raise
            if not self._keep and any(_error(task) is not None for task in self._tasks if task.done()):
                await self.abandon()
                self._branches.cancel()
        return self._failures(self._tasks)

    async def abandon(self) -> None:
        """Cancels the tasks that still run, and waits until they have ended."""
        pending = [task for task in self._tasks if not task.done()]
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending)
        for task in self._tasks:
            _error(task)  # retrieved: asyncio has nothing to complain about

    def _failures(self, runs: Sequence[Future[Any] | asyncio.Task[Any]]) -> list[Exception]:
        was_read, self._was_read = self._was_read, True
        if self._keep or was_read:
            return []
        return [error for run in runs if (error := _error(run)) is not None]


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


async def _run_one(each: Callable[[Branch], Any], child: Branch) -> Any:
    found = each(child)
    return await found if isinstance(found, Awaitable) else found


def _run_blocking(each: Callable[[Branch], Any], child: Branch) -> Any:
    found = each(child)
    if isinstance(found, Coroutine):
        found.close()
        raise ProgramError("a plain program cannot map a coroutine function; make the program `async def`")
    return found.value if isinstance(found, Gen) else found
