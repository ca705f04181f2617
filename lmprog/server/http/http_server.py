"""The server around the application: uvicorn with h11 and limits, on a socket that is bound before
anything starts.

Installs no signal handler and prints nothing: whoever calls `serve` does. Knows uvicorn; knows no
routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import socket
from collections.abc import Awaitable, Callable, Generator

import uvicorn

from lmprog.errors import InvalidParameter
from lmprog.server.app import build_app
from lmprog.server.gateway import Gateway
from lmprog.server.http.listener import HttpConnection
from lmprog.server.options.server_settings import ServerSettings
from lmprog.server.runtime_link import RuntimeLink, RuntimeSource

BACKLOG = 2048


class HttpServer(uvicorn.Server):
    """uvicorn, which leaves signals to the command line."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    def stop(self) -> None:
        """Ends `serve` when the responses under way are written; streams that have no end of their
        own end now.
        """
        self._gateway.draining = True
        self.should_exit = True

    def stop_now(self) -> None:
        """Ends `serve` without waiting."""
        self.should_exit = self.force_exit = True


def bind(settings: ServerSettings) -> socket.socket:
    """The listening socket. Raises `InvalidParameter` where the address cannot be had."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, number)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen(BACKLOG)
        except BaseException:
            bound.close()
            raise
    except OSError as error:
        raise InvalidParameter(
            f"The server cannot listen on {settings.host}:{settings.port}: {error.strerror or error}. Choose another "
            "--port (0: any free one) or --host.",
            name="port",
            value=settings.port,
        ) from None
    return bound


def url_of(bound: socket.socket) -> str:
    """Where a client on this machine reaches the server."""
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def http_server(gateway: Gateway) -> HttpServer:
    """The server of `gateway`; not running yet."""
    config = uvicorn.Config(
        build_app(gateway),
        http=HttpConnection,
        ws="none",
        lifespan="off",
        loop="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=15,
        h11_max_incomplete_event_size=gateway.settings.max_header_bytes,
        timeout_graceful_shutdown=max(1, round(gateway.settings.drain)),
    )
    return HttpServer(config, gateway)


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


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Runs `main` on uvloop where that is installed, else on asyncio's own loop."""

    async def whole() -> None:
        await main()

    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(whole())
