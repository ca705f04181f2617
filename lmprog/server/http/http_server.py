"""The HTTP server: uvicorn with h11 and limits, on a socket that is bound before anything starts.

Installs no signal handler and prints nothing: its caller does. Knows uvicorn; knows no application.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import socket
from collections.abc import Awaitable, Callable, Generator

import uvicorn
from starlette.types import ASGIApp

from lmprog.errors import InvalidParameter
from lmprog.server.http.early_refusal import EarlyRefusal
from lmprog.server.http.listener import HttpConnection
from lmprog.server.http.new_connection import NewConnection
from lmprog.server.options.server_settings import ServerSettings

BACKLOG = 65_535
"""Connections that wait to be accepted; the system has a limit of its own. One that finds no place
there tries again after a second.
"""
COLLECTED_EVERY = (10_000, 20, 10)
"""New objects until the youngest are looked at, and of how many such looks one takes in the next
older ones. Few objects here stand in cycles, so that little garbage waits for it.
"""


class HttpServer(uvicorn.Server):
    """uvicorn with h11 and limits. It leaves signals to the command line."""

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        when_stopping: Callable[[], None],
        early: EarlyRefusal | None = None,
    ) -> None:
        """`when_stopping` is called first when it is told to stop. `early` sees requests before
        the application does.
        """
        http = type(
            "_Connection", (HttpConnection,), {"early": early, "write_stall": settings.write_stall}
        )
        first = type("_First", (NewConnection,), {"early": early, "http": http})
        super().__init__(
            uvicorn.Config(
                app,
                http=http if early is None else first,
                ws="none",
                lifespan="off",
                loop="none",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=15,
                h11_max_incomplete_event_size=settings.max_header_bytes,
                timeout_graceful_shutdown=max(1, round(settings.drain)),
            )
        )
        self._when_stopping = when_stopping

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    def stop(self) -> None:
        """Ends `serve` when the responses under way are written; endless streams end now."""
        self._when_stopping()
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
            f"The server cannot listen on {settings.host}:{settings.port}: "
            f"{error.strerror or error}. Choose another --port (0: any free one) or --host.",
            name="port",
            value=settings.port,
        ) from None
    return bound


def url_of(bound: socket.socket) -> str:
    """Where a client on this machine reaches the server."""
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # nosec B104
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Runs `main` on uvloop where that is installed, else on asyncio's own loop. For processes that
    do nothing else: garbage is collected seldom while it runs.
    """

    async def whole() -> None:
        await main()

    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        factory = uvloop.new_event_loop
    with collected_seldom(), asyncio.Runner(loop_factory=factory) as runner:
        runner.run(whole())


@contextlib.contextmanager
def collected_seldom() -> Generator[None, None, None]:
    """What was loaded before is not looked at by the garbage collector, and the rest seldom.

    A flood's connections are live objects by the hundred thousand: with Python's own thresholds a
    fifth of the gateway's time went into looking at them, in pauses of a tenth of a second.
    """
    before, was_frozen = gc.get_threshold(), gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTED_EVERY)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not was_frozen:  # else the process wants to keep it so
            gc.unfreeze()
