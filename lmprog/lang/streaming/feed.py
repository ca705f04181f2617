"""What a streaming run shows while it runs: its events in order, and a wake-up for everybody who
follows.

Written by the program's thread and the receiving thread, read by any number of followers, in
threads or on event loops. Knows neither programs nor branches.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from lmprog import wire
from lmprog.backends.client import wake
from lmprog.lang.streaming import branch_name

if TYPE_CHECKING:
    from lmprog.lang.streaming.partial import Partial

R = TypeVar("R")


class BranchEvent:
    """An event of one branch."""

    __slots__ = ()
    path: tuple[int, ...]

    @property
    def branch(self) -> str:
        """The branch's name: "root", or "fork0[2]" for the path (0, 2)."""
        return branch_name(self.path)


@dataclass(frozen=True, slots=True)
class Text(BranchEvent):
    """More text of a generation; `var` is its name, None for one without."""

    var: str | None
    delta: str
    path: tuple[int, ...] = ()
    """The branch: () is the program's own; (0, 2) is branch 2 of its first fork, and so on."""


@dataclass(frozen=True, slots=True)
class Thought(BranchEvent):
    """More reasoning of a generation whose reasoning is separated from its answer."""

    var: str | None
    delta: str
    path: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Value(BranchEvent):
    """A generation or selection is done, and this is its value."""

    var: str | None
    value: object
    path: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AskedAgain(BranchEvent):
    """What a generation has given does not validate, for the reason `error`, and it is asked again:
    the texts that come now are another attempt.
    """

    var: str | None
    error: str
    path: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Called(BranchEvent):
    """A tool that the model called in `s.act(...)` has run: `result` is what the model is shown.
    `var` is the name of the act.
    """

    var: str | None
    tool: str
    arguments: Mapping[str, Any]
    result: str
    path: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Done(Generic[R]):
    """The program has returned `value`. Always the last event."""

    value: R
    usage: wire.Usage


Event: TypeAlias = "Text | Thought | Partial | Value | AskedAgain | Called"


class Feed:
    """Events so far, and who waits for more. `changed` may be called by anybody whose state
    followers look at.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ended = False
        self._condition = threading.Condition()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._version = 0
        self._reported: set[int] = set()  # calls whose value is among the events

    def add(self, event: Event) -> None:
        """The next event."""
        with self._condition:
            self.events.append(event)
        self.changed()

    def value(self, event: Value, call: int) -> None:
        """The value of a call, by its identity: the first time it is told."""
        with self._condition:
            if call in self._reported:
                return
            self._reported.add(call)
        self.add(event)

    def unseen(self) -> Callable[[], Iterator[Event]]:
        """A reader of the events: what it has not given yet, each time it is called."""
        position = 0

        def more() -> Iterator[Event]:
            nonlocal position
            while position < len(self.events):
                position += 1
                yield self.events[position - 1]

        return more

    def end(self) -> None:
        """No more events."""
        self.ended = True
        self.changed()

    def changed(self) -> None:
        """Wakes all followers."""
        with self._condition:
            self._version += 1
            waiters, self._waiters = self._waiters, []
            self._condition.notify_all()
        for loop, waiter in waiters:
            wake(loop, waiter)

    def follow(self, more: Callable[[], Iterator[R]]) -> Iterator[R]:
        """What `more` gives, asked again after every change, until the end. Blocks between."""
        while True:
            version, ended = self._version, self.ended
            yield from more()
            if ended:
                return
            with self._condition:
                self._condition.wait_for(lambda seen=version: self._version != seen)  # type: ignore[misc]

    async def follow_async(self, more: Callable[[], Iterator[R]]) -> AsyncIterator[R]:
        """The same without blocking the thread."""
        while True:
            version, ended = self._version, self.ended
            for item in more():
                yield item
            if ended:
                return
            await self._change(version)

    async def _change(self, seen: int) -> None:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        with self._condition:
            if self._version != seen:
                return
            self._waiters.append((loop, waiter))
        await waiter
