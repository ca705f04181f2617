"""This process in a Ray cluster: it enters one, or starts one of its own; it runs applications
there, and ends what it began.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import ray
from ray import serve

from lmprog.errors import RuntimeGone
from lmprog.fleet.members import JoinedMembers, Members, members_at
from lmprog.ray.application import app
from lmprog.ray.ray_members import RayMembers
from lmprog.transport import CurveClient, client_keys

OBJECT_STORE_BYTES = 80 * 1024 * 1024
"""The least object store that Ray accepts: no data of a program is kept in it."""

Leave: TypeAlias = Callable[[], None]
"""Undoes what `enter` did."""


def enter(address: str | None) -> Leave:
    """Connects this process to the cluster at `address` (`auto`: RAY_ADDRESS, or that of this
    machine; None: one on this machine that is started here), where it is in none yet. Raises
    RuntimeGone where there is no cluster.

    Ray has its own ideas about signals: call this on the main thread, before handlers are set.
    """
    if ray.is_initialized():
        return lambda: None
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init("local", include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES)
    else:
        try:
            ray.init(address, log_to_driver=False)
        except ConnectionError as error:
            raise RuntimeGone(f"There is no Ray cluster at {address!r}: {error}") from None
    return lambda: ray.shutdown()


def joined_members(
    applications: str | Sequence[str],
    address: str,
    keys: CurveClient | None,
    beside: Sequence[str] = (),
) -> Members:
    """The replicas of an application, or of several, that run already, in the cluster at
    `address`; `beside` them runtimes at addresses.
    """
    names = [applications] if isinstance(applications, str) else applications
    others = [members_at(beside, keys)] if beside else []
    leave = enter(address)
    parts: list[Members] = [
        RayMembers(name, keys, leave if at == 0 else _stay) for at, name in enumerate(names)
    ]
    parts += others
    return parts[0] if len(parts) == 1 else JoinedMembers(parts)


def started_members(applications: Mapping[str, Mapping[str, Any]], leave: Leave) -> Members:
    """Runs each application, of `app(**arguments)`, in the cluster that this process is in, and
    waits until it serves; closing the members ends them, and leaves. Raises RuntimeGone where one
    cannot run.
    """
    bound = {name: app(**arguments) for name, arguments in applications.items()}
    serve.start(proxy_location="Disabled")  # our gateway stands beside it
    try:
        for name, one in bound.items():
            serve.run(one, name=name, route_prefix=None)
    except RuntimeError as error:
        leave()
        raise RuntimeGone(f"The replicas could not be started on Ray: {error}") from None

    def end() -> None:
        try:
            for name in applications:
                serve.delete(name)
        finally:
            leave()

    parts: list[Members] = [
        RayMembers(name, client_keys(arguments.get("keys")), end if at == 0 else _stay)
        for at, (name, arguments) in enumerate(applications.items())
    ]
    return parts[0] if len(parts) == 1 else JoinedMembers(parts)


def _stay() -> None:
    """The first of several members leaves for all: it is closed last."""
