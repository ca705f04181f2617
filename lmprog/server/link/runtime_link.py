"""The asyncio end of the wire: one connection, who reads it, and the exchanges that wait for
replies.

A channel that can be watched is read on the event loop. That of a fleet has a reading thread, which
hands whole batches of replies to the loop. Everything else happens on the loop, without locks.

The connection may be replaced at any time: exchanges under way fail, new ones use the new runtime.
Knows messages and numbers; knows no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

from lmprog import wire
from lmprog.errors import LmprogError, RuntimeGone, RuntimeRestarted, from_wire
from lmprog.launch import Connection
from lmprog.server.fairness.accounts import MemoryPool
from lmprog.server.fairness.dispatch import Dispatcher
from lmprog.server.link.exchange import (
    NOBODY,
    Account,
    Answer,
    Exchange,
    RecordKeeper,
    RequestOrigin,
    nobodys,
)
from lmprog.transport import ReplyReader, WatchedChannel

log = logging.getLogger("lmprog.server")

Given = TypeVar("Given")

CLOSE_SECONDS = 0.02
"""A branch on which nothing runs is closed with the next ops, after so long by itself: a message of
its own for each would be a third of what requests send.
"""
_RESTARTED = "The runtime was restarted while it worked on this; send the request again."


class RuntimeSource(Protocol):
    """What can connect to a runtime: `launch.RuntimeProcess`, or a test double."""

    def connect(self, client: str = "") -> Connection: ...


class Observer(Protocol):
    """Sees every generation and selection; must be quick, and never raises."""

    def asked(self, op: wire.Generate | wire.Select, served_name: str) -> None:
        """`served_name`: of the model that is asked; empty: the first."""
        ...

    def replied(self, reply: wire.Reply) -> None:
        """To any call, also to those not seen by `asked`."""
        ...

    def dropped(self, call: int) -> None:
        """No last reply will come: the client left, or the runtime ended."""
        ...


class RuntimeLink:
    """The gateway's way to its runtime. All methods belong to the event loop's thread."""

    def __init__(self, when_lost: Callable[[LmprogError], None] | None = None) -> None:
        """`when_lost` is called once for each connection that ended by itself; its owner then
        brings a new one.
        """
        self.when_lost = when_lost
        self.observer: Observer | None = None
        self.account: Callable[[], Account | None] = lambda: None
        """Whose requests the exchanges of this context are."""
        self.session: Callable[[], str] = lambda: ""
        self.model: Callable[[], tuple[str, str]] = lambda: ("", "")
        """Of the requests of this context: the served name (empty: the first), and the adapter
        (empty: none)."""
        self.origin: Callable[[], RequestOrigin] = lambda: NOBODY
        """Of the request of this context."""
        self.records = RecordKeeper(time.monotonic)
        self.turns: Dispatcher | None = None
        """None: everything is sent at once."""
        self.memory = MemoryPool(128 << 20)
        """Where exchanges count what waits for their readers."""
        self.info: wire.Welcome | None = None
        """What the runtime said about itself; None while there is none."""
        self.models: Mapping[str, wire.Welcome] = {}
        """The same of each model that is served, by its name, `info` first; replaced, never
        changed."""
        self._connection: Connection | None = None
        self._reader: ReplyReader | _LoopReader | None = None
        self._numbers = itertools.count(1)
        self._listeners: dict[int, Exchange] = {}
        self._exchanges: set[Exchange] = set()
        self._closing: list[wire.Op] = []
        """What waits to be sent with others."""
        self._is_closing_due = False
        self._why = "The runtime is starting; try again in a moment."
        self._decided = asyncio.Event()
        """Set while there is a runtime, and once there will be none any more."""
        self._is_waiting_over = False
        self.seconds_until_up: Callable[[], float] = lambda: 1.0
        """An estimate of when there is a runtime again. Its supervisor knows better."""
        self.connections = 0
        """How many there have been."""

    @property
    def is_up(self) -> bool:
        return self._connection is not None

    @property
    def why(self) -> str:
        """Why there is no runtime, while there is none."""
        return self._why

    def replace(self, connection: Connection | None) -> None:
        """From now on this runtime; None: none for now. Exchanges with the old one fail as
        `RuntimeRestarted`.
        """
        self._why = "The runtime is starting again; try again in a moment."
        self._drop(RuntimeRestarted(_RESTARTED))
        self._connection = connection
        if connection is not None:
            self.info = connection.info
            self.models = {connection.info.served_name: connection.info}
            self._decided.set()
            self.connections += 1
            self._reader = self._reading(connection)

    def renew(self, models: Mapping[str, wire.Welcome]) -> None:
        """The runtimes behind the connection have these models now; who has begun goes on with the
        old ones.
        """
        if self._connection is None or _digests(models) == _digests(self.models):
            return
        self.models = models
        self.info = self._connection.info = next(iter(models.values()))

    async def wait_until_up(self, seconds: float) -> None:
        """Returns when there is a runtime, after `seconds`, or when waiting makes no sense."""
        if self.is_up or self._is_waiting_over:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._decided.wait()

    def end_waiting(self) -> None:
        """Nobody waits for a runtime from now on."""
        self._is_waiting_over = True
        self._decided.set()

    def exchange(self, *, is_servers_own: bool = False) -> Exchange:
        """A new one. Raises `RuntimeGone` while there is no runtime. The server's own has no
        account and waits for no turn.
        """
        if self._connection is None:
            raise RuntimeGone(self._why)
        account = None if is_servers_own else self.account()
        record = nobodys() if is_servers_own else self.records.begin(self.origin())
        model = self.model()
        made = Exchange(self, self._connection, account, record, self.session(), model)
        self._exchanges.add(made)
        return made

    def open_exchanges(self) -> Iterator[Exchange]:
        """Those of requests, in the order in which they began."""
        own = (one for one in self._exchanges if one.record.number and one.record.calls)
        yield from sorted(own, key=lambda one: one.record.number)

    def held(self) -> Iterator[tuple[str, str, int]]:
        """Deltas that wait, and results that have come, of all exchanges."""
        return itertools.chain.from_iterable(one.held() for one in self._exchanges)

    def slowest(self, account: str) -> Exchange:
        """That of the account for whose reader most waits."""
        own = (one for one in self._exchanges if one.record.origin.account == account)
        return max(own, key=lambda one: one.queued_bytes)

    async def ask(self, make: Callable[[int], wire.Op], timeout: float = 10.0) -> Answer:
        """One call by itself: `await link.ask(wire.Describe)`. Raises why it failed, `TimeoutError`
        after `timeout`.
        """
        with self.exchange(is_servers_own=True) as exchange:
            exchange.send(make(exchange.call()))
            async with asyncio.timeout(timeout):
                return await exchange.next()

    async def described(self, timeout: float = 10.0) -> wire.Described:
        """The runtime's counters and states, and what accounts have cost."""
        reply = await self.ask(wire.Describe, timeout)
        assert isinstance(reply, wire.Described)
        return reply

    async def figures(self, timeout: float = 10.0) -> dict[str, float]:
        """The runtime's counters and states by name."""
        return (await self.described(timeout)).figures

    def close(self) -> None:
        """Ends the connection; exchanges under way fail."""
        self._why = "The server is stopping."
        self.end_waiting()
        self._drop(RuntimeGone(self._why))

    def restarted(self) -> RuntimeGone:
        """The error of requests whose work was lost with the runtime."""
        if self.when_lost is None:
            return RuntimeGone("The runtime ended while it worked on this.")
        return RuntimeRestarted(_RESTARTED)

    # --- for exchanges ----------------------------------------------------------------------------

    def send(self, connection: Connection, ops: Sequence[wire.Op], served_name: str = "") -> None:
        if self._closing and connection is self._connection:
            closing, self._closing = self._closing, []
            try:
                connection.send([*closing, *ops])
            except LmprogError:  # nothing was sent
                self._closing = closing
                raise
        else:
            connection.send(ops)
        if self.observer is not None:
            for op in ops:
                if isinstance(op, wire.Generate | wire.Select):
                    self.observer.asked(op, served_name)

    def close_branches(
        self, connection: Connection, closing: Sequence[wire.Close], is_urgent: bool
    ) -> None:
        if is_urgent or connection is not self._connection:
            self.send(connection, closing)
            return
        self._closing += closing
        self._close_in_time()

    def _close_in_time(self) -> None:
        if self._closing and not self._is_closing_due:
            self._is_closing_due = True
            asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._send_closing)

    def _send_closing(self) -> None:
        self._is_closing_due = False
        if self._closing and self._connection is not None:
            with contextlib.suppress(LmprogError):  # there is no room, or the runtime has ended
                self.send(self._connection, ())
        self._close_in_time()

    def number(self) -> int:
        return next(self._numbers)

    def listen(self, call: int, exchange: Exchange) -> None:
        self._listeners[call] = exchange

    def unlisten(self, call: int) -> None:
        if self._listeners.pop(call, None) is not None and self.observer is not None:
            self.observer.dropped(call)
        if self.turns is not None:
            self.turns.ended(call)

    def leave(self, exchange: Exchange) -> None:
        self._exchanges.discard(exchange)
        self.records.end(exchange.record)

    # --- replies ----------------------------------------------------------------------------------

    def _reading(self, connection: Connection) -> ReplyReader | _LoopReader:
        loop = asyncio.get_running_loop()
        if connection.watched is not None:
            take, lose = partial(self._deliver, connection), partial(self._lose, connection)
            return _LoopReader(connection.watched, loop, take, lose)
        return ReplyReader(
            connection.delivering or connection,
            lambda replies: _on(loop, self._deliver, connection, replies),
            lambda error: _on(loop, self._lose, connection, error),
            name="lmprog-link",
        )

    def _deliver(self, connection: Connection, replies: list[wire.Reply]) -> None:
        if connection is not self._connection:
            return
        for reply in replies:
            if isinstance(reply, wire.Welcome):
                continue
            if reply.call is None:
                assert isinstance(reply, wire.Failed)
                self._lose(connection, from_wire(reply.code, reply.message, reply.details))
                return
            if self.observer is not None:
                self.observer.replied(reply)
            ended = not isinstance(reply, wire.Delta)
            listener = (
                self._listeners.pop(reply.call, None) if ended else self._listeners.get(reply.call)
            )
            if listener is not None:
                listener.take(reply)
            if ended and self.turns is not None:
                self.turns.ended(reply.call)

    def _lose(self, connection: Connection, error: LmprogError) -> None:
        if connection is not self._connection:
            return
        self._why = "The runtime ended and is not back yet; try again in a moment."
        log.error("the connection to the runtime is lost: %s", error)
        self._drop(self.restarted())
        if self.when_lost is not None:
            self.when_lost(error)

    def _drop(self, error: LmprogError) -> None:
        """No connection from here on; the reading thread closes the old one."""
        connection, self._connection = self._connection, None
        self.info = None
        self.models = {}
        self._closing = []
        if self._reader is not None:
            self._reader.stop()
        if not self._is_waiting_over:
            self._decided.clear()
        exchanges, self._exchanges = self._exchanges, set()
        if self.observer is not None:
            for call in self._listeners:
                self.observer.dropped(call)
        self._listeners.clear()
        if self.turns is not None:
            self.turns.clear()
        for exchange in exchanges:
            exchange.fail(error)
            self.records.end(exchange.record)
        if connection is not None:
            threading.Thread(target=connection.close, name="lmprog-link-close", daemon=True).start()


def _digests(models: Mapping[str, wire.Welcome]) -> list[tuple[str, str]]:
    return [(name, info.digest) for name, info in models.items()]


class _LoopReader:
    """Reads a channel on the event loop: a thread would have to be woken to send and to receive,
    and would then wake the loop.
    """

    def __init__(
        self,
        channel: WatchedChannel,
        loop: asyncio.AbstractEventLoop,
        take: Callable[[list[wire.Reply]], None],
        lose: Callable[[LmprogError], None],
    ) -> None:
        """`take` and `lose` as for `ReplyReader`."""
        self._channel = channel
        self._loop = loop
        self._take = take
        self._lose = lose
        self._is_due = self._has_stopped = False
        channel.watch(loop, self._look)
        self._look()  # something may have come before

    def stop(self) -> None:
        """From now on the channel is its owner's again. Safe to repeat."""
        if not self._has_stopped:
            self._has_stopped = True
            self._channel.unwatch(self._loop)

    def _look(self) -> None:
        """Reads when what is due now is done: all that requests send in one turn is one look."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        self._is_due = False
        if self._has_stopped:
            return
        try:
            replies = self._channel.receive(0.0)
        except LmprogError as error:
            self.stop()
            self._lose(error)
        else:
            if replies:
                self._take(replies)


def _on(
    loop: asyncio.AbstractEventLoop,
    action: Callable[[Connection, Given], None],
    of: Connection,
    given: Given,
) -> None:
    """Runs `action(of, given)` on the loop; nothing happens when that is closed already."""
    try:
        loop.call_soon_threadsafe(action, of, given)
    except RuntimeError:
        if not loop.is_closed():
            raise
