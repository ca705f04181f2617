"""The runtime's end over ZeroMQ: one ROUTER socket, many clients.

Knows which clients are connected, finds the vanished ones, and bounds the unread replies of slow
ones. Does not know what branches or calls are. Used by one thread only.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Sequence

import zmq
from zmq.auth.thread import ThreadAuthenticator

from lmprog import wire
from lmprog.errors import RuntimeGone
from lmprog.transport import address as addresses
from lmprog.transport.address import CurveServer
from lmprog.transport.admission import Admission
from lmprog.transport.channel import MAX_OPS, ClientId, Gone, Received, replies_frames

PROBE_INTERVAL = 0.4
"""Seconds between two searches for vanished clients."""
MAX_UNREAD_BYTES = 64 * 1024 * 1024
"""Replies kept for a client beyond the socket's high-water mark; with more it is disconnected."""
GOODBYE_SECONDS = 0.2
"""For the last words to clients that read."""
_MAX_FRAMES = 64
"""Frames read by one `receive`; the others wait in ZeroMQ's queues."""
_MAX_BYTES = 4 * 1024 * 1024
"""Bytes after which one `receive` reads no more frames."""
_RETRY = 0.01
"""Seconds until a backlog is sent again: ROUTER does not tell which client has room."""


class _Backlog:
    """Frames for which a client's pipe had no room yet."""

    __slots__ = ("frames", "num_bytes")

    def __init__(self) -> None:
        self.frames: deque[bytes] = deque()
        self.num_bytes = 0


class ZmqRuntimeChannel:
    """Binds `address`; a port `*` becomes a free one, see `.address`. Other machines need
    `keys`.
    """

    def __init__(self, address: str, keys: CurveServer | None = None) -> None:
        addresses.check(address, keys is not None)
        addresses.check_free(address)
        self._admission = Admission()
        self.counters = self._admission.counters
        self._backlogs: dict[ClientId, _Backlog] = {}
        self._vanished: list[ClientId] = []
        self._next_probe = 0.0
        self._linger = 0.0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._authenticator = _start_authenticator(self._context, keys) if keys else None
        self._socket = self._context.socket(zmq.ROUTER)
        addresses.limit(self._socket, address)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        if keys:
            self._socket.setsockopt(zmq.CURVE_SERVER, 1)
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
        self._woken_fd, self._wake_fd = os.pipe()
        os.set_blocking(self._wake_fd, False)
        self.address = self._bind(address)

    def receive(self, wait: float) -> list[tuple[ClientId, Received]]:
        """See `RuntimeChannel`. Also searches for vanished clients."""
        deadline = time.monotonic() + wait
        while True:
            if self._backlogs:
                self._retry_backlogs()
            messages = self._take_in()
            now = time.monotonic()
            if now >= self._next_probe:
                self._probe()
                self._next_probe = now + PROBE_INTERVAL
            messages += self._report_vanished()
            if messages or now >= deadline:
                return messages
            pause = (
                min(deadline, self._next_probe, now + _RETRY if self._backlogs else deadline) - now
            )
            if self._poll(max(1, int(pause * 1000) + 1)):
                return messages

    def wake(self) -> None:
        """Ends a wait of `receive`, or the next one. For signal handlers and other threads."""
        with contextlib.suppress(BlockingIOError):  # as many are waiting as a pipe holds
            os.write(self._wake_fd, b"\0")

    def send(self, replies: Sequence[tuple[ClientId, wire.Reply]]) -> None:
        """See `RuntimeChannel`. All replies of one client are one frame."""
        grouped: dict[ClientId, list[wire.Reply]] = {}
        for client, reply in replies:
            grouped.setdefault(client, []).append(reply)
        for client, own in grouped.items():
            if not self._admission.is_welcome(client):
                self.counters["replies_dropped"] += len(own)
                continue
            for frame in replies_frames(own):
                self._post(client, frame)

    def say_goodbye(self, message: str) -> None:
        """Tells every client that the runtime ends on purpose, with `message`; whoever does not
        take it within a moment finds out by the end of its connection. Only `close` may follow.
        """
        goodbye = wire.Failed(None, RuntimeGone.code, message)
        self.send([(client, goodbye) for client in self._admission.known()])
        self._linger = GOODBYE_SECONDS

    def close(self) -> None:
        if self._context.closed:
            return
        if self._authenticator:
            self._authenticator.stop()
        linger = int(1000 * self._linger)
        self._socket.close(linger)
        self._context.destroy(linger)
        os.close(self._woken_fd)
        os.close(self._wake_fd)

    def _poll(self, milliseconds: int) -> bool:
        """Waits for a frame; True where `wake` has ended that."""
        found = zmq.zmq_poll(
            [(self._socket, zmq.POLLIN), (self._woken_fd, zmq.POLLIN)], milliseconds
        )
        is_woken = any(source == self._woken_fd for source, _ in found)
        if is_woken:
            os.read(self._woken_fd, 4096)
        return is_woken

    def _bind(self, address: str) -> str:
        """Only this user may connect to an ipc socket, even where its folder is open to others."""
        before = os.umask(0o177) if address.startswith("ipc://") else None
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise addresses.refused_by_system(address, error) from None
        finally:
            if before is not None:
                os.umask(before)
        bound = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes)
        return bound.rstrip(b"\0").decode()

    def _take_in(self) -> list[tuple[ClientId, Received]]:
        found: list[tuple[ClientId, Received]] = []
        num_bytes = num_ops = 0
        for _ in range(_MAX_FRAMES):
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            if len(parts) != 2:
                self._admission.count_malformed()
                continue
            client, frame = parts
            admitted = self._admission.admit(client, frame)
            if admitted.refusal:
                self._post(client, wire.encode((admitted.refusal,)))
            found += [(client, message) for message in admitted.messages]
            num_bytes += len(frame)
            num_ops += admitted.num_ops
            if num_bytes > _MAX_BYTES or num_ops > MAX_OPS:
                break
        return found

    def _post(self, client: ClientId, frame: bytes) -> None:
        backlog = self._backlogs.get(client)
        if backlog is None:
            if self._put(client, frame):
                return
            backlog = self._backlogs[client] = _Backlog()
        backlog.frames.append(frame)
        backlog.num_bytes += len(frame)
        if backlog.num_bytes > MAX_UNREAD_BYTES:
            self._disconnect_slow(client)

    def _put(self, client: ClientId, frame: bytes) -> bool:
        """False where the client's pipe is full; True also for a client that has vanished."""
        try:
            self._socket.send_multipart((client, frame), zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._vanished.append(client)
        return True

    def _disconnect_slow(self, client: ClientId) -> None:
        """The client does not read its replies: its work is freed, and one last reply says so."""
        if self._admission.is_welcome(client):
            self._vanished.append(client)
        last = _Backlog()
        last.frames.append(wire.encode((self._admission.refuse_slow(MAX_UNREAD_BYTES),)))
        self._backlogs[client] = last

    def _retry_backlogs(self) -> None:
        for client, backlog in list(self._backlogs.items()):
            while backlog.frames and self._put(client, backlog.frames[0]):
                backlog.num_bytes -= len(backlog.frames.popleft())
            if not backlog.frames:
                del self._backlogs[client]

    def _probe(self) -> None:
        """Sends an empty frame to every known client: ROUTER refuses it for those that are gone."""
        for client in self._admission.known():
            self._put(client, b"")

    def _report_vanished(self) -> list[tuple[ClientId, Received]]:
        vanished, self._vanished = self._vanished, []
        return [(client, Gone()) for client in vanished if self._admission.forget(client)]


def _start_authenticator(
    context: zmq.Context[zmq.Socket[bytes]], keys: CurveServer
) -> ThreadAuthenticator:
    """Accepts only clients whose public keys are listed. In a thread, so that a step delays no
    handshake.
    """
    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve_callback("*", credentials_provider=_AcceptedKeys(keys.clients))
    return authenticator


class _AcceptedKeys:
    """What ZeroMQ's authenticator asks for each connection."""

    def __init__(self, clients: frozenset[bytes]) -> None:
        self._clients = clients

    def callback(self, domain: str, key: bytes) -> bool:
        return key in self._clients
