"""One replica: an actor of Serve that has one runtime, as a process of its own.

It starts the runtime, watches whether it makes progress, keeps its entry in the directory, and
tells Serve how busy it is. Programs reach the runtime directly; nothing of them passes through
here.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import ray
from ray import serve

from lmprog.errors import LmprogError, RuntimeGone
from lmprog.fleet.members import Member
from lmprog.fleet.replica_link import ReplicaLink
from lmprog.launch import RuntimeProcess
from lmprog.launch.restarts import HangTimeouts
from lmprog.ray import directory
from lmprog.ray.autoscaling import BUSY

log = logging.getLogger("lmprog")

LOOK_SECONDS = 0.2
LONGEST_GAP = 1.0
"""Seconds. A longer time between two checks is not counted against the runtime: this process was
itself stopped.
"""
STOP_GRACE = 10.0
"""Seconds that a runtime has to end in order; its programs move at the beginning of it."""


class RuntimeReplica:
    """What Serve makes in each replica's process. Raises what the runtime's start raises."""

    def __init__(
        self, model: str, options: Mapping[str, Any], slots: int, keys: str | None
    ) -> None:
        """`keys` is a folder of CURVE keys, at the same place on every machine. Without, only
        programs of this machine and user reach the runtime.
        """
        context = serve.get_replica_context()
        self._application = context.app_name
        self._slots = slots
        address = f"tcp://{ray.util.get_node_ip_address()}:*" if keys else None
        self._runtime = RuntimeProcess(
            model, address=address, keys=keys, log_to_stderr=True, **options
        )
        self._entry = directory.ReplicaEntry(
            context.replica_tag, self._runtime.address, ray.get_runtime_context().get_node_id()
        )
        self._trouble: str | None = None
        self._stopping = threading.Event()
        self._now = 0.0
        self._link = self._linked()
        self._watcher = threading.Thread(target=self._watch, name="lmprog-watch", daemon=True)
        self._watcher.start()

    def check_health(self) -> None:
        """Serve asks this; a replica that raises is replaced."""
        if self._trouble is not None:
            raise RuntimeGone(f"The replica's runtime is gone: {self._trouble}.")

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Serve asks this, too; see `autoscaling`."""
        figures = self._link.figures
        return {BUSY: (figures.get("waiting", 0.0) + figures.get("running", 0.0)) / self._slots}

    def __del__(self) -> None:
        """Serve calls this when the replica is to end: its programs move, and nothing is lost."""
        if not hasattr(self, "_runtime"):
            return  # it could not be started
        if hasattr(self, "_watcher"):
            self._stopping.set()
            if not sys.is_finalizing():  # then the thread stands still, and never ends
                self._watcher.join()
        self._runtime.close(STOP_GRACE)  # first, since it tells its clients that it ends in order
        if hasattr(self, "_entry"):
            directory.opened(self._application).leave.remote(self._entry.name)

    # --- the watching thread ----------------------------------------------------------------------

    def _linked(self) -> ReplicaLink:
        member = Member(
            self._entry.name,
            lambda: self._runtime.connect("ray"),
            pulse=self._runtime.cpu_seconds,
        )
        return ReplicaLink(member, member.dial(), HangTimeouts(), self._now)

    def _watch(self) -> None:
        """Until the replica ends, or its runtime is in trouble: then the runtime is ended, and the
        next health check says so.
        """
        looked, renewed = time.monotonic(), -directory.RENEW_SECONDS
        while not self._stopping.is_set():
            now = time.monotonic()
            self._now += min(now - looked, LONGEST_GAP)
            looked = now
            why = self._link.look(self._now) or self._read_figures()
            if why is not None:
                log.error("the runtime is ended: %s", why)
                self._runtime.write_stacks()
                self._runtime.close(0.0)
                self._trouble = why
                break
            if now - renewed >= directory.RENEW_SECONDS:
                renewed = now
                self._renew()
        self._link.connection.close()

    def _read_figures(self) -> str | None:
        """Waits a moment for figures. Why the runtime cannot be asked any more; None: it can."""
        try:
            replies = self._link.connection.receive(LOOK_SECONDS)
        except LmprogError as error:
            return str(error)
        self._link.without_own(replies, self._now)
        return None

    def _renew(self) -> None:
        try:
            directory.opened(self._application).renew.remote(self._entry)
        except ray.exceptions.RayError as error:  # tried again in a second
            log.warning("the directory of %s does not answer: %s", self._application, error)
