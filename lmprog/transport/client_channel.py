"""A client's end over ZeroMQ: one DEALER socket; any thread may send, one thread receives.

A ZeroMQ socket may be used by one thread at a time: the one that holds `_owner`. Usually that is
the receiver, which sleeps in a poll and is woken through a pipe; while none receives, it is the
sender. The socket's monitor reports the end of the runtime. Knows no calls and no branches.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence

import zmq
from zmq.utils.monitor import recv_monitor_message

from lmprog import wire
from lmprog.errors import Overloaded, RuntimeGone
from lmprog.transport import address as addresses
from lmprog.transport.address import CurveClient
from lmprog.transport.channel import ops_frames, replies_of

MAX_UNSENT_BYTES = 256 * 1024 * 1024
"""Ops queued here while the runtime does not take them; more are refused as `Overloaded`."""
_MAX_FRAMES = 1024  # read by one `receive`
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
        self._flush_or_wake()

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
            if self._outbox:
                # a sender may have found the socket in use just before it was released
                self._flush_or_wake()

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
            self._flush()
            replies = self._take_in()
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

    def _take_in(self) -> list[wire.Reply]:
        replies: list[wire.Reply] = []
        for _ in range(_MAX_FRAMES):
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            replies += replies_of(frame)
        return replies

    def _read_monitor(self) -> None:
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)["event"]
            self._end = self._end or _ENDS.get(int(event))

    def _flush(self) -> None:
        """Sends what the socket takes; needs `_owner`."""
        while self._outbox:
            try:
                self._socket.send(self._outbox[0], zmq.NOBLOCK)
            except zmq.Again:
                return
            with self._outbox_lock:
                self._unsent_bytes -= len(self._outbox.popleft())

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
