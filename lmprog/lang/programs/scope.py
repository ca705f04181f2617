"""One run of a program: the client it talks through, its settings, everything it asked for, what
must be freed.

A scope is made for each run (nested runs have a parent) and is current, by a context variable,
while its program's code runs; that is how a nested call finds its backend and how a pending
generation knows that it is formatted inside a program. Closing a scope closes all its branches,
which frees what they held and cancels what they waited for.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from lmprog import wire
from lmprog.errors import Cancelled, LmprogError
from lmprog.lang.client import Client
from lmprog.lang.ops.sampling import Sampling
from lmprog.lang.programs.budget import Budget

if TYPE_CHECKING:
    from lmprog.backends import Backend
    from lmprog.lang.branches.cursor import Cursor
    from lmprog.lang.branches.mapped import Mapped, Raced
    from lmprog.lang.branches.results_of_calls import Gen
    from lmprog.lang.branches.vote import Contested
    from lmprog.lang.streaming.feed import Feed

current: ContextVar[Scope | None] = ContextVar("lmprog_scope", default=None)


class Scope:
    """Owns the branches of one run."""

    def __init__(
        self,
        backend: Backend,
        sampling: Sampling,
        *,
        parent: Scope | None = None,
        budget: Budget | None = None,
        salt: str = "",
        feed: Feed | None = None,
    ) -> None:
        self.backend = backend
        self.client: Client = backend.client
        self.sampling = sampling
        self.salt = salt
        self.feed = feed
        self.num_api_spec_tokens = 0  # what a request to a black-box API may say for later calls
        given = sampling.given().get("seed")
        self.seed: int = (
            secrets.randbits(62) if given is None else given
        )  # every run can be done again
        self.posted: list[
            wire.Op
        ] = []  # what makes branches and calls, in an order in which it can be sent again
        self.gens: list[Gen[Any]] = []
        self.nested: set[Scope] = set()  # that still run
        self.mapped: list[
            Mapped[Any] | Raced[Any]
        ] = []  # what runs on branches; nobody of it outlives the run
        self.contests: list[Contested[Any]] = []
        self.marked: dict[int, Gen[Any]] = {}  # by call: what a mark in a string may point at
        self._open: dict[int, Cursor] = {}
        self._lock = threading.Lock()
        self.posting = (
            threading.RLock()
        )  # a branch is not closed between looking at it and posting a reference to it
        self.ended: LmprogError | None = None
        self.stop: Callable[[], None] | None = None  # ends what the run's coroutine waits for
        self.budget: Budget = (
            Budget(None if parent is None else parent.budget) if budget is None else budget
        )
        self._spent = wire.Usage()  # by nested runs that are over
        self._parent = parent
        if parent is not None:
            parent.nested.add(self)
            if parent.client is self.client:
                self.marked = parent.marked

    def post(self, op: wire.Op) -> None:
        """Posts an op of one of the branches, and remembers it."""
        self.posted.append(op)
        self.client.post(op)

    def enter(self, cursor: Cursor) -> None:
        """A new branch of this run. Raises when the run has been ended from outside."""
        self.check()
        with self._lock:
            self._open[cursor.id] = cursor

    def leave(self, cursor: Cursor) -> None:
        with self._lock:
            self._open.pop(cursor.id, None)

    def check(self) -> None:
        """Raises when the run has been ended from outside, so that a program in a thread stops at
        its next op.
        """
        if self.ended is not None:
            raise type(self.ended)(self.ended.message)

    def show(self) -> None:
        """Wakes those who follow a streaming run."""
        if self.feed is not None:
            self.feed.changed()

    def close(self) -> None:
        """Closes every branch that is still open, and sends that."""
        with self._lock:
            cursors = list(self._open.values())
        for cursor in reversed(cursors):
            cursor.close()
        self.client.hurry()

    def cancel(self, error: LmprogError | None = None) -> None:
        """Ends the run from outside: every read and every further op raises."""
        self.ended = self.ended or error or Cancelled("the run was cancelled")
        for nested in list(self.nested):
            nested.cancel(self.ended)
        self.close()
        stop = self.stop
        if stop is not None:
            stop()

    def usage(self) -> wire.Usage:
        """The work of all calls that are done, those of nested runs included."""
        own = (gen.usage for gen in self.gens)
        nested = [scope.usage() for scope in list(self.nested)]
        return total((self._spent, *(usage for usage in own if usage is not None), *nested))

    def over(self) -> None:
        """The run has ended: the run that it is part of keeps of it what it has used."""
        parent = self._parent
        if parent is not None and self in parent.nested:
            with parent._lock:
                parent._spent = total((parent._spent, self.usage()))
                parent.nested.discard(self)

    def unread_failures(self) -> list[Gen[Any]]:
        """Calls that failed without anybody having been told."""
        return [gen for gen in self.gens if not gen.was_read and gen.failure() is not None]


def total(usages: Iterable[wire.Usage]) -> wire.Usage:
    """The sum, field by field."""
    sums: dict[str, Any] = dict.fromkeys(wire.Usage.__struct_fields__, 0)
    for usage in usages:
        for name in sums:
            sums[name] += getattr(usage, name)
    return wire.Usage(**sums)
