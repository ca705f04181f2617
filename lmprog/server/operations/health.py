"""Whether the server lives, whether it can take traffic, what it is."""

from __future__ import annotations

import functools
from importlib import metadata

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lmprog.server.gateway import Gateway
from lmprog.server.http.auth import OpenRoute
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
        if not gateway.is_ready:
            why = "The server is stopping." if gateway.draining else gateway.link.why
            raise HttpError(Problem(503, why, code="draining" if gateway.draining else "not_ready"))
        return JSONResponse({"status": "ready"})

    async def what(request: Request) -> Response:
        return JSONResponse({"version": version()})

    return [OpenRoute("/health", health), OpenRoute("/ready", ready), Route("/version", what)]
