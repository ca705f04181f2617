"""Both ends of a channel over ZeroMQ.

A runtime has one ROUTER socket for many clients, a client one DEALER socket. Knows which clients
are connected, finds those that vanished, and bounds the unread replies of slow ones; the
client's end finds that the runtime has ended. Does not know what branches or calls are.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message

from lmprog import wire
from lmprog.errors import Overloaded, RuntimeGone
from lmprog.transport import address as addresses
from lmprog.transport.address import CurveClient, CurveServer
from lmprog.transport.channel import (
    MAX_OPS,
    Admission,
    ClientId,
    Gone,
    Received,
    ops_frames,
    replies_frames,
    replies_of,
)

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

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

    Used by one thread only.
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


MAX_UNSENT_BYTES = 256 * 1024 * 1024
"""Ops queued here while the runtime does not take them; more are refused as `Overloaded`."""
_MAX_CLIENT_FRAMES = 1024  # read by one `receive` of a client
_IN, _OUT = int(zmq.POLLIN), int(zmq.POLLOUT)
_EVENTS, _NOBLOCK = int(zmq.EVENTS), int(zmq.NOBLOCK)  # flags of enumerations are slow
_LONGEST_SLEEP = 3600.0  # seconds, so that any timeout, infinity too, is a number of milliseconds
_ENDS = {
    int(zmq.EVENT_DISCONNECTED): "closed the connection or stopped answering",
    int(zmq.EVENT_CLOSED): "cannot be reached",
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): "did not answer as a runtime does",
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): "does not speak this protocol, or expects CURVE keys",
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): "does not accept this client's key",
}


class ZmqClientChannel:
    """Connects at once and only once: a lost connection is `RuntimeGone`, since the runtime frees
    the branches of a client that is gone.

    `explain` adds to that error's message (the process that started the runtime knows its log).
    Channels of one process may share a `context`; each closes only what it made. A channel that is
    collected unclosed closes itself. It belongs to the process that opened it: after `os.fork()`
    the child must open its own.

    Any thread may send, one thread receives. A ZeroMQ socket may be used by one thread at a time:
    the one that holds `_owner`. Usually that is the receiver, which sleeps in a poll and is woken
    through a pipe; while none receives, it is the sender. The socket's monitor reports the end of
    the runtime.
    """

    def __init__(
        self,
        address: str,
        *,
        keys: CurveClient | None = None,
        explain: Callable[[], str] | None = None,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:
        self.address = addresses.check(address, keys is not None)
        self._explain = explain
        self._end: str | None = None
        self._is_closing = False
        self._pid = os.getpid()
        self._outbox: deque[bytes] = deque()
        self._unsent_bytes = 0
        # guards the two above and the wake pipe; held for moments only
        self._outbox_lock = threading.Lock()
        self._owner = threading.Lock()
        self._look: Callable[[], None] | None = None
        own_context: zmq.Context[zmq.Socket[bytes]] | None = None
        if context is None:
            context = own_context = zmq.Context()
        self._socket = context.socket(zmq.DEALER)
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._set_options(keys)
        self._monitor = self._socket.get_monitor_socket(sum(_ENDS))
        pipe = (self._wake_read, self._wake_write)
        self._free = weakref.finalize(
            self, _free, self._pid, self._socket, self._monitor, own_context, pipe
        )
        self._free.atexit = False  # at exit a daemon thread may still use the socket
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self._poller.register(self._wake_read, zmq.POLLIN)
        try:
            self._socket.connect(address)
        except zmq.ZMQError as error:
            self.close()
            raise addresses.refused_by_system(address, error) from None

    def send(self, ops: Sequence[wire.Op]) -> None:
        """See `ClientChannel`."""
        frames = ops_frames(ops)
        self._check_process()
        if self._end is not None:
            raise self._gone()
        num_bytes = sum(map(len, frames))
        with self._outbox_lock:
            if self._unsent_bytes + num_bytes > MAX_UNSENT_BYTES:
                raise Overloaded(
                    f"More than {MAX_UNSENT_BYTES} bytes wait to be taken by the runtime; "
                    "send again in a second.",
                    retry_after=1.0,
                )
            self._outbox.extend(frames)
            self._unsent_bytes += num_bytes
        if self._look is None:
            self._flush_or_wake()
        else:
            self._look()

    def receive(self, timeout: float) -> list[wire.Reply]:
        """See `ClientChannel`. A second thread that receives waits for the first."""
        self._check_process()
        deadline = time.monotonic() + timeout
        if not self._owner.acquire(timeout=min(max(timeout, 0.001), _LONGEST_SLEEP)):
            return []
        try:
            return self._wait(deadline)
        finally:
            self._owner.release()
            if self._outbox and self._look is None:
                # a sender may have found the socket in use just before it was released
                self._flush_or_wake()

    def watch(self, loop: AbstractEventLoop, look: Callable[[], None]) -> None:
        """See `WatchedChannel`. What is sent goes out with the next `receive`. A socket's
        descriptor turns readable once for what has happened, and a send may take note of that
        instead: so each asks for a look.
        """
        self._look = look
        loop.add_reader(self._socket.fileno(), look)
        loop.add_reader(self._monitor.fileno(), self._see_monitor)

    def unwatch(self, loop: AbstractEventLoop) -> None:
        self._look = None
        for watched in (self._socket, self._monitor):
            loop.remove_reader(watched.fileno())

    def close(self) -> None:
        if os.getpid() != self._pid:
            return  # the socket and its threads are the parent's
        self._is_closing = True
        self._end = self._end or "is not reached any more: this channel was closed"
        self._wake()
        with self._owner:
            if self._socket.closed:
                return
            self._flush()
            with self._outbox_lock:
                self._wake_write = -1
                self._free()

    def _set_options(self, keys: CurveClient | None) -> None:
        addresses.limit(self._socket, self.address)
        self._socket.setsockopt(zmq.RECONNECT_IVL, -1)
        self._socket.setsockopt(zmq.CONNECT_TIMEOUT, int(addresses.HANDSHAKE_TIMEOUT * 1000))
        if keys:
            self._socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
            self._socket.setsockopt(zmq.CURVE_SERVERKEY, keys.server)

    def _wait(self, deadline: float) -> list[wire.Reply]:
        """Gives out what has come before it raises for the end; needs `_owner`."""
        while True:
            if self._socket.closed:
                raise self._gone()
            replies = self._take_in(asks_first=self._flush())
            if self._look is not None and self._outbox and self._may(_OUT):
                self._look()  # its descriptor has told of this already
            if replies:
                return replies
            if self._end is not None:
                raise self._gone()
            left = min(deadline - time.monotonic(), _LONGEST_SLEEP)
            if left <= 0:
                return []
            self._poller.modify(
                self._socket, zmq.POLLIN | zmq.POLLOUT if self._outbox else zmq.POLLIN
            )
            ready = dict(self._poller.poll(max(1, int(left * 1000) + 1)))
            if self._monitor in ready:
                self._read_monitor()
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)

    def _take_in(self, asks_first: bool) -> list[wire.Reply]:
        """To be refused a frame takes twice as long as to ask for one. But to ask takes note of the
        runtime's end, after which nothing is given: so the first is asked for only after a send.
        """
        replies: list[wire.Reply] = []
        for number in range(_MAX_CLIENT_FRAMES):
            if (number or asks_first) and not self._may(_IN):
                break
            try:
                frame = self._socket.recv(_NOBLOCK)
            except zmq.Again:
                break
            replies += replies_of(frame)
        else:
            if self._look is not None:
                self._look()
        return replies

    def _may(self, event: int) -> bool:
        """Whether the socket has a frame, or room for one."""
        events = self._socket.get(_EVENTS)
        assert isinstance(events, int)
        return bool(events & event)

    def _see_monitor(self) -> None:
        self._read_monitor()
        if self._look is not None:
            self._look()

    def _read_monitor(self) -> None:
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)["event"]
            self._end = self._end or _ENDS.get(int(event))

    def _flush(self) -> bool:
        """Sends what the socket takes, and says whether it took any; needs `_owner`."""
        has_sent = False
        while self._outbox:
            try:
                self._socket.send(self._outbox[0], _NOBLOCK)
            except zmq.Again:
                break
            has_sent = True
            with self._outbox_lock:
                self._unsent_bytes -= len(self._outbox.popleft())
        return has_sent

    def _flush_or_wake(self) -> None:
        """Sends now if no thread uses the socket, else wakes the one that does, which sends."""
        if not self._owner.acquire(blocking=False):
            self._wake()
            return
        try:
            if not self._socket.closed:
                self._flush()
        finally:
            self._owner.release()

    def _wake(self) -> None:
        with self._outbox_lock:
            if self._wake_write >= 0:
                try:
                    os.write(self._wake_write, b"!")
                except BlockingIOError:
                    return  # the pipe is full of wake-ups

    def _check_process(self) -> None:
        """Before any lock is taken: in a forked child a lock may be held by a thread that the child
        does not have.
        """
        if os.getpid() != self._pid:
            raise RuntimeGone(
                f"The connection to {self.address} belongs to process {self._pid}, from which this "
                "process was forked. Connect again in this process, or start it with the 'spawn' "
                "method."
            )

    def _gone(self) -> RuntimeGone:
        more = self._explain() if self._explain and not self._is_closing else ""
        return RuntimeGone(f"The runtime at {self.address} {self._end}. {more}".strip())


def _free(
    pid: int,
    channel: zmq.Socket[bytes],
    monitor: zmq.Socket[bytes],
    context: zmq.Context[zmq.Socket[bytes]] | None,
    pipe: tuple[int, int],
) -> None:
    """Closes what a channel made; a context waits at its end for sockets that are still open."""
    if os.getpid() == pid:
        channel.disable_monitor()
        monitor.close(0)
        channel.close(0)
        if context is not None:
            context.destroy(0)
    for descriptor in pipe:
        os.close(descriptor)
