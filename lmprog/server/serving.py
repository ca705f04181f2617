"""The gateway's application on a socket: what `lmprog serve`, tests and benchmarks run.

Puts application and HTTP server together; each knows nothing of the other.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from lmprog.server.app import build_app
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.gateway.guard import Guard
from lmprog.server.http.auth import Access
from lmprog.server.http.http_errors import HttpError, response_of
from lmprog.server.http.http_server import EarlyRefusal, HttpServer, bind
from lmprog.server.link.runtime_link import RuntimeLink, RuntimeSource
from lmprog.server.options.server_settings import ServerSettings


def http_server(gateway: Gateway) -> HttpServer:
    """The server of `gateway`; not running yet."""
    app = build_app(gateway)
    early = early_refusal(gateway, app.routes)
    return HttpServer(app, gateway.settings, when_stopping=gateway.drain, early=early)


def early_refusal(gateway: Gateway, routes: Iterable[BaseRoute]) -> EarlyRefusal:
    """Decides as the guards of the generating `routes` do."""
    guard = Guard(gateway, Access.USER, generates=True)
    has_cors = bool(gateway.settings.cors_origins)

    def refuse(request: Request) -> Response | None:
        if has_cors and "origin" in request.headers:
            return None
        try:
            guard.decide(request)
        except HttpError as error:
            return response_of(error.problem, request.scope)
        return None

    generating = [route for route in routes if isinstance(route, APIRoute) and _generates(route)]
    return EarlyRefusal(generating, refuse, gateway)


def _generates(route: APIRoute) -> bool:
    first = route.dependencies[0].dependency
    return isinstance(first, Guard) and first.generates and route.methods == {"POST"}


async def serve_gateway(
    gateway: Gateway, bound: socket.socket, when_ready: Callable[[HttpServer], None]
) -> None:
    """Serves until the server given to `when_ready` is told to stop."""
    server = http_server(gateway)
    when_ready(server)
    await server.serve([bound])


async def serve(
    settings: ServerSettings,
    runtime: RuntimeSource,
    bound: socket.socket | None = None,
    when_ready: Callable[[HttpServer], None] = lambda _: None,
) -> None:
    """A gateway before `runtime`, until it is told to stop; the runtime itself is its caller's."""
    link = RuntimeLink()
    gateway = Gateway(settings, link)
    connection = await asyncio.to_thread(runtime.connect, "http")
    link.replace(connection)
    try:
        await serve_gateway(gateway, bound or bind(settings), when_ready)
    finally:
        link.close()
