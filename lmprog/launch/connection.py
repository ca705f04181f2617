"""A client's connection to a runtime: a greeted channel, and the runtime's `Welcome`.

Knows the handshake. Starts nothing and knows no programs.
"""

from __future__ import annotations

import time
from types import TracebackType

from lmprog import wire
from lmprog.errors import ProtocolError, RuntimeGone, from_wire
from lmprog.transport import (
    ClientChannel,
    CurveClient,
    DeliveringChannel,
    WatchedChannel,
    ZmqClientChannel,
)

GREETING_TIMEOUT = 30.0
"""Seconds for the answer to `Hello`; long, since a runtime answers after its current step."""


class Connection:
    """A greeted `ClientChannel`; `info` is the runtime's `Welcome`. Closes with its block."""

    def __init__(self, channel: ClientChannel, info: wire.Welcome) -> None:
        self._channel = channel
        self.info = info
        self.send = channel.send
        """See `ClientChannel.send`; any thread."""
        self.receive = channel.receive
        """See `ClientChannel.receive`; one thread at a time."""
        self.watched = channel if isinstance(channel, WatchedChannel) else None
        """The channel, where an event loop can read it."""
        self.delivering = channel if isinstance(channel, DeliveringChannel) else None
        """The channel, where it has reading threads of its own."""

    def close(self) -> None:
        """Ends the connection: waiting calls fail, the runtime frees their branches. Safe to
        repeat.
        """
        self._channel.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


def connect(
    address: str,
    *,
    client: str = "",
    keys: CurveClient | None = None,
    timeout: float = GREETING_TIMEOUT,
) -> Connection:
    """Connects to the runtime at `address`; `client` is a name for the runtime's log.

    Raises `RuntimeGone` where none answers, `ProtocolError` for another version.
    """
    return greet(ZmqClientChannel(address, keys=keys), client=client, timeout=timeout)


def greet(
    channel: ClientChannel, *, client: str = "", timeout: float = GREETING_TIMEOUT
) -> Connection:
    """Sends `Hello` over any channel and waits for the `Welcome`.

    Owns the channel from now on, and closes it where the greeting fails. Raises like `connect`.
    """
    try:
        channel.send([wire.Hello(wire.PROTOCOL_VERSION, client)])
        return Connection(channel, _welcome(channel, timeout))
    except BaseException:
        channel.close()
        raise


def _welcome(channel: ClientChannel, timeout: float) -> wire.Welcome:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        for reply in channel.receive(deadline - time.monotonic()):
            if isinstance(reply, wire.Welcome):
                return checked_welcome(reply)
            if isinstance(reply, wire.Failed):
                raise from_wire(reply.code, reply.message, reply.details)
            raise ProtocolError(
                f"The runtime answered the greeting with {type(reply).__name__}, not with Welcome."
            )
    raise RuntimeGone(
        f"The runtime did not answer the greeting within {timeout:g} seconds: nobody is at its "
        "address, it hangs, or its keys do not belong to ours."
    )


def checked_welcome(welcome: wire.Welcome) -> wire.Welcome:
    """Raises `ProtocolError` for a runtime of another protocol version."""
    if welcome.version != wire.PROTOCOL_VERSION:
        raise ProtocolError(
            f"The runtime speaks protocol version {welcome.version}, this client version "
            f"{wire.PROTOCOL_VERSION}; use the same lmprog."
        )
    return welcome
