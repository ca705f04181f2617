"""The two ends of a channel as protocols, how lists of messages become frames, which clients are
admitted, the thread that reads replies, and both ends within one process.

Knows the limits of frames. Knows no sockets, and not what messages mean.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar, runtime_checkable

from lmprog import wire
from lmprog.errors import InvalidParameter, LmprogError, ProtocolError, RuntimeGone

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

UNDECODABLE = (wire.MalformedFrame, UnicodeDecodeError, RecursionError)
"""All that decoding foreign bytes raises; msgspec reports invalid UTF-8 by Python's own error."""

UNENCODABLE = (UnicodeEncodeError, OverflowError, TypeError)
"""All that encoding raises: lone surrogates, integers of more than 64 bits, objects of foreign
types.
"""

MAX_OPS = 512
"""Ops after which one `receive` reads no more frames: about what a step has time to handle. Reading
more would only make others wait longer behind those who send without end."""

ClientId: TypeAlias = bytes
"""Names a connected client; given by the channel, opaque, never used for another client."""


@dataclass(frozen=True, slots=True)
class Gone:
    """In place of an op: this client vanished, and everything it owns can be freed. Comes once."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """In place of the ops of a frame that does not decode, as far as its ops could be read.

    `calls` wait for a reply; on `branches` other ops were lost, so that nothing may follow there.
    """

    calls: tuple[int, ...]
    branches: tuple[int, ...]
    reason: str


Received: TypeAlias = wire.Op | Gone | Unreadable
"""What a runtime receives from one client."""


class RuntimeChannel(Protocol):
    """The runtime's end, used by one thread. Bad input is counted in `counters`; nothing raises."""

    counters: dict[str, int]

    def receive(self, wait: float) -> Sequence[tuple[ClientId, Received]]:
        """What has come, in order per client. Where nothing has, waits up to `wait` seconds."""
        ...

    def send(self, replies: Sequence[tuple[ClientId, wire.Reply]]) -> None:
        """Never waits. Replies for a client that is gone are dropped; its `Gone` comes from
        `receive`.
        """
        ...

    def close(self) -> None:
        """Frees sockets at once, without waiting for slow clients. Safe to repeat."""
        ...


class ClientChannel(Protocol):
    """A client's end: any thread may send, one thread at a time receives.

    The first op must be `wire.Hello`; `lmprog.launch.connect` sends it and waits for the `Welcome`.
    """

    def send(self, ops: Sequence[wire.Op]) -> None:
        """Sends as few frames as the limits allow. Never waits for the runtime.

        Raises `InvalidParameter` where a value is outside its declared range or the frame is too
        large (nothing is sent then), `Overloaded` where too much is unsent, `RuntimeGone` where the
        runtime is known to have ended, or the process was forked from the one that connected.
        """
        ...

    def receive(self, timeout: float) -> list[wire.Reply]:
        """The next replies, in order; an empty list when none came within `timeout` seconds.

        Replies that came before the runtime's end are still given out; then `RuntimeGone` is
        raised, by every call. A reply with `call=None` (`Failed`) is about the whole connection.
        """
        ...

    def close(self) -> None:
        """Lets the runtime forget this client. Safe to repeat and to call from any thread;
        `receive` then raises.
        """
        ...


@runtime_checkable
class WatchedChannel(ClientChannel, Protocol):
    """A client's end that an event loop can read, without a thread that waits in `receive`."""

    def watch(self, loop: AbstractEventLoop, look: Callable[[], None]) -> None:
        """From now on only the loop's thread sends and receives. Calls `look` when `receive(0.0)`
        has something to do: to send, to give out, or to tell of the runtime's end.
        """
        ...

    def unwatch(self, loop: AbstractEventLoop) -> None:
        """Ends that; then the channel may be closed, by any thread."""
        ...


class GreetedChannel(ClientChannel, Protocol):
    """A client's end after the greeting: `lmprog.launch.Connection`, or a double without a wire."""

    @property
    def info(self) -> wire.Welcome:
        """What the runtime says of itself."""
        ...


@runtime_checkable
class DeliveringChannel(ClientChannel, Protocol):
    """A client's end whose replies come on several threads of its own, which spare a reader."""

    def deliver(self, take: Callable[[list[wire.Reply]], None], timeout: float) -> None:
        """Like `receive`, but replies go to `take`, in order, one list at a time, on whichever
        thread has read them; also between two calls. `take` is the same in every call, and never
        waits.
        """
        ...


def ops_frames(ops: Sequence[wire.Op]) -> list[bytes]:
    """The ops as few frames as the limit of ops allows, in order, checked as the receiver will
    check them. Raises `InvalidParameter`; then nothing may be sent.
    """
    size = wire.MAX_FRAME_OPS
    if len(ops) <= size:
        return [_ops_frame(ops)] if ops else []
    return [_ops_frame(ops[begin : begin + size]) for begin in range(0, len(ops), size)]


def _ops_frame(ops: Sequence[wire.Op]) -> bytes:
    try:
        frame = wire.encode(tuple(ops))
    except UNENCODABLE as error:
        raise InvalidParameter(
            f"An operation holds a value that cannot be sent: {error}.", name="ops"
        ) from None
    if len(frame) > wire.MAX_FRAME_BYTES:
        raise InvalidParameter(
            f"These operations take {len(frame)} bytes, more than the {wire.MAX_FRAME_BYTES} that "
            "one message may have; send the text in smaller pieces.",
            name="ops",
            value=len(frame),
            allowed=f"at most {wire.MAX_FRAME_BYTES} bytes",
        )
    try:
        wire.decode_ops(frame)
    except UNDECODABLE as error:
        raise InvalidParameter(
            f"An operation is outside its declared range: {error}.", name="ops"
        ) from None
    return frame


def replies_frames(replies: Sequence[wire.Reply], limit: int = wire.MAX_FRAME_BYTES) -> list[bytes]:
    """The replies as few frames as the size limit allows, in order.

    A single reply that cannot be sent (larger than any frame may be, or holding what has no
    encoding) becomes the `Failed` of its call: never silence.
    """
    try:
        frame = wire.encode(tuple(replies))
        if len(frame) <= limit:
            return [frame]
        why = f"it takes {len(frame)} bytes, more than the {limit} that one message may have; "
        why += "ask for fewer log-probabilities or fewer results at once"
    except UNENCODABLE as error:
        why = str(error)
    if len(replies) > 1:
        half = len(replies) // 2
        return replies_frames(replies[:half], limit) + replies_frames(replies[half:], limit)
    reply = replies[0]
    code = reply.code if isinstance(reply, wire.Failed) else "rejected"
    message = f"The answer cannot be sent: {why}."
    return [
        wire.encode((wire.Failed(call=getattr(reply, "call", None), code=code, message=message),))
    ]


def replies_of(frame: bytes) -> tuple[wire.Reply, ...]:
    """The replies of a frame; an empty frame is the runtime's probe and holds none."""
    if not frame:
        return ()
    try:
        return wire.decode_replies(frame)
    except UNDECODABLE as error:
        raise ProtocolError(
            f"The other side sent something other than lmprog's replies ({error})."
        ) from None


POLL_SECONDS = 0.2
"""How often a reader looks whether it is to stop."""


class ReplyReader:
    """Reads `channel`, which it closes when it ends, until `stop` or the runtime's end."""

    def __init__(
        self,
        channel: ClientChannel,
        take: Callable[[list[wire.Reply]], None],
        lose: Callable[[LmprogError], None],
        *,
        name: str,
    ) -> None:
        """Starts the thread. On it, `take` gets replies in order, never an empty list (those of a
        `DeliveringChannel` also on that one's threads); `lose` gets the error that ended the
        channel, unless `stop` came first.
        """
        self._channel = channel
        self._take = take
        self._lose = lose
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._read, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Lets the thread end soon; from any thread, safe to repeat."""
        self._is_stopping.set()

    def join(self) -> None:
        """Waits for the thread's end; returns at once on the thread itself."""
        if not self.is_current:
            self._thread.join()

    @property
    def has_ended(self) -> bool:
        """Whether the thread has ended."""
        return not self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on the reading thread."""
        return threading.current_thread() is self._thread

    def _read(self) -> None:
        channel = self._channel
        try:
            if isinstance(channel, DeliveringChannel):
                while not self._is_stopping.is_set():
                    channel.deliver(self._take, POLL_SECONDS)
            while not self._is_stopping.is_set():
                if replies := channel.receive(POLL_SECONDS):
                    self._take(replies)
        except LmprogError as error:
            if not self._is_stopping.is_set():
                self._lose(error)
        finally:
            self._channel.close()


@dataclass(frozen=True, slots=True)
class Admitted:
    """What a frame holds: messages to hand on, and at most one refusal to send back."""

    messages: tuple[Received, ...] = ()
    refusal: wire.Failed | None = None
    num_ops: int = 0
    """What reading it and answering it takes."""


_NOTHING = Admitted()


class Admission:
    """Remembers every client that has sent a readable frame, until `forget`.

    Frames of anybody in, ops of greeted clients out, for every runtime's end. Knows which clients
    have sent `Hello` in our version, and counts what it drops; says what to hand on and what to
    answer.
    """

    def __init__(self) -> None:
        self.counters: dict[str, int] = {
            "frames_received": 0,
            "frames_malformed": 0,
            "ops_received": 0,
            "ops_refused": 0,
            "clients_welcome": 0,
            "clients_refused": 0,
            "clients_gone": 0,
            "clients_too_slow": 0,
            "replies_dropped": 0,
        }
        self._welcome: set[ClientId] = set()
        self._refused: set[ClientId] = set()

    def known(self) -> list[ClientId]:
        """All remembered clients, welcome or refused."""
        return [*self._welcome, *self._refused]

    def is_welcome(self, client: ClientId) -> bool:
        return client in self._welcome

    def admit(self, client: ClientId, frame: bytes) -> Admitted:
        """Never raises, whatever the bytes are."""
        self.counters["frames_received"] += 1
        try:
            ops = wire.decode_ops(frame)
        except UNDECODABLE as error:
            self.counters["frames_malformed"] += 1
            if self.is_welcome(client):
                return self._unreadable(frame, str(error))
            return self._of_another_version(client, frame)
        messages: list[Received] = []
        refusal: wire.Failed | None = None
        for op in ops:
            if isinstance(op, wire.Hello) and op.version == wire.PROTOCOL_VERSION:
                messages += self._greet(client)
            elif client not in self._welcome or isinstance(op, wire.Hello):
                self.counters["ops_refused"] += 1
                refusal = refusal or self._refuse(client, op)
                continue
            self.counters["ops_received"] += 1
            messages.append(op)
        return Admitted(tuple(messages), refusal, len(ops))

    def _of_another_version(self, client: ClientId, frame: bytes) -> Admitted:
        """Whoever greets is told of its version, though its messages are not ours."""
        try:
            version = wire.version_in(frame)
        except UNDECODABLE:
            return _NOTHING
        if version is None or version == wire.PROTOCOL_VERSION:
            return _NOTHING
        return Admitted(refusal=self._refuse(client, wire.Hello(version)))

    def count_malformed(self) -> None:
        """Counts a transport message that is not one frame."""
        self.counters["frames_received"] += 1
        self.counters["frames_malformed"] += 1

    def _unreadable(self, frame: bytes, reason: str) -> Admitted:
        """A greeted client learns of every frame that is not carried out."""
        try:
            calls, branches = wire.named_in(frame)
        except UNDECODABLE:
            message = f"A message could not be read: {reason}."
            return Admitted(refusal=wire.Failed(call=None, code="protocol", message=message))
        num_ops = len(calls) + len(branches)
        return Admitted((Unreadable(calls, branches, reason),), num_ops=num_ops)

    def forget(self, client: ClientId) -> bool:
        """True where the client had been welcome, so that its `Gone` is due."""
        self._refused.discard(client)
        if client not in self._welcome:
            return False
        self._welcome.discard(client)
        self.counters["clients_gone"] += 1
        return True

    def refuse_slow(self, limit: int) -> wire.Failed:
        """The last reply to a client that does not read its replies; it may send `Hello` again."""
        self.counters["clients_too_slow"] += 1
        return wire.Failed(
            call=None,
            code="overloaded",
            message=f"More than {limit} bytes of replies were waiting for this client to "
            "read them, "
            "so its branches were freed; read replies as they come, and connect again.",
        )

    def _greet(self, client: ClientId) -> list[Received]:
        """A second greeting starts anew: what the client owned is freed first."""
        renewed = self.forget(client)
        self._welcome.add(client)
        self.counters["clients_welcome"] += 1
        return [Gone()] if renewed else []

    def _refuse(self, client: ClientId, op: wire.Op) -> wire.Failed | None:
        """Only once per client."""
        if client in self._refused or client in self._welcome:
            return None
        self._refused.add(client)
        self.counters["clients_refused"] += 1
        ours = wire.PROTOCOL_VERSION
        if isinstance(op, wire.Hello):
            message = f"The client speaks protocol version {op.version}, this runtime version "
            message += f"{ours}; use the same lmprog."
        else:
            message = f"The first message must be Hello with protocol version {ours}, "
            message += f"not {type(op).__name__}."
        return wire.Failed(call=None, code="protocol", message=message)


T = TypeVar("T")

_END = b""  # in place of a frame: this side has closed
_LONGEST_SLEEP = 3600.0  # seconds; so that an infinite timeout can be waited for


class LocalRuntimeChannel:
    """The runtime's end. `connect()` makes any number of clients, from any thread.

    For tests, offline use, and runtimes in a thread. Messages are encoded, and clients admitted,
    as over ZeroMQ.
    """

    def __init__(self) -> None:
        self._admission = Admission()
        self.counters = self._admission.counters
        self._inbox: queue.SimpleQueue[tuple[ClientId, bytes]] = queue.SimpleQueue()
        self._clients: dict[ClientId, LocalClientChannel] = {}
        self._numbers = itertools.count(1)
        self._closed = False

    def connect(self) -> LocalClientChannel:
        if self._closed:
            raise RuntimeGone("The runtime in this process was closed.")
        client = b"local-%d" % next(self._numbers)
        channel = LocalClientChannel(client, self._inbox)
        self._clients[client] = channel
        return channel

    def receive(self, wait: float) -> list[tuple[ClientId, Received]]:
        """See `RuntimeChannel`."""
        deadline = time.monotonic() + wait
        messages: list[tuple[ClientId, Received]] = []
        while not messages:
            item = _take(self._inbox, deadline)
            if item is None:
                break
            while item is not None:
                messages += self._admit(*item)
                is_full = len(messages) > MAX_OPS
                item = None if is_full else _take(self._inbox, 0.0)
        return messages

    def send(self, replies: Sequence[tuple[ClientId, wire.Reply]]) -> None:
        """See `RuntimeChannel`."""
        grouped: dict[ClientId, list[wire.Reply]] = {}
        for client, reply in replies:
            grouped.setdefault(client, []).append(reply)
        for client, own in grouped.items():
            if client not in self._clients or not self._admission.is_welcome(client):
                self.counters["replies_dropped"] += len(own)
                continue
            for frame in replies_frames(own):
                self._clients[client].put(frame)

    def close(self) -> None:
        self._closed = True
        for channel in list(self._clients.values()):
            channel.put(_END)
        self._clients.clear()

    def _admit(self, client: ClientId, frame: bytes) -> list[tuple[ClientId, Received]]:
        if frame == _END:
            self._clients.pop(client, None)
            return [(client, Gone())] if self._admission.forget(client) else []
        admitted = self._admission.admit(client, frame)
        if admitted.refusal and client in self._clients:
            self._clients[client].put(wire.encode((admitted.refusal,)))
        return [(client, message) for message in admitted.messages]


class LocalClientChannel:
    """A client's end; made by `LocalRuntimeChannel.connect`."""

    def __init__(
        self, client: ClientId, runtime: queue.SimpleQueue[tuple[ClientId, bytes]]
    ) -> None:
        self._client = client
        self._runtime = runtime
        self._frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._end: str | None = None

    def send(self, ops: Sequence[wire.Op]) -> None:
        """See `ClientChannel`."""
        frames = ops_frames(ops)
        if self._end is not None:
            raise RuntimeGone(self._end)
        for frame in frames:
            self._runtime.put((self._client, frame))

    def receive(self, timeout: float) -> list[wire.Reply]:
        """See `ClientChannel`."""
        replies: list[wire.Reply] = []
        item = _take(self._frames, time.monotonic() + timeout)
        while item is not None and item != _END:
            replies += replies_of(item)
            item = _take(self._frames, 0.0)
        if item is None:
            return replies
        self._end = self._end or "The runtime in this process was closed."
        self._frames.put(_END)  # every later call finds the end as well
        if replies:
            return replies
        raise RuntimeGone(self._end)

    def close(self) -> None:
        if self._end is None:
            self._end = "This channel was closed."
            self._runtime.put((self._client, _END))
        self._frames.put(_END)

    def put(self, frame: bytes) -> None:
        """For the runtime's end: one more frame."""
        self._frames.put(frame)


def _take(waiting: queue.SimpleQueue[T], deadline: float) -> T | None:
    """The next item; None where none comes until `deadline`, which may be past."""
    left = min(deadline - time.monotonic(), _LONGEST_SLEEP)
    try:
        return waiting.get(timeout=left) if left > 0 else waiting.get_nowait()
    except queue.Empty:
        return None


def local_pair() -> tuple[LocalRuntimeChannel, LocalClientChannel]:
    """A runtime's end and one client's end."""
    runtime = LocalRuntimeChannel()
    return runtime, runtime.connect()
