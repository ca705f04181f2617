"""A client of a runtime: numbers branches and calls, sends ops in frames, and hands every reply to
its call.

A client belongs to the process that made it: in a process forked from that one every call fails at
once.

Ops are buffered in an outbox. A call made in a plain thread is sent at once, together with the ops
before it; a call made on an event loop is sent at the end of the loop's turn, so that the ops of
one turn form one frame. One background thread receives. When the channel reports that the runtime
is gone, every pending and later call fails with that error. This module knows neither programs nor
the meaning of replies, but for those about a runtime as a whole (`describe`, `flush`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol, Self, TypeAlias

from lmprog import wire
from lmprog.errors import Cancelled, LmprogError, ProtocolError, RuntimeGone, from_wire
from lmprog.transport import GreetedChannel, ReplyReader

CallOp: TypeAlias = (
    wire.Generate | wire.Select | wire.Read | wire.Describe | wire.Inspect | wire.Flush
)
LastReply: TypeAlias = (
    wire.CallDone
    | wire.Chosen
    | wire.TextIs
    | wire.TokensAre
    | wire.Described
    | wire.Snapshot
    | wire.PrefixesAre
)
DeltaListener: TypeAlias = Callable[[wire.Delta], None]

READ_SECONDS = 1.0  # how long `close` waits for pending reads


class ClientCall:
    """A call in flight: its number, and its final reply once there is one. Any thread may wait for
    it.
    """

    __slots__ = ("future", "id", "on_delta", "on_last")

    def __init__(self, call_id: int, on_delta: DeltaListener | None = None) -> None:
        self.id = call_id
        self.on_delta = on_delta
        self.on_last: Callable[[LastReply | LmprogError], None] | None = None
        """Called with the final reply before any waiter sees it, on the thread that receives it."""
        self.future: Future[LastReply | LmprogError] = Future()

    def done(self) -> bool:
        return self.future.done()

    def finish(self, outcome: LastReply | LmprogError) -> None:
        """Sets the final reply, or the error in its place. Only the first one counts."""
        if not self.future.done():
            on_last, self.on_last = self.on_last, None
            if on_last is not None:
                on_last(outcome)
            self.future.set_result(outcome)

    def orphan(self, error: LmprogError) -> None:
        """In a forked process: no reply will come, and locks may be held by threads that are not
        there; nobody who registered is told.
        """
        self.on_last = None
        self.future = Future()
        self.future.set_result(error)

    def when_done(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once, on the receiving thread, or at once if the call is done."""
        self.future.add_done_callback(lambda _: callback())

    def wait(self, timeout: float | None = None) -> LastReply | LmprogError:
        """Blocks until the final reply. Raises `TimeoutError` after `timeout` seconds."""
        return self.future.result(timeout)

    async def arrive(self) -> LastReply | LmprogError:
        """Awaits the final reply. Cancelling the wait does not cancel the call."""
        if not self.future.done():
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()
            self.when_done(lambda: wake(loop, waiter))
            await waiter
        return self.future.result()


def wake(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
    """Completes `waiter` on its own loop, from any thread; does nothing if the loop is closed or
    the waiter is done.
    """

    def complete() -> None:
        if not waiter.done():
            waiter.set_result(None)

    try:
        loop.call_soon_threadsafe(complete)
    except RuntimeError:
        if not loop.is_closed():  # nobody can wait on a closed loop
            raise


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop running in this thread, which must not be blocked; None in a plain thread."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Client:
    """A connection to a runtime. Owns `channel`, and closes it."""

    def __init__(self, channel: GreetedChannel, *, reads: bool = True) -> None:
        """Without `reads` nobody receives here: a subclass delivers the replies itself."""
        self._channel = channel
        self.welcome = channel.info
        self._numbers = itertools.count(1)
        self._state = threading.Lock()  # guards outbox, calls, gone
        self._sending = threading.Lock()  # keeps frames in the order of the ops
        self._outbox: list[wire.Op] = []
        self._calls: dict[int, ClientCall] = {}
        self._reads: set[int] = set()  # calls that read a text
        self._held = threading.local()  # .depth: nesting of `together` in this thread
        self._spoiled: dict[
            int, LmprogError
        ] = {}  # branch -> why one of its ops could not even be sent
        self._gone: LmprogError | None = None
        self._reader = (
            ReplyReader(channel, self._take, self._fail, name="lmprog-client") if reads else None
        )
        _clients.add(self)

    def orphan(self, parent: int) -> None:
        """This process was forked from `parent`, whose client it is: locks are made anew, and every
        call fails.
        """
        gone = RuntimeGone(
            f"This client belongs to process {parent}, from which this process was forked. Make a "
            "backend in this process, or start it with the 'spawn' method."
        )
        self._state, self._sending = threading.Lock(), threading.Lock()
        self._gone = gone
        calls, self._calls = self._calls, {}
        self._outbox, self._reads = [], set()
        for call in calls.values():
            call.orphan(gone)

    @property
    def closed(self) -> bool:
        """Whether no more calls are possible: closed here, or the runtime is gone."""
        return self._gone is not None

    def number(self) -> int:
        """A number not yet used by any branch or call of this client."""
        return next(self._numbers)

    def post(self, *ops: wire.Op) -> None:
        """Puts ops into the outbox, in order. They are sent with the next call or `flush`."""
        with self._state:
            if self._gone is None:
                self._outbox.extend(ops)

    def call(self, op: CallOp, on_delta: DeltaListener | None = None) -> ClientCall:
        """Posts a call and schedules it for sending. It fails at once if the runtime is gone."""
        call = ClientCall(op.call, on_delta)
        self.begin(op, call)
        return call

    def begin(self, op: CallOp, call: ClientCall) -> None:
        """The same for an existing `call`, so that others can register with it before any reply
        arrives.
        """
        with self._state:
            gone = self._gone or self._spoiled.get(getattr(op, "branch", 0))
            if gone is None:
                self._calls[op.call] = call
                if isinstance(op, wire.Read):
                    self._reads.add(op.call)
                self._outbox.append(op)
        if gone is not None:
            call.finish(gone)
        else:
            self.hurry()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Sends everything that this thread posts inside the block as one frame at its end."""
        self._held.depth = getattr(self._held, "depth", 0) + 1
        try:
            yield
        finally:
            self._held.depth -= 1
            self.hurry()

    def hurry(self) -> None:
        """Sends the outbox soon: now in a plain thread, at the end of the turn on an event loop."""
        if getattr(self._held, "depth", 0):
            return
        loop = running_loop()
        if loop is None:
            self.flush()
        else:
            loop.call_soon(self.flush)

    def flush(self) -> None:
        """Sends the outbox as one frame. If the channel rejects an op, its call fails; nothing is
        raised.
        """
        with self._sending:
            with self._state:
                ops, self._outbox = self._outbox, []
            if ops:
                self._send(ops)

    def _send(self, ops: Sequence[wire.Op]) -> None:
        try:
            self._channel.send(ops)
        except RuntimeGone as gone:
            self._fail(gone)
        except LmprogError as error:
            if len(ops) == 1:
                self._refuse(ops[0], error)
            else:  # only the invalid op fails, not those of other branches
                for op in ops:
                    self._send([op])

    def _refuse(self, op: wire.Op, error: LmprogError) -> None:
        """Handles an `op` that could not be sent: fails its call, or every later call of its
        branch.
        """
        if isinstance(op, CallOp):
            self._finish(op.call, error)
        elif isinstance(op, wire.Append | wire.Fork):
            with self._state:
                self._spoiled[op.branch] = error

    def close(self) -> None:
        """Closes the connection; pending calls fail with `Cancelled`. Idempotent.

        Pending reads of texts, which a run issues at its end, are waited for briefly.
        """
        self.flush()
        with self._state:
            reads = [self._calls[number] for number in self._reads]
        if self._reader is None or not self._reader.is_current:
            concurrent.futures.wait([read.future for read in reads], READ_SECONDS)
        self._fail(Cancelled("the client was closed"))
        if self._reader is not None:
            self._reader.stop()
        self._channel.close()
        if self._reader is not None:
            self._reader.join()

    def _take(self, replies: Sequence[wire.Reply]) -> None:
        """On the reading thread."""
        for reply in replies:
            self._deliver(reply)

    def _deliver(self, reply: wire.Reply) -> None:
        if isinstance(reply, wire.Welcome):
            return  # the greeting is over before a client is made
        if isinstance(reply, wire.Delta):
            call = self._calls.get(reply.call)
            if call is not None and call.on_delta is not None:
                call.on_delta(reply)
        elif isinstance(reply, wire.Failed):
            error = from_wire(reply.code, reply.message, reply.details)
            if reply.call is None:
                self._fail(error)
            else:
                self._finish(reply.call, error)
        else:
            self._finish(reply.call, reply)

    def _finish(self, call_id: int, outcome: LastReply | LmprogError) -> None:
        with self._state:
            call = self._calls.pop(call_id, None)
            self._reads.discard(call_id)
        if call is not None:
            call.finish(outcome)

    def _fail(self, error: LmprogError) -> None:
        """Fails every pending and every later call with `error`: no more replies will come."""
        with self._state:
            if self._gone is None:
                self._gone = error
            waiting = list(self._calls.values())
            self._calls.clear()
            self._reads.clear()
            self._outbox.clear()
        for call in waiting:
            call.finish(error)


class RuntimeBackend:
    """Owns a client over `channel`. A context manager: leaving it closes the client."""

    def __init__(self, channel: GreetedChannel) -> None:
        self._client = Client(channel)

    @property
    def client(self) -> Client:
        return self._client

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Backed(Protocol):
    """A backend, as far as it is needed here."""

    @property
    def client(self) -> Client: ...


def ask(backend: _Backed, op: CallOp) -> LastReply:
    """Makes one call about the runtime as a whole; blocks. Raises the error it fails with."""
    call = backend.client.call(op)
    backend.client.flush()
    outcome = call.wait()
    if isinstance(outcome, LmprogError):
        raise outcome
    return outcome


def describe(backend: _Backed) -> dict[str, float]:
    """The runtime's statistics, by name."""
    reply = ask(backend, wire.Describe(backend.client.number()))
    if not isinstance(reply, wire.Described):
        raise ProtocolError(f"asked for figures, the runtime answered {type(reply).__name__}")
    return reply.figures


def flush(backend: _Backed) -> None:
    """Evicts every page of the runtime's cache that no live branch uses."""
    ask(backend, wire.Flush(backend.client.number()))


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _orphan_all() -> None:
    for client in list(_clients):
        client.orphan(os.getppid())


if hasattr(os, "register_at_fork"):  # not on Windows, which forks no processes
    os.register_at_fork(after_in_child=_orphan_all)
