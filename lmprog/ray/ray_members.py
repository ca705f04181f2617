"""The replicas of a Ray application as the members of a fleet.

Asks the application's directory in a thread of its own, so that whoever asks who is there never
waits. Knows addresses; starts and ends no replica.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence

import ray

from lmprog.errors import RuntimeGone
from lmprog.fleet.members import Member
from lmprog.launch import Connection, connect
from lmprog.ray import directory
from lmprog.ray.directory import ReplicaEntry
from lmprog.transport import CurveClient

POLL_SECONDS = 0.5
FORGET_SECONDS = 15.0
"""A replica that the directory does not name any more is kept so long: a directory that was started
again knows nobody at first, and a connection that has ended is noticed anyway."""


class RayMembers:
    """The replicas of `application`; this process is connected to its cluster."""

    def __init__(
        self,
        application: str,
        keys: CurveClient | None = None,
        when_closed: Callable[[], None] = lambda: None,
    ) -> None:
        """`when_closed` is called once, after the last question."""
        self._when_closed = when_closed
        self._application = application
        self._keys = keys
        self._node = ray.get_runtime_context().get_node_id()
        self._seen: dict[str, tuple[Member, float]] = {}
        """By name, with when the directory named it last."""
        self._current: Sequence[Member] = ()
        self._closed = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="lmprog-ray", daemon=True)
        self._poller.start()

    @property
    def size(self) -> int:
        """The number of replicas that run; Serve decides how many there should be."""
        return len(self._current)

    def current(self) -> Sequence[Member]:
        """See `Members`."""
        return self._current

    def end(self, name: str, why: str, grace: float) -> None:
        """It belongs to Serve, whose health checks replace it."""

    def close(self, grace: float) -> bool:
        """Asks no more; replicas go on, where `when_closed` does not end them."""
        if not self._closed.is_set():
            self._closed.set()
            self._poller.join()
            self._when_closed()
        return True

    def _poll(self) -> None:
        while not self._closed.is_set():
            entries = directory.read(self._application)
            if entries is not None:
                self._take(entries, time.monotonic())
            self._closed.wait(POLL_SECONDS)

    def _take(self, entries: Sequence[ReplicaEntry], now: float) -> None:
        for entry in entries:
            known = self._seen.get(entry.name)
            member = known[0] if known else Member(entry.name, functools.partial(self._dial, entry))
            self._seen[entry.name] = member, now
        self._seen = {
            name: (member, seen)
            for name, (member, seen) in self._seen.items()
            if now - seen < FORGET_SECONDS
        }
        self._current = [member for _, (member, _) in sorted(self._seen.items())]

    def _dial(self, entry: ReplicaEntry) -> Connection:
        if entry.address.startswith("ipc:") and entry.node != self._node:
            raise RuntimeGone(
                f"The replica {entry.name} runs on another machine and has no keys: give "
                "lmprog.ray.app(keys=...), and the same folder to the gateway."
            )
        return connect(entry.address, client="fleet", keys=self._keys)
