"""What Serve runs: one deployment whose replicas are runtimes.

`app` knows Serve's options and starts nothing. A `RuntimeReplica` is an actor of Serve that has one
runtime, as a process of its own: it starts the runtime, watches whether it makes progress, keeps
its entry in the directory, tells Serve how busy it is, and Ray its figures. Programs reach the
runtime directly; nothing of them passes through here.
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
from ray.serve import metrics
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from lmprog.errors import InvalidParameter, LmprogError, RuntimeGone
from lmprog.fleet.fleet_channel import DEFAULT_SLOTS
from lmprog.fleet.members import Member
from lmprog.fleet.replica_link import ReplicaLink
from lmprog.launch import RuntimeProcess
from lmprog.launch.restarts import LONGEST_GAP, HangTimeouts
from lmprog.launch.runtime_process import configured
from lmprog.ray import directory
from lmprog.ray.autoscaling import BUSY, by_slots
from lmprog.server.observability.runtime_metrics import COUNTERS, GAUGES, PREFIX

log = logging.getLogger("lmprog")

LOOK_SECONDS = 0.2
STOP_GRACE = 10.0
"""Seconds that a runtime has to end in order; its programs move at the beginning of it."""
HEALTH_SECONDS = 1.0
"""Between two health checks; Serve replaces a replica after three that failed."""


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
            context.replica_tag,
            self._runtime.address,
            ray.get_runtime_context().get_node_id(),
            context.deployment,
        )
        self._trouble: str | None = None
        self._stopping = threading.Event()
        self._now = 0.0
        self._link = self._linked()
        info = self._link.connection.info
        self._metrics = RayMetrics(info.served_name or info.model)
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

    def wake(self) -> None:
        """Does nothing: Serve starts a replica for a request that finds none."""

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
            pulse=self._runtime.busy_seconds,
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
                self._metrics.see(self._link.figures)
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


class RayMetrics:
    """A runtime's figures as metrics of Ray, which exports them at the port of its node: by the
    names of `/metrics`, which Ray puts `ray_` before.
    """

    def __init__(self, model: str) -> None:
        """`model` is their label, beside those that Serve gives them."""
        more: dict[str, Any] = {"tag_keys": ("model_name",)}
        self._tags = {"model_name": model}
        self._gauges = [
            (one.read, metrics.Gauge(PREFIX + one.name, description=one.help, **more))
            for one in GAUGES
        ]
        self._counters = [
            (one, metrics.Counter(PREFIX + one.name, description=one.help, **more))
            for one in COUNTERS
        ]
        self._told: dict[str, float] = {}

    def see(self, figures: Mapping[str, float]) -> None:
        """The newest ones of the only runtime that this process has."""
        for read, gauge in self._gauges:
            gauge.set(read(figures), self._tags)
        for one, counter in self._counters:
            times = 1.0 if one.times is None else figures.get(one.times, 0.0)
            count = figures.get(one.figure, 0.0) * times
            if (more := count - self._told.get(one.name, 0.0)) > 0:
                counter.inc(more, self._tags)
                self._told[one.name] = count


def app(
    model: str = "nano",
    *,
    replicas: int | tuple[int, int] = 1,
    tensor_parallel: int = 1,
    slots: int = DEFAULT_SLOTS,
    keys: str | None = None,
    resources: Mapping[str, Any] | None = None,
    autoscaling: Mapping[str, Any] | None = None,
    **options: Any,
) -> serve.Application:
    """For `serve.run(app(...), name="...", route_prefix=None)`.

    `replicas` is a number, or the least and the most: between them Serve follows what waits and
    runs, in shares of `slots`; `autoscaling` are more fields of Serve's `AutoscalingConfig`. Where
    the least is 0 the last one ends too when nobody needs it, and who does is waited for.
    `resources` are those of a replica (`num_cpus`, `num_gpus`, and what else `ray_actor_options`
    takes); a runtime computes with as many threads as it has processors, and has a GPU where its
    `device` is one, unless `num_gpus` says otherwise. With `tensor_parallel`
    they are those of a rank: all ranks of a replica are on one machine, in a placement group.
    `keys` is a folder of CURVE keys, at the same place on every machine; a cluster of several
    machines needs them. `options` are those of `lmprog.Runtime`; with a `served_model_name` the
    deployment has that in its name, since an application may have several.

    Raises InvalidParameter and UnknownName for options that are wrong.
    """
    bounds = (replicas, replicas) if isinstance(replicas, int) else tuple(replicas)
    if len(bounds) != 2 or not 0 <= bounds[0] <= bounds[1] or not bounds[1]:
        raise InvalidParameter(
            "replicas must be a number, or the least and the most",
            name="replicas",
            value=str(replicas),
            allowed="0 <= least <= most, and at least one at most",
        )
    if tensor_parallel < 1 or "tp" in options:
        raise InvalidParameter(
            "tensor_parallel says how many ranks a replica has",
            name="tensor_parallel",
            value=tensor_parallel,
            allowed=">= 1, and no tp beside it",
        )
    actor = {"num_cpus": max(1, (options.get("threads") or 1) // tensor_parallel)}
    if str(options.get("device") or "").startswith("cuda"):
        actor["num_gpus"] = 1  # Ray hides those of a machine from an actor that asks for none
    actor.update(resources or {})
    threads = max(1, int(actor["num_cpus"])) * tensor_parallel
    options = {"threads": threads, "tp": tensor_parallel, **options}
    config = configured(model, dict(options))  # what is wrong is said here, not by an actor's log
    if config.kv_events is not None and bounds[1] > 1:
        says = "kv_events is for one runtime: several cannot share its address; leave it out"
        raise InvalidParameter(says, name="kv_events", value=str(config.kv_events))
    together = _together(actor, tensor_parallel)
    deployment = serve.deployment(
        RuntimeReplica,
        name=directory.deployment_of(config.served_model_name),
        ray_actor_options=actor,
        health_check_period_s=HEALTH_SECONDS,
        graceful_shutdown_timeout_s=2 * STOP_GRACE,
        **_number(*bounds, autoscaling),
        **together,
    )
    return deployment.bind(model, options, slots, keys)


def build(arguments: dict[str, Any]) -> serve.Application:
    """The same for a file of `serve deploy` or of KubeRay: `import_path: lmprog.ray:build`, and the
    arguments of `app` under `args`; below `gateways` there those of `with_gateways`, where Serve's
    own HTTP proxy shall serve.
    """
    runtimes = {name: value for name, value in arguments.items() if name != "gateways"}
    gateways = arguments.get("gateways")
    if gateways is None:
        return app(**runtimes)
    from lmprog.ray.serve_gateway import with_gateways

    return with_gateways(app(**runtimes), **{"keys": runtimes.get("keys"), **gateways})


def _together(actor: dict[str, Any], ranks: int) -> dict[str, Any]:
    """The options of a deployment that keep a replica's ranks on one machine. GPUs become the
    actor's own, all of them: Ray shows a process those of its own bundle, and the ranks are its
    children.
    """
    if ranks == 1:
        return {}
    bundle = {"CPU": actor["num_cpus"], "GPU": actor.get("num_gpus", 0)}
    bundle.update(actor.get("resources", {}))
    if kind := actor.get("accelerator_type"):
        bundle[f"accelerator_type:{kind}"] = 0.001  # as Ray has it of an actor by itself
    bundle = {name: n for name, n in bundle.items() if n}
    bundles = [bundle] * ranks
    if "GPU" in bundle:
        bundles = [{name: n * ranks for name, n in bundle.items()}]
        actor["num_gpus"] *= ranks
    return {"placement_group_bundles": bundles, "placement_group_strategy": "STRICT_PACK"}


def _number(least: int, most: int, autoscaling: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options of a deployment that say how many replicas there are."""
    if least == most:
        if autoscaling:
            raise InvalidParameter(
                "autoscaling needs room: replicas must be the least and the most",
                name="autoscaling",
            )
        return {"num_replicas": least}
    if "target_ongoing_requests" in (autoscaling or {}):
        says = "target_ongoing_requests counts Serve's requests, and there are none; say slots"
        raise InvalidParameter(says, name="target_ongoing_requests")
    policy = AutoscalingPolicy(policy_function=by_slots)
    config = {"min_replicas": least, "max_replicas": most, "policy": policy, **(autoscaling or {})}
    return {"autoscaling_config": AutoscalingConfig(**config)}
