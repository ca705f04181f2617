"""Our gateway as an actor of Ray Serve, behind Serve's own HTTP proxy, for those who must use it.

The proxy hands a request to one of these actors, which serves it as `lmprog serve --join` would: by
the application's runtimes, reached directly. Knows Serve's ingress; routes are the gateway's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from fastapi import FastAPI
from ray import serve

from lmprog.errors import InvalidParameter, UnknownName
from lmprog.ray.ray_members import RayMembers
from lmprog.server.model_server import GatewayServer
from lmprog.server.options.server_settings import ServerSettings
from lmprog.server.supervision.supervised_fleet import supervised
from lmprog.transport import client_keys

MOST_REQUESTS = 100_000
"""The most requests that Serve hands to an actor at once. It is large, since the gateway itself
refuses what is too much.
"""
_OF_THE_PROXY = {"host", "port", "max_header_bytes", "body_timeout", "keep_alive", "write_stall"}
_OF_THE_APPLICATION = {"replicas", "ray", "max_replicas", "join", "keys", "drain"}


def with_gateways(
    application: serve.Application | Sequence[serve.Application],
    count: int = 1,
    *,
    keys: str | None = None,
    resources: Mapping[str, Any] | None = None,
    **settings: Any,
) -> serve.Application:
    """`application`, made by `app`, or one for each model, with `count` gateways for Serve's own
    HTTP proxy::

        serve.run(with_gateways(app("MODEL", replicas=2)), name="stories", route_prefix="/")

    `keys` as for `app`; `resources` are those of a gateway (as `ray_actor_options` takes them).
    `settings` are options of `lmprog serve` (`api_keys=("a-key",)`), but for those of its HTTP
    server, which is the proxy here, and of runtimes, which are the application's.

    Raises InvalidParameter and UnknownName for settings that are wrong.
    """
    if count < 1:
        says = "there must be at least one gateway; without them leave out with_gateways"
        raise InvalidParameter(says, name="count", value=count, allowed=">= 1")
    _checked(settings)
    deployment = serve.deployment(
        serve.ingress()(HttpGateway),
        name="Gateway",
        num_replicas=count,
        max_ongoing_requests=MOST_REQUESTS,
        ray_actor_options=dict(resources or {"num_cpus": 1}),
    )
    several = isinstance(application, Sequence)
    return deployment.bind(settings, keys, *(application if several else [application]))


class HttpGateway:
    """What Serve makes in each gateway's process."""

    def __init__(self, settings: Mapping[str, Any], keys: str | None, *_runtimes: object) -> None:
        """`_runtimes` are what Serve makes of the bound applications: they run because they are
        named here. Programs reach them by the application's directory.
        """
        self._settings = _checked(settings)
        self._keys = client_keys(keys)
        self._application = serve.get_replica_context().app_name

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Serve runs its life; it has started when the first runtime serves."""
        members = supervised(lambda: RayMembers(self._application, self._keys))
        return GatewayServer(self._settings, members).app()


def _checked(settings: Mapping[str, Any]) -> ServerSettings:
    """Lists, as files of `serve deploy` have them, are taken for tuples."""
    known = {field.name for field in fields(ServerSettings)}
    allowed = sorted(known - _OF_THE_PROXY - _OF_THE_APPLICATION)
    for name in settings:
        if name in _OF_THE_PROXY:
            raise InvalidParameter(f"{name} is the affair of Serve's proxy", name=name)
        if name in _OF_THE_APPLICATION:
            raise InvalidParameter(f"{name} is the affair of the application", name=name)
        if name not in allowed:
            says = f"unknown setting {name!r}; valid: {', '.join(allowed)}"
            raise UnknownName(says, name=name)
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()
    }
    return ServerSettings(**given)
