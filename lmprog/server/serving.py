"""The gateway's application on a socket: what `lmprog serve`, tests and benchmarks run.

Puts application and HTTP server together; each knows nothing of the other.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from lmprog.server.app import build_app
from lmprog.server.gateway import Gateway
from lmprog.server.http.http_server import HttpServer, bind
from lmprog.server.options.server_settings import ServerSettings
from lmprog.server.runtime_link import RuntimeLink, RuntimeSource


def http_server(gateway: Gateway) -> HttpServer:
    """The server of `gateway`; not running yet."""
    return HttpServer(build_app(gateway), gateway.settings, when_stopping=gateway.drain)


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
