"""The replicas of a Ray application as the members of a fleet.

Asks the application's directory in a thread of its own, so that whoever asks who is there never
waits. Where Serve has ended the last replica of a deployment, since nobody needed it, a member
stands for it that sleeps: it is woken by a request to the deployment, for which Serve starts a
replica. Knows addresses; starts and ends no replica itself.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence

import ray
from ray import serve
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatusOverview

from lmprog.errors import RuntimeGone
from lmprog.fleet.members import Member
from lmprog.fleet.router import WAKING_SECONDS
from lmprog.launch import Connection, connect
from lmprog.ray import directory
from lmprog.ray.directory import DEPLOYMENT, ReplicaEntry
from lmprog.transport import CurveClient

log = logging.getLogger("lmprog")

POLL_SECONDS = 0.5
LOOK_SECONDS = 2.0
"""Between two questions to Serve which deployments have no replica."""
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
        self._last: dict[str, str] = {}
        """By deployment, the replica of it that was seen last."""
        self._sleepers: dict[str, Member] = {}
        """By deployment, what stands for one without replicas."""
        self._waking: dict[str, threading.Thread] = {}
        self._looked = 0.0
        self._closed = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="lmprog-ray", daemon=True)
        self._poller.start()

    @property
    def size(self) -> int:
        """The number of replicas that run; Serve decides how many there should be."""
        return len([one for one in self._current if one.wake is None])

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
            entries, now = directory.read(self._application), time.monotonic()
            if now - self._looked >= LOOK_SECONDS:
                self._looked = now
                self._look_for_sleepers(entries or ())
            if entries is not None or self._sleepers:
                self._take(entries or (), now)
            self._closed.wait(POLL_SECONDS)

    def _take(self, entries: Sequence[ReplicaEntry], now: float) -> None:
        for entry in entries:
            known = self._seen.get(entry.name)
            member = known[0] if known else Member(entry.name, functools.partial(self._dial, entry))
            self._seen[entry.name] = member, now
            self._last[entry.deployment] = entry.name
            self._sleepers.pop(entry.deployment, None)
        self._seen = {
            name: (member, seen)
            for name, (member, seen) in self._seen.items()
            if now - seen < FORGET_SECONDS
        }
        running = [member for _, (member, _) in sorted(self._seen.items())]
        self._current = [*running, *self._sleepers.values()]

    def _look_for_sleepers(self, entries: Sequence[ReplicaEntry]) -> None:
        """Which deployments have no replica, on purpose. One that has never been seen is woken, to
        know what it serves.
        """
        there = {entry.deployment for entry in entries}
        sleeping = [one for one in self._without_replicas() if one not in there]
        self._sleepers = {name: one for name, one in self._sleepers.items() if name in sleeping}
        for name in sleeping:
            if name not in self._sleepers:
                wake = functools.partial(self._wake, name)
                self._sleepers[name] = Member(self._last.get(name, name), _asleep, wake=wake)
                self._seen.pop(self._last.get(name, ""), None)
                if name not in self._last:
                    wake()

    def _without_replicas(self) -> list[str]:
        """Deployments of which no replica runs, though nothing is wrong; one that is being woken
        is among them until it serves.
        """
        try:
            application = serve.status().applications.get(self._application)
        except (RayServeException, ray.exceptions.RayError):  # Serve is gone, or does not answer
            return []
        return [] if application is None else _idle(application, self._sleepers)

    def _wake(self, deployment: str) -> None:
        """Does not wait; while one request is under way it is enough."""
        asking = self._waking.get(deployment)
        if asking is None or not asking.is_alive():
            self._waking[deployment] = threading.Thread(
                target=self._ask_for_one, args=(deployment,), name="lmprog-wake", daemon=True
            )
            self._waking[deployment].start()

    def _ask_for_one(self, deployment: str) -> None:
        """Serve starts a replica for a request that finds none."""
        log.info("%s of %s is woken", deployment, self._application)
        try:
            handle = serve.get_deployment_handle(deployment, self._application)
            handle.wake.remote().result(timeout_s=WAKING_SECONDS)
        except (RayServeException, ray.exceptions.RayError, TimeoutError) as error:
            log.warning("%s of %s was not woken: %s", deployment, self._application, error)

    def _dial(self, entry: ReplicaEntry) -> Connection:
        if entry.address.startswith("ipc:") and entry.node != self._node:
            raise RuntimeGone(
                f"The replica {entry.name} runs on another machine and has no keys: give "
                "lmprog.ray.app(keys=...), and the same folder to the gateway."
            )
        return connect(entry.address, client="fleet", keys=self._keys)


def _idle(application: ApplicationStatusOverview, known: Collection[str]) -> list[str]:
    """Our deployments of an application that have no replica, or that were `known` to have none
    and start one.
    """
    return [
        name
        for name, one in application.deployments.items()
        if name.startswith(DEPLOYMENT)
        and one.status not in ("UNHEALTHY", "DEPLOY_FAILED")
        and (name in known or not sum(one.replica_states.values()))
    ]


def _asleep() -> Connection:
    raise RuntimeGone("The replica sleeps; a program that needs it wakes it.")
