"""Applications by the names of `ray.serve.llm`, for who comes from there: its `LLMConfig` and what
its `build_openai_app` takes, as arguments of `app` and `with_gateways`.

Knows their fields; reads no model. What has no meaning here is refused, and not passed over.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ray import serve

from lmprog.errors import InvalidParameter, UnknownName
from lmprog.ray.application import app
from lmprog.ray.serve_gateway import with_gateways

Fields = Mapping[str, Any]

ENGINE_NAMES: Mapping[str, str] = {
    "tensor_parallel_size": "tensor_parallel",
    "max_model_len": "context_len",
    "max_num_seqs": "max_rows",
    "max_num_batched_tokens": "token_budget",
    "gpu_memory_utilization": "device_memory_fraction",
    "block_size": "page_size",
    "enable_prefix_caching": "share",
    "kv_cache_dtype": "kv_dtype",
    "quantization": "quantize",
    "speculative_model": "draft_model",
}
"""Options of vLLM's engine, and ours of the same meaning."""
_CONFIG = (
    "model_loading_config",
    "engine_kwargs",
    "accelerator_type",
    "deployment_config",
    "runtime_env",
)
_DEPLOYMENT = ("num_replicas", "autoscaling_config", "ray_actor_options", "max_ongoing_requests")
_INGRESS = ("num_replicas", "ray_actor_options")
_WHOLE = ("llm_configs", "ingress_deployment_config", "gateways", "keys")


def build_openai_app(llm_serving_args: Any) -> serve.Application:
    """What `ray.serve.llm.build_openai_app` makes, on our runtimes and gateways: for `serve.run`,
    and in files as `import_path: lmprog.ray:build_openai_app`.

    `llm_configs` are LLMConfigs, as mappings, files or objects, each a model that requests name;
    `ingress_deployment_config` has `num_replicas` and `ray_actor_options` of the gateways. Beside
    these there are `gateways` (settings of `with_gateways`) and `keys` (as for `app`).

    Raises InvalidParameter and UnknownName.
    """
    given = _fields_of(llm_serving_args, _WHOLE, "llm_serving_args")
    configs = [arguments_of(one) for one in given.get("llm_configs") or ()]
    if not configs:
        raise InvalidParameter("llm_configs has no model", name="llm_configs")
    names = [one["served_model_name"] for one in configs]
    for at, name in enumerate(names):
        if name in names[:at]:
            says = f"two of llm_configs have the model_id {name!r}; each is one model"
            raise InvalidParameter(says, name="model_id", value=name)
    keys = given.get("keys")
    applications = [app(**one, keys=keys) for one in configs]
    ingress = _fields_of(
        given.get("ingress_deployment_config") or {}, _INGRESS, "ingress_deployment_config"
    )
    settings = {
        "count": ingress.get("num_replicas", 1),
        "resources": ingress.get("ray_actor_options"),
        "keys": keys,
        **(given.get("gateways") or {}),
    }
    return with_gateways(applications, **settings)


def arguments_of(llm_config: Any) -> dict[str, Any]:
    """An LLMConfig as arguments of `app`. Raises InvalidParameter and UnknownName."""
    if isinstance(llm_config, str):
        yaml: Any = importlib.import_module("yaml")  # it tells no types
        llm_config = yaml.safe_load(Path(llm_config).read_text(encoding="utf-8"))
    config = _fields_of(llm_config, _CONFIG, "LLMConfig")
    loading = _fields_of(
        config.get("model_loading_config") or {},
        ("model_id", "model_source"),
        "model_loading_config",
    )
    name = loading.get("model_id")
    source = loading.get("model_source") or name
    if not isinstance(name, str) or not name or not isinstance(source, str):
        says = "model_loading_config needs a model_id, and a name or folder as its model_source"
        raise InvalidParameter(says, name="model_id", value=str(name))
    deployment = _fields_of(config.get("deployment_config") or {}, _DEPLOYMENT, "deployment_config")
    resources = dict(deployment.get("ray_actor_options") or {})
    if config.get("runtime_env"):
        resources["runtime_env"] = config["runtime_env"]
    arguments = {"model": source, "served_model_name": name, **_number(deployment)}
    if config.get("accelerator_type"):
        resources["accelerator_type"] = config["accelerator_type"]
    if config.get("accelerator_type") or resources.get("num_gpus"):
        arguments["device"] = "cuda"
    if resources:
        arguments["resources"] = resources
    if "max_ongoing_requests" in deployment:
        arguments["slots"] = deployment["max_ongoing_requests"]
    return {**arguments, **_options(config.get("engine_kwargs") or {})}


def _number(deployment: Fields) -> dict[str, Any]:
    """How many replicas there are."""
    scaling = dict(deployment.get("autoscaling_config") or {})
    if scaling and "num_replicas" in deployment:
        says = "deployment_config has num_replicas and autoscaling_config; give one of them"
        raise InvalidParameter(says, name="num_replicas")
    if not scaling:
        return {"replicas": deployment.get("num_replicas", 1)}
    bounds = scaling.pop("min_replicas", 1), scaling.pop("max_replicas", 1)
    more = {"autoscaling": scaling} if scaling else {}
    return {"replicas": bounds, **more}


def _options(engine: Fields) -> dict[str, Any]:
    """Of a runtime. Our own names are taken, too, and others refused by `app`."""
    given = {ENGINE_NAMES.get(name, name): value for name, value in engine.items()}
    return {name: value for name, value in given.items() if value not in (None, "auto")}


def _fields_of(given: Any, allowed: Sequence[str], what: str) -> Fields:
    """Those that are said, of a mapping or a model of Pydantic. Raises UnknownName for others."""
    if not isinstance(given, Mapping):
        if not hasattr(given, "model_dump"):
            raise InvalidParameter(f"{what} must be a mapping", name=what, value=str(given))
        given = given.model_dump(exclude_defaults=True)
    said = {name: value for name, value in given.items() if value not in (None, {}, [], "")}
    for name in said:
        if name not in allowed:
            says = f"{what} has {name!r}, which has no meaning here; valid: {', '.join(allowed)}"
            raise UnknownName(says, name=name)
    return said
