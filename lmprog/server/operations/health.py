"""Whether the server lives, whether it can take traffic, what it is."""

from __future__ import annotations

import functools
from importlib import metadata

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lmprog.server.gateway import Gateway
from lmprog.server.http.auth import LocalRoute, OpenRoute
from lmprog.server.http.http_errors import HttpError, Problem


@functools.cache
def version() -> str:
    """Of this package, as it is installed."""
    try:
        return metadata.version("lmprog")
    except metadata.PackageNotFoundError:
        return "0+unknown"


def routes(gateway: Gateway) -> list[Route]:
    async def health(request: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def ready(request: Request) -> Response:
        if gateway.draining:
            raise HttpError(Problem(503, "The server is stopping.", code="draining"))
        if not gateway.link.is_up:
            seconds = gateway.link.seconds_until_up()
            raise HttpError(Problem(503, gateway.link.why, code="not_ready", retry_after=seconds))
        if not gateway.is_ready:
            raise HttpError(Problem(503, "The runtime does not answer.", code="not_responding"))
        return JSONResponse({"status": "ready"})

    async def what(request: Request) -> Response:
        return JSONResponse({"version": version()})

    return [OpenRoute("/health", health), OpenRoute("/ready", ready), LocalRoute("/version", what)]
