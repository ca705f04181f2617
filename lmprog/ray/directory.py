"""The addresses of an application's replicas, kept by an actor.

Replicas renew their entries, and an entry that is not renewed is dropped. So an actor that was
started again knows all replicas after a moment, and a machine that is gone needs no cleaning up.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray

NAMESPACE = "lmprog"
DEPLOYMENT = "RuntimeReplica"
"""The name of a deployment of runtimes, or its beginning."""
RENEW_SECONDS = 1.0
LEASE_SECONDS = 30.0
"""Long, since a replica on a busy machine may be late; programs notice a dead one by themselves."""
ASK_SECONDS = 10.0
"""The longest that an answer may take."""


@dataclass(frozen=True, slots=True)
class ReplicaEntry:
    """One replica: its name, its runtime's address, the machine that it runs on, and of which
    deployment it is one."""

    name: str
    address: str
    node: str
    deployment: str = ""


class Directory:
    """The replicas of one application. Runs as an actor; without Ray in tests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: dict[str, tuple[ReplicaEntry, float]] = {}
        """By name, with when the entry ends."""

    def renew(self, entry: ReplicaEntry) -> None:
        """The replica is there."""
        self._entries[entry.name] = entry, self._clock() + LEASE_SECONDS

    def leave(self, name: str) -> None:
        """The replica is gone; the last one ends the actor."""
        self._entries.pop(name, None)
        if not self.entries() and ray.is_initialized():
            ray.actor.exit_actor()

    def entries(self) -> list[ReplicaEntry]:
        """All that are there now, by name."""
        now = self._clock()
        self._entries = {name: pair for name, pair in self._entries.items() if pair[1] > now}
        return [entry for _, (entry, _) in sorted(self._entries.items())]


def deployment_of(served_name: str) -> str:
    """The name of the deployment of what is served so; "": it has no name."""
    return f"{DEPLOYMENT}:{served_name.replace('/', '--')}" if served_name else DEPLOYMENT


def opened(application: str) -> Any:
    """A handle to the application's directory, which is made where there is none."""
    with contextlib.suppress(ValueError):
        return ray.get_actor(_name(application), namespace=NAMESPACE)
    actor = ray.remote(Directory).options(
        name=_name(application),
        namespace=NAMESPACE,
        lifetime="detached",  # it must outlive the replica that happens to make it
        get_if_exists=True,
        max_restarts=-1,
        num_cpus=0,
    )
    return actor.remote()


def read(application: str) -> Sequence[ReplicaEntry] | None:
    """Its replicas; None where there is no directory, or it does not answer."""
    try:
        handle = ray.get_actor(_name(application), namespace=NAMESPACE)
        found: Sequence[ReplicaEntry] = ray.get(handle.entries.remote(), timeout=ASK_SECONDS)
    except (ValueError, ray.exceptions.RayError):  # no such actor; it has just ended
        return None
    return found


def _name(application: str) -> str:
    return f"lmprog-directory-{application}"
