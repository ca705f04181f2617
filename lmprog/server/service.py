"""A whole server: gateway, HTTP server and runtime; how it starts, drains and ends.

`ServerService` supervises its runtimes. HTTP listens from the first moment on; requests wait for
the runtime's start. `ask_to_stop` drains: new work is refused, what is under way may finish, then
everything ends; asked a second time, it ends at once. `serve` is the same before a runtime that
somebody else looks after: what tests, examples and benchmarks run. Installs no signal handler.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol, TypeAlias

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from lmprog.errors import Detail, InvalidParameter
from lmprog.launch import RuntimeProcess
from lmprog.launch.restarts import HangTimeouts
from lmprog.server.app import build_app
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.gateway.routes import Guard
from lmprog.server.http.auth import Access
from lmprog.server.http.early_refusal import EarlyRefusal
from lmprog.server.http.http_errors import HttpError, response_of
from lmprog.server.http.http_server import HttpServer, bind
from lmprog.server.link.runtime_link import RuntimeLink, RuntimeSource
from lmprog.server.observability.spans import traces
from lmprog.server.options.server_settings import ServerSettings
from lmprog.server.programs.running_program import ProgramFolder
from lmprog.server.supervision.supervised_runtime import SupervisedRuntime
from lmprog.server.supervision.supervisor import RestartTimeouts

log = logging.getLogger("lmprog.server")

RUNTIME_GRACE = 5.0
"""Seconds that the runtime has for its own end, after all work is done."""
LAST_WORDS = 0.5
"""Seconds for the error events of streams that are cut off."""
_LOOK = 0.05


class Supervision(Protocol):
    """Looks after the server's runtime, or runtimes: `SupervisedRuntime`, `SupervisedFleet`."""

    async def run(self) -> None:
        """Until `stop`. Raises why the first start failed."""
        ...

    async def first_up(self) -> Mapping[str, Detail]:
        """Waits for the first one that serves; what it says of itself."""
        ...

    async def stop(self, grace: float) -> bool:
        """Ends them, by force after `grace` seconds. True where all ended well."""
        ...


Supervise: TypeAlias = Callable[[Gateway, HangTimeouts], Supervision]
"""Makes what looks after the runtimes of a gateway."""


class ServerService:
    """One server's life."""

    def __init__(
        self, settings: ServerSettings, supervise: Supervise, programs: ProgramFolder | None = None
    ) -> None:
        """`supervise` makes what looks after the gateway's runtimes; see `one_runtime`."""
        self._programs = programs
        self.gateway = Gateway(settings, RuntimeLink())
        self.gateway.trace(traces(os.environ, self.gateway.model_label))
        hang = HangTimeouts(
            stall=settings.stall,
            frozen=settings.stall,
            longest_step=max(settings.stall, settings.longest_step),
        )
        self.supervised = supervise(self.gateway, hang)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._times_asked = 0
        self._soft = asyncio.Event()
        self._hard = asyncio.Event()

    def ask_to_stop(self) -> None:
        """Drain; asked again: end at once. From any thread, and from a signal handler."""
        self._times_asked += 1
        event = self._soft if self._times_asked == 1 else self._hard
        if self._loop is None:
            event.set()
        else:
            self._loop.call_soon_threadsafe(event.set)

    def ask_to_reload(self) -> None:
        """Read the API keys again. From any thread, and from a signal handler."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._reload)

    def _reload(self) -> None:
        try:
            self.gateway.reload_keys()
        except InvalidParameter as error:
            log.error("the API keys stay as they were: %s", error)
        else:
            names = [key.name for key in self.gateway.keyring.keys]
            log.warning("API keys are read again: %s", ", ".join(names) or "none")

    async def run(
        self, bound: socket.socket, when_up: Callable[[Mapping[str, Detail]], None]
    ) -> bool:
        """Serves on `bound` until it is asked to stop. `when_up` is called once, when the first
        runtime serves, with what that says of itself.

        True where everything under way was finished, and the runtime ended well. Raises why the
        first start failed.
        """
        self._loop = asyncio.get_running_loop()
        server = http_server(self.gateway, self._programs)
        http = asyncio.create_task(server.serve([bound]))
        supervising = asyncio.create_task(self.supervised.run())
        asked = asyncio.create_task(self._soft.wait())
        announcing = asyncio.create_task(self._announce(when_up))
        try:
            await asyncio.wait({http, supervising, asked}, return_when=asyncio.FIRST_COMPLETED)
            if supervising.done():
                supervising.result()  # raises: it ends by itself only when the first start failed
            if not asked.done():
                log.error("the HTTP server ended by itself")
                return False
            return await self._end_well(server, http)
        finally:
            announcing.cancel()
            asked.cancel()
            self.gateway.link.close()
            server.stop_now()
            await self.supervised.stop(0.0)
            await asyncio.to_thread(self.gateway.traces.close)
            await asyncio.gather(http, supervising, return_exceptions=True)

    async def _announce(self, when_up: Callable[[Mapping[str, Detail]], None]) -> None:
        when_up(await self.supervised.first_up())

    async def _end_well(self, server: HttpServer, http: asyncio.Task[None]) -> bool:
        """The drain. True where nothing was cut off."""
        gateway, deadline = (
            self.gateway,
            asyncio.get_running_loop().time() + self.gateway.settings.drain,
        )
        gateway.drain()
        log.info("draining: %d results are under way", gateway.open_results)
        finished = await self._before(deadline, self._quiet())
        if not finished:
            log.warning("%d results did not finish; they are cut off", gateway.open_results)
            gateway.link.close()
            deadline = asyncio.get_running_loop().time() + LAST_WORDS
        server.stop()
        written = (
            await self._before(deadline, asyncio.shield(http))
            if finished
            else await _within(LAST_WORDS, http)
        )
        if not written:
            server.stop_now()
        ended = await self.supervised.stop(0.0 if self._hard.is_set() else RUNTIME_GRACE)
        return finished and written and ended

    async def _quiet(self) -> None:
        while self.gateway.open_results:
            await asyncio.sleep(_LOOK)

    async def _before(self, deadline: float, work: Awaitable[None]) -> bool:
        """Whether `work` was done by then, and before a second request to stop."""
        working = asyncio.ensure_future(work)
        hard = asyncio.create_task(self._hard.wait())
        left = max(0.0, deadline - asyncio.get_running_loop().time())
        await asyncio.wait({working, hard}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        hard.cancel()
        done = working.done()
        if not done:
            working.cancel()
        return done


def one_runtime(launch: Callable[[], RuntimeProcess]) -> Supervise:
    """`launch` starts a runtime and waits until it serves; it is called for every restart, in a
    thread.
    """
    return lambda gateway, hang: SupervisedRuntime(launch, gateway, RestartTimeouts(hang))


async def _within(seconds: float, task: asyncio.Task[None]) -> bool:
    done, _ = await asyncio.wait({task}, timeout=seconds)
    return bool(done)


def http_server(gateway: Gateway, programs: ProgramFolder | None = None) -> HttpServer:
    """The server of `gateway`; not running yet."""
    app = build_app(gateway, programs=programs)
    early = early_refusal(gateway, app.routes)
    return HttpServer(app, gateway.settings, gateway.drain, early, gateway.refuse_connection)


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
    await asyncio.create_task(server.serve([bound]))  # a task, as in `run`: its ticks are its own


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
