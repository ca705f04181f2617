"""Runtimes as replicas of a Ray Serve application (`lmprog[ray]`)::

    serve.run(lmprog.ray.app("MODEL", replicas=(2, 8)), name="stories")
    with lmprog.Fleet.from_ray("stories") as fleet:
        ...

Ray decides where replicas run, starts dead ones again, scales them, and hands out processors and
GPUs. Which replica a program goes to, its messages, and what happens when a replica dies are the
fleet's: nothing of a program travels through Ray.

`application` makes what Serve runs and has the actor of a replica, `directory` says where
replicas are reached, `ray_members` reads it for a fleet, `ray_cluster` starts and joins clusters,
`serve_gateway` puts gateways behind Serve's own HTTP proxy, `llm_names` takes the names of
`ray.serve.llm`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lmprog.ray.application import app as app
    from lmprog.ray.application import build as build
    from lmprog.ray.llm_names import build_openai_app as build_openai_app
    from lmprog.ray.serve_gateway import with_gateways as with_gateways

_HOMES = {
    **dict.fromkeys(("app", "build"), "lmprog.ray.application"),
    "build_openai_app": "lmprog.ray.llm_names",
    "with_gateways": "lmprog.ray.serve_gateway",
}

__all__ = ["app", "build", "build_openai_app", "with_gateways"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lmprog.ray' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
