"""The two ends of a channel as protocols, how lists of messages become frames, and the thread that
reads replies.

Knows the limits of frames. Knows no sockets, and not what messages mean.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from lmprog import wire
from lmprog.errors import InvalidParameter, LmprogError, ProtocolError

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


class GreetedChannel(ClientChannel, Protocol):
    """A client's end after the greeting: `lmprog.launch.Connection`, or a double without a wire."""

    @property
    def info(self) -> wire.Welcome:
        """What the runtime says of itself."""
        ...


def ops_frames(ops: Sequence[wire.Op]) -> list[bytes]:
    """The ops as few frames as the limit of ops allows, in order, checked as the receiver will
    check them. Raises `InvalidParameter`; then nothing may be sent.
    """
    size = wire.MAX_FRAME_OPS
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
        """Starts the thread. On it, `take` gets replies in order, never an empty list; `lose` gets
        the error that ended the channel, unless `stop` came first.
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
        try:
            while not self._is_stopping.is_set():
                if replies := self._channel.receive(POLL_SECONDS):
                    self._take(replies)
        except LmprogError as error:
            if not self._is_stopping.is_set():
                self._lose(error)
        finally:
            self._channel.close()
