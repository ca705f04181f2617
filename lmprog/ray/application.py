"""What Serve runs: one deployment whose replicas are runtimes.

Knows Serve's options; starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from lmprog.errors import InvalidParameter
from lmprog.fleet.fleet_channel import DEFAULT_SLOTS
from lmprog.launch.runtime_process import configured
from lmprog.ray.autoscaling import by_slots
from lmprog.ray.runtime_replica import STOP_GRACE, RuntimeReplica

HEALTH_SECONDS = 1.0
"""Between two health checks; Serve replaces a replica after three that failed."""


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
    runs, in shares of `slots`; `autoscaling` are more fields of Serve's `AutoscalingConfig`.
    `resources` are those of a replica (`num_cpus`, `num_gpus`, and what else `ray_actor_options`
    takes); a runtime computes with as many threads as it has processors. With `tensor_parallel`
    they are those of a rank: all ranks of a replica are on one machine, in a placement group.
    `keys` is a folder of CURVE keys, at the same place on every machine; a cluster of several
    machines needs them. `options` are those of `lmprog.Runtime`.

    Raises InvalidParameter and UnknownName for options that are wrong.
    """
    bounds = (replicas, replicas) if isinstance(replicas, int) else tuple(replicas)
    if len(bounds) != 2 or not 1 <= bounds[0] <= bounds[1]:
        raise InvalidParameter(
            "replicas must be a number, or the least and the most",
            name="replicas",
            value=str(replicas),
            allowed="1 <= least <= most",
        )
    if tensor_parallel < 1 or "tp" in options:
        raise InvalidParameter(
            "tensor_parallel says how many ranks a replica has",
            name="tensor_parallel",
            value=tensor_parallel,
            allowed=">= 1, and no tp beside it",
        )
    actor = {"num_cpus": max(1, (options.get("threads") or 1) // tensor_parallel)}
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
    policy = AutoscalingPolicy(policy_function=by_slots)
    config = {"min_replicas": least, "max_replicas": most, "policy": policy, **(autoscaling or {})}
    return {"autoscaling_config": AutoscalingConfig(**config)}
