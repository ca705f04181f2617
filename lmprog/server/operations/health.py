"""Whether the server lives, whether it can take traffic, what it is."""

from __future__ import annotations

import functools
from importlib import metadata

from starlette.responses import JSONResponse, Response

from lmprog.server.gateway.gateway import Gateway
from lmprog.server.gateway.routes import GatewayRouter
from lmprog.server.http.http_errors import HttpError, Problem


@functools.cache
def version() -> str:
    """Of this package, as it is installed."""
    try:
        return metadata.version("lmprog")
    except metadata.PackageNotFoundError:
        return "0+unknown"


def router(gateway: Gateway) -> GatewayRouter:
    made = GatewayRouter(gateway, "Operations")
    guards = made.guards

    @made.get(
        "/health", dependencies=[guards.open], summary="Whether the server lives; needs no key."
    )
    async def health() -> Response:
        return JSONResponse({"status": "alive"})

    @made.get(
        "/ready", dependencies=[guards.open], summary="Whether it can take requests; needs no key."
    )
    async def ready() -> Response:
        if gateway.draining:
            raise HttpError(Problem(503, "The server is stopping.", code="draining"))
        if not gateway.link.is_up:
            seconds = gateway.link.seconds_until_up()
            raise HttpError(Problem(503, gateway.link.why, code="not_ready", retry_after=seconds))
        if not gateway.is_ready:
            raise HttpError(Problem(503, "The runtime does not answer.", code="not_responding"))
        return JSONResponse({"status": "ready"})

    @made.get(
        "/version",
        dependencies=[guards.local],
        summary="The version of lmprog, and the fingerprint of its model.",
    )
    async def what() -> Response:
        info = gateway.link.info
        parts = {} if info is None else info.parts
        return JSONResponse({"version": version(), "fingerprint": parts})

    return made
