"""A branch as programs see it, and the branches of a fork together.

`s.gen(...)` and `s.select(...)` return results that are awaited or read; `s += lmprog.gen("x")` and
`s["x"]` do the same by name. Nothing here waits except where a value is read. Knows no tokens and
no wire.

Leaving a fork's `with` joins: it waits for the branches' calls, raises what failed unread, and
closes the branches. When one branch fails, its siblings are cancelled, which frees what they held.
One failure is raised as it is, several as an `ExceptionGroup`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from lmprog.backends.client import running_loop
from lmprog.errors import InvalidParameter, ProgramError, not_allowed
from lmprog.lang.branches.branch_contents import BranchContents, ForkOptions
from lmprog.lang.branches.gen import Gathered, Gen, settle
from lmprog.lang.branches.mapped import BranchRace, Mapped
from lmprog.lang.branches.pending_call import raise_together, unread_failures

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from lmprog.lang.branches.slots import Format

T = TypeVar("T")
OnError = Literal["raise", "keep"]


class Branch(BranchContents):
    """One growing text of a program."""

    def fork(
        self, size: int = 1, *, on_error: OnError = "raise", **options: Unpack[ForkOptions]
    ) -> Branches:
        """`size` branches that go on from here; use it with `with` or `async with`, which joins and
        frees them.

        `timeout` (seconds) and `max_total_tokens` limit what the calls of these branches take
        together.
        """
        if not isinstance(size, int) or not 1 <= size <= 4096:
            raise not_allowed("size", size, "1 <= size <= 4096")
        settings = self._settings_for(options, "fork")
        children = self.cursor.fork(size, settings.budget)
        return Branches(self, [Branch(child, settings) for child in children], on_error)

    @contextmanager
    def copy(self, **options: Unpack[ForkOptions]) -> Iterator[Branch]:
        """One branch that goes on from here, closed at the end of the `with`; options as for
        `fork`.
        """
        settings = self._settings_for(options, "copy")
        [child] = self.cursor.fork(1, settings.budget)
        try:
            yield Branch(child, settings)
            # also a copy that got all its results may have taken more than it was given
            settings.budget.check()
        finally:
            child.close_when_done()

    def examples(
        self, name: str, *, format: Format, answer: str = "", like: str | None = None
    ) -> None:
        """A slot for demonstrations: appends those that a tuned program has, each as `format` shows
        it, a text with `{columns}` or a function of the row that gives what is appended. Untuned it
        appends nothing.

        `answer`: the column with the answer; where the program has answered a row itself, that is
        put there. `like`: the question of this run, where the most similar ones may be shown.
        """
        from lmprog.lang.branches import slots

        slot = slots.examples_slot(name, format, answer, is_searched=like is not None)
        filling = self.cursor.scope.filling(slot)
        if filling is None:
            return
        rows = list(filling.rows)
        if filling.nearest is not None and like is not None:
            rows = slots.nearest(rows, like, filling.nearest)
        for row in rows:
            self.append(slots.shown(format, row))

    def instruction(self, name: str, default: str) -> None:
        """A slot for an instruction: appends that of a tuned program, else `default`."""
        from lmprog.lang.branches import slots

        filling = self.cursor.scope.filling(slots.Slot(name, "instruction", default))
        tuned = None if filling is None else filling.text
        self.append(default if tuned is None else tuned)


class Raced(BranchRace[T, Branch]):
    """The race of a function on the branches of a fork."""


class Branches(Sequence[Branch]):
    """The children of one fork. With `on_error="keep"` failures are results like others and nothing
    is cancelled.
    """

    def __init__(self, parent: Branch, children: list[Branch], on_error: OnError = "raise") -> None:
        if on_error not in ("raise", "keep"):
            raise not_allowed("on_error", on_error, "'raise' or 'keep'")
        self._parent = parent
        self._children = children
        self._on_error: OnError = on_error
        self._mapped: list[Mapped[Any] | Raced[Any]] = []

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
        """Runs `function` on every branch at once; `await` the result, or read its `.value`, for
        the list of values.

        `function` is a coroutine function, or one that gives a pending result: `lambda b: b.gen()`.
        """
        return self._start(function)

    def each(self, function: Callable[[Branch], T]) -> Mapped[T]:
        """The same for a plain function, which may read values: in a plain program each branch has
        a thread.
        """
        return self._start(function)

    @overload
    def race(self, function: Callable[[Branch], Gen[T]]) -> Raced[T]: ...
    @overload
    def race(self, function: Callable[[Branch], Coroutine[Any, Any, T]]) -> Raced[T]: ...
    @overload
    def race(self, function: Callable[[Branch], T]) -> Raced[T]: ...
    def race(self, function: Callable[[Branch], Any]) -> Raced[Any]:
        """Runs `function` on every branch at once, until it has ended well on one: the others are
        cancelled, and what they held is freed. `await` the result, or read its `.value`; its
        `.branch` is the one that has won.
        """
        raced: Raced[Any] = Raced(self, function)
        self._ends_with_us(raced)
        return raced

    def _start(self, function: Callable[[Branch], Any]) -> Mapped[Any]:
        mapped: Mapped[Any] = Mapped(self, function, keep=self._on_error == "keep")
        self._ends_with_us(mapped)
        return mapped

    def _ends_with_us(self, mapped: Mapped[Any] | Raced[Any]) -> None:
        self._mapped.append(mapped)
        self._parent.cursor.scope.tasks.append(mapped)

    def __iadd__(self, content: object) -> Branches:
        """Appends to every branch: the same content, or what a list or a function of the index says
        for each.
        """
        if isinstance(content, list | tuple) and len(content) != len(self._children):
            raise ProgramError(
                f"{len(content)} contents cannot be appended to {len(self._children)} branches"
            )
        with self._parent.cursor.scope.client.together():
            for index, child in enumerate(self._children):
                if isinstance(content, list | tuple):
                    child.append(content[index])
                else:
                    child.append(content(index) if callable(content) else content)
        return self

    def join(self, mode: str = "gather_variable") -> None:
        """Ends the fork without waiting for it.

        "gather_variable": each name that the children set becomes, in the parent, the list of their
        values. "concate_and_append": the parent appends what each child gained, in order.
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
                f"there is no join mode {mode!r}; there are {allowed}",
                name="mode",
                value=mode,
                allowed=allowed,
            )
        with self._parent.cursor.scope.client.together():
            for cursor in cursors:
                cursor.close_when_done()

    # --- ends

    def cancel(self) -> None:
        """Closes the branches: their calls and whatever else is asked of them end with
        `Cancelled`.
        """
        self._close(self._children, cancelled=True)

    def known_winner(self) -> int | None:
        """The index of the branch that won this race before the run was resumed; None if there was
        none.
        """
        return self._parent.cursor.scope.record.needed().winner(self._race_key)

    def tell_winner(self, place: int) -> None:
        """Who has won it, for a checkpoint."""
        keys = [child.cursor.key for child in self._children]
        lost = [f"{key}{end}" for at, key in enumerate(keys) if at != place for end in "#."]
        self._parent.cursor.scope.record.needed().keep_winner(self._race_key, place, lost)

    @property
    def _race_key(self) -> str:
        return f"{self._children[0].cursor.key}>race"

    def drop(self, losers: Sequence[Branch], *, forget: bool = False) -> None:
        """Cancels those of the branches that nobody needs any more, whatever has become of them;
        with `forget` what only they computed leaves the cache at once.
        """
        self._close(losers, cancelled=True, forget=forget)
        for gen in (gen for child in losers for gen in child.cursor.gens):
            gen.was_read = True

    def _close(self, children: Iterable[Branch], *, cancelled: bool, forget: bool = False) -> None:
        for child in children:
            for gen in child.cursor.gens:
                gen.was_read = gen.was_read or not gen.done()
            child.cursor.close(cancelled=cancelled, forget=forget)
        self._parent.cursor.scope.client.hurry()

    def _failed(self) -> list[Exception]:
        """The failures in the branches that nobody has read yet."""
        gens = self._gens()
        if self._on_error == "keep":
            for gen in gens:
                gen.was_read = gen.was_read or gen.failure() is not None
            return []
        return unread_failures(gens)

    def _check_budget(self) -> None:
        """Raises if the fork has used more than its budget, even where all results have arrived."""
        if self._on_error == "raise":
            self._children[0].cursor.budget.check()

    def _gens(self) -> list[Gen[Any]]:
        return [gen for child in self._children for gen in child.cursor.gens]

    def __enter__(self) -> Branches:
        if running_loop() is not None:
            raise ProgramError("inside an async program, write `async with s.fork(...)`")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                raise_together([failure for mapped in self._mapped for failure in mapped.finish()])
                for gen in self._gens():
                    gen.wait()
                raise_together(self._failed())
                self._check_budget()
        finally:
            for mapped in self._mapped:
                mapped.stop()  # where all went well, nothing waits
            self._close(self._children, cancelled=error is not None)

    async def __aenter__(self) -> Branches:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                raise_together(
                    [failure for mapped in self._mapped for failure in await mapped.finish_async()]
                )
                await settle(self._gens())
                raise_together(self._failed())
                self._check_budget()
        finally:
            self._close(self._children, cancelled=error is not None)
            await asyncio.gather(*(mapped.abandon() for mapped in self._mapped))
