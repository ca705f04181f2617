"""This process in a Ray cluster: it enters one, or starts one of its own; it runs an application
there, and ends what it began.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeAlias

import ray
from ray import serve

from lmprog.errors import RuntimeGone
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


def joined_members(application: str, address: str, keys: CurveClient | None) -> RayMembers:
    """The replicas of an application that runs already, in the cluster at `address`."""
    return RayMembers(application, keys, enter(address))


def started_members(
    application: str, model: str, arguments: dict[str, Any], leave: Leave
) -> RayMembers:
    """Runs `app(model, **arguments)` in the cluster that this process is in, and waits until it
    serves; closing the members ends it, and leaves. Raises RuntimeGone where it cannot run.
    """
    bound = app(model, **arguments)
    serve.start(proxy_location="Disabled")  # our gateway stands beside it
    try:
        serve.run(bound, name=application, route_prefix=None)
    except RuntimeError as error:
        leave()
        raise RuntimeGone(f"The replicas could not be started on Ray: {error}") from None

    def end() -> None:
        try:
            serve.delete(application)
        finally:
            leave()

    return RayMembers(application, client_keys(arguments.get("keys")), end)
