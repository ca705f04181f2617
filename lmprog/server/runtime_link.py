"""The asyncio end of the wire: one connection, one reading thread, and the exchanges that wait for
replies.

A request opens an `Exchange`, sends its ops in one frame, and takes replies from it as they come;
leaving the exchange closes its branches, which cancels what still runs and frees its pages. The
reading thread hands whole batches of replies to the event loop; everything else happens on the
loop, without locks.

The connection may be replaced at any time: exchanges under way fail, new ones use the new runtime.
Knows messages and numbers; knows no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self, TypeAlias, TypeVar

from lmprog import wire
from lmprog.errors import LmprogError, ProtocolError, RuntimeGone, RuntimeRestarted, from_wire
from lmprog.launch import Connection
from lmprog.server.fairness.dispatch import Dispatcher, Flow

log = logging.getLogger("lmprog.server")

Given = TypeVar("Given")

POLL_SECONDS = 0.5
"""How often the reading thread looks whether it is to end."""

_RESTARTED = "The runtime was restarted while it worked on this; send the request again."

Answer: TypeAlias = wire.Reply
"""Of a call: `Delta`s, and then one that is none."""


class RuntimeSource(Protocol):
    """Whoever can connect to a runtime: `launch.RuntimeProcess`, or a double."""

    def connect(self, client: str = "") -> Connection: ...


class Observer(Protocol):
    """Told of every generation and selection that passes; must be quick, and never raises."""

    def asked(self, op: wire.Generate | wire.Select) -> None: ...

    def replied(self, reply: wire.Reply) -> None:
        """Of any call, also of those it was not told of."""
        ...

    def dropped(self, call: int) -> None:
        """No last reply will come: whoever asked has left, or the runtime went."""
        ...


class Account(Flow, Protocol):
    """Whoever asks: what it may ask for, and what it has used."""

    def check(self, ops: Sequence[wire.Op]) -> None:
        """Raises InvalidParameter for what it may not ask for."""
        ...

    def use(self, prompt: int, generated: int) -> None:
        """These tokens were computed, or found in the cache, for it."""
        ...


class Exchange:
    """The branches and calls of one request. Use it with `with`: its end closes them."""

    def __init__(self, link: RuntimeLink, connection: Connection, account: Account | None) -> None:
        self._link = link
        self._connection = connection
        self._account = account
        self._streamed: dict[int, int] = {}  # call -> tokens that its deltas had
        self._branches: list[int] = []
        self._calls: set[int] = set()
        self._inbox: deque[Answer] = deque()
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def info(self) -> wire.Welcome:
        """What the runtime of this exchange said about itself."""
        return self._connection.info

    def branch(self) -> int:
        """A number for a new branch; closed with the exchange."""
        number = self._link.number()
        self._branches.append(number)
        return number

    def call(self) -> int:
        """A number for a new call, whose replies come here."""
        number = self._link.number()
        self._calls.add(number)
        self._link.listen(number, self)
        return number

    def send(self, *ops: wire.Op) -> None:
        """Sends `ops` in their order, in one frame where nobody else waits. Raises
        `InvalidParameter` for what cannot be sent, `Overloaded`, `RuntimeGone`.
        """
        if self._failure is not None:
            raise self._failure
        account, turns = self._account, self._link.turns
        if account is not None:
            account.check(ops)
            if turns is not None:
                turns.put(self, account, ops)
                return
        self.send_now(ops)

    def send_now(self, ops: Sequence[wire.Op]) -> None:
        """The same at once. For whoever decides about turns."""
        try:
            self._connection.send(ops)
        except RuntimeGone as error:  # its own words name our paths
            log.info("%s", error)
            raise self._link.restarted() from None
        self._link.sent(ops)

    async def answer(self) -> Answer:
        """The next reply of any call, a `Failed` too. Raises what ended the connection."""
        while not self._inbox:
            if self._failure is not None:
                raise self._failure
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._inbox.popleft()

    async def next(self) -> Answer:
        """The next reply. Raises what a `Failed` says."""
        reply = await self.answer()
        if isinstance(reply, wire.Failed):
            raise from_wire(reply.code, reply.message, reply.details)
        return reply

    @property
    def waiting(self) -> int:
        """Calls that have no last reply yet, or whose last reply has not been taken."""
        return len(self._calls) + sum(not isinstance(reply, wire.Delta) for reply in self._inbox)

    def take(self, reply: Answer) -> None:
        """For the link: one more reply."""
        if self._account is not None:
            self._charge(self._account, reply)
        if not isinstance(reply, wire.Delta | wire.Welcome) and reply.call is not None:
            self._calls.discard(reply.call)
        elif isinstance(reply, wire.Delta) and self._inbox:
            last = self._inbox[-1]
            if isinstance(last, wire.Delta) and (last.call, last.index) == (
                reply.call,
                reply.index,
            ):
                # What came while nobody read is one piece: less work for all just when there is too
                # much.
                text, count = last.text + reply.text, last.num_tokens + reply.num_tokens
                self._inbox[-1] = wire.Delta(
                    reply.call, reply.index, text, count, last.logprobs + reply.logprobs
                )
                return
        self._inbox.append(reply)
        self._wake()

    def _charge(self, account: Account, reply: Answer) -> None:
        """Counts tokens when they come, so that those of a call that is left are counted too."""
        match reply:
            case wire.Delta(call=call, num_tokens=num_tokens):
                self._streamed[call] = self._streamed.get(call, 0) + num_tokens
                account.use(0, num_tokens)
            case wire.CallDone(call=call, usage=usage) | wire.Chosen(call=call, usage=usage):
                rest = usage.generated - self._streamed.pop(call, 0)
                account.use(usage.prompt, max(0, rest))

    def fail(self, error: Exception) -> None:
        """Ends the exchange: what has come can still be taken, then `error` is raised."""
        if self._failure is None:
            self._failure = error
        self._wake()

    def close(self) -> None:
        """Closes its branches; the runtime frees what they held. Safe to repeat."""
        turns = None if self._account is None else self._link.turns
        never_opened = turns.leave(self) if turns is not None else frozenset[int]()
        for number in self._calls:
            self._link.unlisten(number)
        branches, self._branches, self._calls = self._branches, [], set()
        branches = [number for number in branches if number not in never_opened]
        self._link.leave(self)
        if branches and self._failure is None:
            try:
                self._connection.send([wire.Close(number) for number in branches])
            except RuntimeGone:
                log.debug("the runtime went before its branches were closed")
        self.fail(ProtocolError("this exchange was closed"))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


class RuntimeLink:
    """The gateway's way to its runtime. All methods belong to the event loop's thread."""

    def __init__(self, when_lost: Callable[[LmprogError], None] | None = None) -> None:
        """`when_lost` is called once for each connection that ended by itself: whoever gives it
        brings a new one.
        """
        self.when_lost = when_lost
        self.observer: Observer | None = None
        self.account: Callable[[], Account | None] = lambda: None
        """Whose requests the exchanges of this context are."""
        self.turns: Dispatcher | None = None
        """None: everything is sent at once."""
        self._connection: Connection | None = None
        self._numbers = itertools.count(1)
        self._listeners: dict[int, Exchange] = {}
        self._exchanges: set[Exchange] = set()
        self._why = "The runtime is starting; try again in a moment."
        self._decided = asyncio.Event()
        """Set while there is a runtime, and once there will be none any more."""
        self._is_waiting_over = False
        self.seconds_until_up: Callable[[], float] = lambda: 1.0
        """An estimate of when there is a runtime again. Its supervisor knows better."""
        self.connections = 0
        """How many there have been."""

    @property
    def info(self) -> wire.Welcome | None:
        """What the runtime said about itself; None while there is none."""
        return None if self._connection is None else self._connection.info

    @property
    def is_up(self) -> bool:
        return self._connection is not None

    @property
    def why(self) -> str:
        """Why there is no runtime, where there is none."""
        return self._why

    def replace(self, connection: Connection | None) -> None:
        """From now on this runtime; None: none for now. Exchanges with the old one fail as
        `RuntimeRestarted`.
        """
        self._why = "The runtime is starting again; try again in a moment."
        self._drop(RuntimeRestarted(_RESTARTED))
        self._connection = connection
        if connection is not None:
            self._decided.set()
            self.connections += 1
            loop = asyncio.get_running_loop()
            threading.Thread(
                target=self._read, args=(connection, loop), name="lmprog-link", daemon=True
            ).start()

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
        made = Exchange(self, self._connection, None if is_servers_own else self.account())
        self._exchanges.add(made)
        return made

    async def ask(self, make: Callable[[int], wire.Op], timeout: float = 10.0) -> Answer:
        """One call by itself: `await link.ask(wire.Describe)`. Raises why it failed, `TimeoutError`
        after `timeout`.
        """
        with self.exchange(is_servers_own=True) as exchange:
            exchange.send(make(exchange.call()))
            async with asyncio.timeout(timeout):
                return await exchange.next()

    async def figures(self, timeout: float = 10.0) -> dict[str, float]:
        """The runtime's counters and states by name."""
        reply = await self.ask(wire.Describe, timeout)
        assert isinstance(reply, wire.Described)
        return reply.figures

    def close(self) -> None:
        """Ends the connection; exchanges under way fail."""
        self._why = "The server is stopping."
        self.end_waiting()
        self._drop(RuntimeGone(self._why))

    def restarted(self) -> RuntimeGone:
        """What those are told whose work went with the runtime."""
        if self.when_lost is None:
            return RuntimeGone("The runtime ended while it worked on this.")
        return RuntimeRestarted(_RESTARTED)

    # --- for exchanges
    # -------------------------------------------------------------------------------------------

    def sent(self, ops: Sequence[wire.Op]) -> None:
        if self.observer is not None:
            for op in ops:
                if isinstance(op, wire.Generate | wire.Select):
                    self.observer.asked(op)

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

    # --- replies
    # -------------------------------------------------------------------------------------------------

    def _read(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        """Body of the reading thread; ends with its connection."""
        try:
            while self._connection is connection:
                replies = connection.receive(POLL_SECONDS)
                if replies:
                    _on(loop, self._deliver, connection, replies)
        except LmprogError as error:
            _on(loop, self._lose, connection, error)
        finally:
            connection.close()

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
        if connection is not None:
            threading.Thread(target=connection.close, name="lmprog-link-close", daemon=True).start()


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
