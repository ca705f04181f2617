"""Which addresses are allowed, the keys that make a public one safe, and the limits that every
socket gets.

Closed by default: `ipc://` in a folder of the user's own, `tcp://` on loopback; anything that
another machine could reach needs CURVE keys on both sides. This module knows ZeroMQ's options; it
knows no messages.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path

import zmq

from lmprog import wire
from lmprog.errors import InvalidParameter

HEARTBEAT_INTERVAL = 3.0
HEARTBEAT_TIMEOUT = 15.0
"""Seconds. A peer that *died* is noticed at once: the kernel closes its socket. Heartbeats are for
one that hangs, or whose machine is gone; they are patient, because a loaded machine, or a virtual
one that is paused for some seconds, must not lose its connections. ZeroMQ's own thread answers, so
a long step or a busy client is not a hang."""

HANDSHAKE_TIMEOUT = 10.0
"""Seconds that a connection may take to be made."""

HIGH_WATER_MARK = 10_000
"""Frames per connection and direction before a sender must keep them itself."""

_MAX_IPC_PATH = 107  # bytes: sockaddr_un.sun_path without its final zero


@dataclass(frozen=True, slots=True)
class CurveServer:
    """A runtime's key pair (Z85 text) and the public keys of the clients that it lets in."""

    public: bytes
    secret: bytes
    clients: frozenset[bytes]

    def __repr__(self) -> str:
        return f"CurveServer({self.public!r}, clients={len(self.clients)})"


@dataclass(frozen=True, slots=True)
class CurveClient:
    """A client's key pair (Z85 text) and the public key of the runtime that it expects."""

    public: bytes
    secret: bytes
    server: bytes

    def __repr__(self) -> str:
        return f"CurveClient({self.public!r}, server={self.server!r})"


def check(address: str, has_keys: bool) -> str:
    """The address itself, or `InvalidParameter` saying what is wrong with it and what to write
    instead.
    """
    scheme, separator, rest = address.partition("://")
    if not separator or scheme not in ("ipc", "tcp"):
        raise _refused(
            address, "ipc://PATH or tcp://127.0.0.1:PORT", "is not an address that lmprog uses"
        )
    if scheme == "ipc":
        if has_keys:
            raise _refused(
                address, "tcp://HOST:PORT", "is protected by its folder; keys are for tcp"
            )
        if not rest or len(rest.encode()) > _MAX_IPC_PATH:
            raise _refused(
                address, f"a path of 1 to {_MAX_IPC_PATH} bytes", "cannot be the path of a socket"
            )
        return address
    host, separator, port = rest.rpartition(":")
    if not separator or not host or not (port == "*" or (port.isdecimal() and int(port) < 65536)):
        raise _refused(address, "tcp://HOST:PORT", "lacks a host or a port")
    if not has_keys and not _is_loopback(host.strip("[]")):
        raise _refused(
            address,
            "tcp://127.0.0.1:PORT, or CURVE keys",
            "could be reached by others, who would run programs on it",
        )
    return address


def check_free(address: str) -> None:
    """Refuses an `ipc://` path on which somebody listens: binding there would quietly take it
    over.
    """
    if not address.startswith("ipc://"):
        return
    path = Path(address.removeprefix("ipc://"))
    if not path.parent.is_dir():
        raise _refused(
            address, "a path in an existing folder", "lies in a folder that does not exist"
        )
    if not path.exists():
        return
    with socket.socket(socket.AF_UNIX) as probe:
        if not path.is_socket() or probe.connect_ex(str(path)) == 0:
            raise _refused(address, "a path that nothing uses", "is in use already")


def limit(zmq_socket: zmq.Socket[bytes], address: str) -> None:
    """Sets what every socket of lmprog has: bounded queues and messages, no lingering,
    heartbeats.
    """
    zmq_socket.setsockopt(zmq.LINGER, 0)
    zmq_socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
    zmq_socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
    zmq_socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_FRAME_BYTES)
    zmq_socket.setsockopt(zmq.HEARTBEAT_IVL, int(HEARTBEAT_INTERVAL * 1000))
    zmq_socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(HEARTBEAT_TIMEOUT * 1000))
    zmq_socket.setsockopt(zmq.HANDSHAKE_IVL, int(HANDSHAKE_TIMEOUT * 1000))
    zmq_socket.setsockopt(zmq.IPV6, int("[" in address))


def refused_by_system(address: str, error: zmq.ZMQError) -> InvalidParameter:
    """What binding or connecting said, as an exception of ours."""
    return _refused(
        address, "an address of this machine that is free", f"cannot be used: {error.strerror}"
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name or an interface: where it leads is not known here


def _refused(address: str, allowed: str, why: str) -> InvalidParameter:
    return InvalidParameter(
        f"The address {address!r} {why}; use {allowed}.",
        name="address",
        value=address,
        allowed=allowed,
    )
