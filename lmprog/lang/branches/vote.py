"""One of several: the majority among values or pending results, the first of pending results that
is there.

Pending results are put into a *contest* that the runtime decides by itself: as soon as nobody who
still runs can change who wins, the others are cancelled, in the same step. A backend that knows no
contests leaves it to `Contested`, which comes to the same decision from the results as they arrive,
and cancels then.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from typing import Generic, TypeVar, cast, overload

from lmprog import wire
from lmprog.backends.client import running_loop, wake
from lmprog.backends.majority import majority
from lmprog.errors import LmprogError, ProgramError
from lmprog.lang.branches.gen import Gen
from lmprog.lang.branches.pending_call import ContestRecord

T = TypeVar("T")


class Contested(Generic[T]):
    """The winner of several pending results: `await` it for the value, or read `.value`, which
    blocks.

    A result that fails takes no part; when all have failed, the first failure is raised. The
    others' branches can only be closed afterwards, as leaving their fork does.
    """

    def __init__(self, gens: Sequence[Gen[T]], rule: wire.ContestRule) -> None:
        if not gens:
            raise ProgramError("there is nothing to choose from")
        self._gens = list(gens)
        self._rule = rule
        self._lock = threading.Lock()
        self._order: list[int] = []
        self._decided = threading.Event()
        self._won: int | None = None
        self._waiters: list[Callable[[], None]] = []
        run = self._gens[0].run
        if any(gen.run.client is not run.client for gen in self._gens):
            raise ProgramError("results of different backends cannot contest; await them first")
        self._record = ContestRecord(rule, tuple(gen.call.id for gen in self._gens))
        run.contests.append(self._record)
        self._key = f"{self._gens[0].key}>{rule}"  # a call is in one contest
        self._known = run.record.needed().winner(self._key)
        for index, gen in enumerate(self._gens):
            gen.call.when_done(lambda index=index: self._ended(index))  # type: ignore[misc]
        if not self._decided.is_set():
            run.client.post(wire.Contest(self._record.calls, rule))
            run.client.hurry()

    def _ended(self, index: int) -> None:
        """One result is there, or never will be; on the receiving thread."""
        with self._lock:
            self._order.append(index)
            if self._decided.is_set():
                return
            self._won = self._place()
            if self._won is None and len(self._order) < len(self._gens):
                return
            if self._won is not None:
                self._record.won = self._record.calls[self._won]
                lost = [gen.key for gen in self._gens if not gen.call.done()]
                self._gens[0].run.record.needed().keep_winner(self._key, self._won, lost)
            self._decided.set()
            waiters, self._waiters = self._waiters, []
        for gen in self._gens:
            gen.was_read = True
        for gen in self._gens:
            if not gen.done():
                gen.cancel()
        for wake_up in waiters:
            wake_up()

    def _place(self) -> int | None:
        """Which of the results wins, or won before the run was resumed; None as long as that is
        open, or where all failed.
        """
        there = {
            index: self._gens[index] for index in self._order if self._gens[index].failure() is None
        }
        if self._known is not None:
            return self._known if self._known in there else None
        if self._rule == "first":
            return next(iter(there), None)
        return majority(
            {index: gen.compared_text() for index, gen in there.items()},
            len(self._gens) - len(self._order),
        )

    def done(self) -> bool:
        """Whether reading would not wait."""
        return self._decided.is_set()

    @property
    def winner(self) -> Gen[T]:
        """The result that has won; blocks. Raises why there is none."""
        if not self.done():
            if running_loop() is not None:
                raise ProgramError(
                    "waiting for the contest here would stop the event loop; write `await` "
                    "before it"
                )
            self._gens[0].run.client.flush()
            self._decided.wait()
        return self._winner()

    @property
    def value(self) -> T:
        """The winner's value; blocks."""
        return self.winner.value

    def __await__(self) -> Generator[object, None, T]:
        yield from self.arrive().__await__()
        return self._winner().value

    @property
    def place(self) -> int | None:
        """Which of the results has won; None where none has, or as long as that is open."""
        return self._won

    @property
    def failure(self) -> LmprogError | None:
        """Why there is no winner; None where there is one, or as long as that is open."""
        return (
            self._gens[self._order[0]].error_at_site()
            if self.done() and self._won is None
            else None
        )

    async def arrive(self) -> None:
        """Waits until it is decided; who stops waiting cancels the results."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self._decided.is_set():
                return
            self._waiters.append(lambda: wake(loop, waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            for gen in self._gens:
                gen.was_read = True
                gen.cancel()
            raise

    def _winner(self) -> Gen[T]:
        failure = self.failure
        if failure is not None:
            raise failure
        assert self._won is not None
        return self._gens[self._won]


def race(*gens: Gen[T]) -> Contested[T]:
    """The first of these pending results that is there, of any branches; the others are cancelled
    in the same step.
    """
    return Contested(gens, "first")


@overload
def vote(values: Iterable[Gen[T]]) -> Contested[T]: ...
@overload
def vote(values: Iterable[T], key: Callable[[T], Hashable] | None = None) -> T: ...
def vote(values: Iterable[object], key: Callable[[T], Hashable] | None = None) -> object:
    """The first of the values that most agree with; `key` says what agreeing means. Ties go to the
    earliest.

    Pending results are voted on by their texts (white space around them makes no difference, nor
    how JSON is written), and those that can no longer change the majority are cancelled:
    `await lmprog.vote([b.gen(int) for b in branches])`.
    """
    found = list(values)
    if found and all(isinstance(value, Gen) for value in found):
        if key is not None:
            raise ProgramError(
                "pending results are compared by their texts; await them first to vote by a key"
            )
        return Contested(cast("list[Gen[T]]", found), "majority")
    keys = {i: _hashable(v) if key is None else key(cast(T, v)) for i, v in enumerate(found)}
    place = majority(keys, 0)
    if place is None:
        raise ProgramError("there is nothing to vote on")
    return found[place]


def _hashable(value: object) -> Hashable:
    """What equal values have in common: a value that has no hash (a model, a list) is compared by
    its type and contents.
    """
    try:
        hash(value)
    except TypeError:
        pass
    else:
        return value
    from lmprog.lang.ops.type_values import as_json_data

    try:
        return type(value), json.dumps(as_json_data(value), sort_keys=True)
    except TypeError as error:
        raise ProgramError(f"these values cannot be compared ({error}); give vote a key=") from None
