"""Allowed addresses, the CURVE keys that make a public one safe, the folder that keeps them, and
the limits of every socket.

Closed by default: `ipc://` in a folder of the user's own, `tcp://` on loopback; anything that
another machine could reach needs CURVE keys on both sides. Knows ZeroMQ's options; knows no
messages.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass
from pathlib import Path

import zmq
from zmq.utils import z85

from lmprog import wire
from lmprog.errors import InvalidParameter

HEARTBEAT_INTERVAL = 3.0
HEARTBEAT_TIMEOUT = 15.0
"""Seconds. A peer that *died* is noticed at once: the kernel closes its socket. Heartbeats are for
one that hangs, or whose machine is gone. They are long, because a loaded machine, or a virtual one
that is paused for some seconds, must not lose its connections. ZeroMQ's own thread answers, so a
long step or a busy client does not count as a hang."""

HANDSHAKE_TIMEOUT = 10.0
"""Seconds within which a connection must be made."""

HIGH_WATER_MARK = 10_000
"""Frames that ZeroMQ queues per connection and direction."""

_MAX_IPC_PATH = 107  # bytes: sockaddr_un.sun_path without its final zero


@dataclass(frozen=True, slots=True)
class CurveServer:
    """A runtime's key pair (Z85 text) and the public keys of the clients that it accepts."""

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
    """Returns the address. Raises `InvalidParameter` with what is wrong and what to write
    instead.
    """
    scheme, separator, rest = address.partition("://")
    if not separator or scheme not in ("ipc", "tcp"):
        raise _refused(address, "ipc://PATH or tcp://127.0.0.1:PORT", "has an unknown scheme")
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
            "can be reached from other machines, without keys",
        )
    return address


def check_free(address: str) -> None:
    """Refuses an `ipc://` path in use: ZeroMQ would take it over without an error."""
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
    """Sets the options of every socket: bounded queues and messages, no lingering, heartbeats."""
    zmq_socket.setsockopt(zmq.LINGER, 0)
    zmq_socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
    zmq_socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
    zmq_socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_FRAME_BYTES)
    zmq_socket.setsockopt(zmq.HEARTBEAT_IVL, int(HEARTBEAT_INTERVAL * 1000))
    zmq_socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(HEARTBEAT_TIMEOUT * 1000))
    zmq_socket.setsockopt(zmq.HANDSHAKE_IVL, int(HANDSHAKE_TIMEOUT * 1000))
    zmq_socket.setsockopt(zmq.IPV6, int("[" in address))


def refused_by_system(address: str, error: zmq.ZMQError) -> InvalidParameter:
    """The error of a failed bind or connect."""
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


_Z85_LEN = 40  # characters of a key


def write_keys(folder: Path) -> list[Path]:
    """Makes new keys; the files, which only this user can read. Raises InvalidParameter where there
    are keys already.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        written = []
        for owner in ("runtime", "gateway"):
            public, secret = zmq.curve_keypair()
            for kind, key in (("public", public), ("secret", secret)):
                path = folder / f"{owner}.{kind}"
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(descriptor, "wb") as file:
                    file.write(key)
                written.append(path)
    except FileExistsError as error:
        raise _wrong(folder, f"already has {error.filename}") from None
    except OSError as error:
        raise _wrong(folder, f"cannot be written: {error.strerror or error}") from None
    return written


def keys_of_runtime(folder: Path) -> CurveServer:
    """What a runtime needs. Raises InvalidParameter for a file that is missing or no key."""
    secret = _key(folder / "runtime.secret")
    clients = frozenset({_key(folder / "gateway.public")})
    return CurveServer(zmq.curve_public(secret), secret, clients)


def keys_of_client(folder: Path) -> CurveClient:
    """What a gateway, or any other client, needs. Raises like `keys_of_runtime`."""
    secret = _key(folder / "gateway.secret")
    return CurveClient(zmq.curve_public(secret), secret, _key(folder / "runtime.public"))


def client_keys(keys: CurveClient | str | os.PathLike[str] | None) -> CurveClient | None:
    """Keys as they are, or those of a folder."""
    if keys is None or isinstance(keys, CurveClient):
        return keys
    return keys_of_client(Path(keys))


def _key(path: Path) -> bytes:
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise _wrong(path, f"cannot be read: {error.strerror or error}") from None
    try:
        is_key = len(key) == _Z85_LEN and len(z85.decode(key)) == 32
    except (ValueError, KeyError):
        is_key = False
    if not is_key:
        raise _wrong(path, "is no CURVE key: 40 characters of Z85")
    return key


def _wrong(path: Path, what: str) -> InvalidParameter:
    return InvalidParameter(
        f"{path} {what}; lmprog fleet keys DIR makes a folder of keys.", name="keys"
    )
