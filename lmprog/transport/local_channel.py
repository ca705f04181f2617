"""Both ends in one process, over queues: for tests, offline use, and runtimes in a thread.

Messages are encoded, and clients admitted, as over ZeroMQ. Knows no sockets.
"""

from __future__ import annotations

import itertools
import queue
import time
from collections.abc import Sequence
from typing import TypeVar

from lmprog import wire
from lmprog.errors import RuntimeGone
from lmprog.transport.admission import Admission
from lmprog.transport.channel import (
    MAX_OPS,
    ClientId,
    Gone,
    Received,
    ops_frames,
    replies_frames,
    replies_of,
)

T = TypeVar("T")

_END = b""  # in place of a frame: this side has closed
_LONGEST_SLEEP = 3600.0  # seconds; so that an infinite timeout can be waited for


class LocalRuntimeChannel:
    """The runtime's end. `connect()` makes any number of clients, from any thread."""

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
                self._clients[client].deliver(frame)

    def close(self) -> None:
        self._closed = True
        for channel in list(self._clients.values()):
            channel.deliver(_END)
        self._clients.clear()

    def _admit(self, client: ClientId, frame: bytes) -> list[tuple[ClientId, Received]]:
        if frame == _END:
            self._clients.pop(client, None)
            return [(client, Gone())] if self._admission.forget(client) else []
        admitted = self._admission.admit(client, frame)
        if admitted.refusal and client in self._clients:
            self._clients[client].deliver(wire.encode((admitted.refusal,)))
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

    def deliver(self, frame: bytes) -> None:
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
