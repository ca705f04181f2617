"""The client's end of a fleet: a channel like any other, behind which programs are spread.

One thread reads each replica, one looks after who is there; all of them only feed the router,
under one lock. Knows connections and threads; who goes where is the router's business.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Sequence

import msgspec

from lmprog import wire
from lmprog.errors import LmprogError, RuntimeGone
from lmprog.fleet.members import Member, Members
from lmprog.fleet.router import Router
from lmprog.launch import Connection
from lmprog.transport import ReplyReader
from lmprog.transport.channel import ops_frames

log = logging.getLogger("lmprog")

LOOK_SECONDS = 0.25
"""Between two looks at who is there."""
DEFAULT_SLOTS = 64
"""Programs that a replica serves well at the same time."""


class FleetChannel:
    """A `ClientChannel` over the replicas of `members`, which it owns. `info` speaks for all
    of them.
    """

    def __init__(
        self, members: Members, *, slots: int = DEFAULT_SLOTS, timeout: float = 60.0
    ) -> None:
        """Waits for the first replica. Raises RuntimeGone where none answers within `timeout` s."""
        self._members = members
        self._slots = slots
        self._router = Router()
        self._lock = threading.Lock()
        self._connections: dict[str, Connection] = {}
        self._heard: queue.SimpleQueue[wire.Reply | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._greeted = threading.Event()
        self._first: wire.Welcome | None = None
        self._readers: list[ReplyReader] = []
        self._looking = threading.Thread(target=self._look, name="lmprog-fleet", daemon=True)
        self._looking.start()
        if not self._greeted.wait(timeout):
            self.close()
            raise RuntimeGone(f"no replica of the fleet answered within {timeout:g} seconds")

    @property
    def info(self) -> wire.Welcome:
        """The first replica's greeting, with the pages of all that are up."""
        assert self._first is not None
        with self._lock:
            pages = sum(one.info.num_pages for one in self._connections.values())
        return msgspec.structs.replace(self._first, num_pages=pages or self._first.num_pages)

    @property
    def loads(self) -> dict[str, int]:
        """Open programs of this client, by replica."""
        with self._lock:
            return self._router.loads

    @property
    def num_moved(self) -> int:
        """Programs that were built again, because their replica had died."""
        return self._router.num_moved

    def send(self, ops: Sequence[wire.Op]) -> None:
        """See `ClientChannel.send`."""
        if self._closed.is_set():
            raise RuntimeGone("the fleet's channel was closed")
        ops_frames(ops)  # what is wrong is found here, and not when it is sent to some replica
        with self._lock:
            self._router.take_ops(ops)
            self._pass_on()

    def receive(self, timeout: float) -> list[wire.Reply]:
        """See `ClientChannel.receive`."""
        replies: list[wire.Reply] = []
        try:
            reply = self._heard.get(timeout=max(timeout, 0.0))
            while reply is not None:
                replies.append(reply)
                reply = self._heard.get_nowait()
        except queue.Empty:
            return replies
        self._heard.put(None)  # every later call finds the end as well
        if replies:
            return replies
        raise RuntimeGone("the fleet's channel was closed")

    def close(self) -> None:
        """Closes all connections, and ends what the members started. Safe to repeat."""
        if self._closed.is_set():
            return
        self._closed.set()
        if threading.current_thread() is not self._looking:
            self._looking.join()  # no connection comes from here on
        for reader in self._readers:
            reader.stop()
        for connection in list(self._connections.values()):
            connection.close()
        self._members.close()
        self._heard.put(None)
        for reader in self._readers:
            reader.join()

    def _look(self) -> None:
        """Body of the thread that looks after who is there."""
        while not self._closed.is_set():
            members = {one.name: one for one in self._members.current()}
            for name in [name for name in self._connections if name not in members]:
                self._lost(name, self._connections[name])
            for name, member in members.items():
                if name not in self._connections and not self._closed.is_set():
                    self._dial(member)
            with self._lock:
                self._router.tick()
                self._pass_on()
            self._closed.wait(LOOK_SECONDS)

    def _dial(self, member: Member) -> None:
        try:
            connection = member.dial()
        except LmprogError as error:
            log.debug("replica %s does not answer: %s", member.name, error)
            return
        with self._lock:
            self._connections[member.name] = connection
            self._router.join(member.name, connection.info, self._slots)
            self._first = self._first or connection.info
            self._pass_on()
        self._readers.append(
            ReplyReader(
                connection,
                lambda replies: self._take(member.name, replies),
                lambda _: self._lost(member.name, connection),
                name=f"lmprog-{member.name}",
            )
        )
        self._greeted.set()

    def _take(self, name: str, replies: list[wire.Reply]) -> None:
        """On a reading thread."""
        with self._lock:
            self._router.take_replies(name, replies)
            self._pass_on()

    def _lost(self, name: str, connection: Connection) -> None:
        """A replica is gone; whoever notices first moves its programs."""
        with self._lock:
            if self._connections.get(name) is not connection:
                return
            del self._connections[name]
            began = time.perf_counter()
            moved = self._router.num_moved
            self._router.lose(name)
            self._pass_on()
            moved = self._router.num_moved - moved
            took = 1e3 * (time.perf_counter() - began)
            log.warning("replica %s is gone; %d programs moved in %.1f ms", name, moved, took)
        connection.close()

    def _pass_on(self) -> None:
        """Sends what the router wants sent. The lock is held."""
        while self._router.outgoing:
            name, ops = self._router.outgoing.popleft()
            connection = self._connections.get(name)
            if connection is None:
                continue
            try:
                connection.send(ops)
            except RuntimeGone:
                log.debug("replica %s is gone while it is written to", name)  # its reader moves all
            except LmprogError as error:
                log.error("a frame for replica %s could not be sent: %s", name, error)
                self._router.refuse(ops, error)
        while self._router.replies:
            self._heard.put(self._router.replies.popleft())
