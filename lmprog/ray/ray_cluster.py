"""This process in a Ray cluster: it enters one, or starts one of its own; it runs applications
there, and ends what it began.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import ray
from ray import serve
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview

from lmprog.errors import RuntimeGone
from lmprog.fleet.members import JoinedMembers, Members, members_at
from lmprog.ray.application import app
from lmprog.ray.ray_members import RayMembers
from lmprog.transport import CurveClient, client_keys

log = logging.getLogger("lmprog")

OBJECT_STORE_BYTES = 80 * 1024 * 1024
"""The least object store that Ray accepts: no data of a program is kept in it."""
LOOK_SECONDS = 0.5
SAID_EVERY = 30.0
"""Seconds after which it is said again what replicas that do not start wait for."""

Leave: TypeAlias = Callable[[], None]
"""Undoes what `enter` did."""


def enter(address: str | None, num_cpus: int | None = None) -> Leave:
    """Connects this process to the cluster at `address` (`auto`: RAY_ADDRESS, or that of this
    machine; None: one on this machine that is started here), where it is in none yet. One that is
    started here counts `num_cpus`, whatever the machine has (None: what it has). Raises RuntimeGone
    where there is no cluster.

    Ray has its own ideas about signals: call this on the main thread, before handlers are set.
    """
    if ray.is_initialized():
        return lambda: None
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(
            "local",
            num_cpus=num_cpus,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
        )
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
    waits until all serve, and says what for; closing the members ends them, and leaves. Raises
    RuntimeGone where one cannot run, and then none is left.
    """
    bound = {name: app(**arguments) for name, arguments in applications.items()}
    serve.start(proxy_location="Disabled")  # our gateway stands beside it

    def end() -> None:
        try:
            for name in applications:
                serve.delete(name)
        finally:
            leave()

    try:
        targets = [serve.RunTarget(one, name, route_prefix=None) for name, one in bound.items()]
        serve.run_many(targets, wait_for_applications_running=False)
        _await_all(set(applications))
    except RuntimeError as error:
        end()
        raise RuntimeGone(f"The replicas could not be started on Ray: {error}") from None

    parts: list[Members] = [
        RayMembers(name, client_keys(arguments.get("keys")), end if at == 0 else _stay)
        for at, (name, arguments) in enumerate(applications.items())
    ]
    return parts[0] if len(parts) == 1 else JoinedMembers(parts)


def _await_all(names: set[str]) -> None:
    """Until these applications run. Raises RuntimeError where one cannot."""
    said = time.monotonic()
    while True:
        states = {name: one for name, one in serve.status().applications.items() if name in names}
        for name, one in states.items():
            if one.status == ApplicationStatus.DEPLOY_FAILED:
                raise RuntimeError(f"{name}: {one.message}")
        missing = {
            name: one for name, one in states.items() if one.status != ApplicationStatus.RUNNING
        }
        if not missing and len(states) == len(names):
            return
        if time.monotonic() - said >= SAID_EVERY:
            said = time.monotonic()
            for name, one in missing.items():
                log.warning("%s does not serve yet: %s", name, _why(one))
        time.sleep(LOOK_SECONDS)


def _why(application: ApplicationStatusOverview) -> str:
    """What Ray says of an application that does not run."""
    messages = [one.message for one in application.deployments.values() if one.message]
    return " ".join(messages) or application.message or application.status.value


def _stay() -> None:
    """The first of several members leaves for all: it is closed last."""
