"""A gateway and its runtimes inside of an application: its routers, and its life.

`create_app` is the whole application, as `lmprog serve` has it. Where the routers are included in
another one, that runs the runtime by `ModelServer.lifespan`. Knows how the parts go together; an
HTTP server is brought by whoever runs the application.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from lmprog.errors import InvalidParameter
from lmprog.launch import RuntimeProcess
from lmprog.server.app import build_app, route_modules
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.gateway.routes import GatewayRouter
from lmprog.server.options.configuration import configured
from lmprog.server.options.server_settings import ServerSettings
from lmprog.server.service import RUNTIME_GRACE, ServerService, Supervise, one_runtime


class GatewayServer:
    """A gateway before runtimes that `supervise` looks after, for as long as an application
    lives.
    """

    def __init__(self, settings: ServerSettings | None, supervise: Supervise) -> None:
        """Starts nothing yet."""
        service = ServerService(settings or ServerSettings(), supervise)
        self.gateway: Gateway = service.gateway
        self._supervised = service.supervised

    def app(self) -> FastAPI:
        """An application of its own, which starts and ends the runtimes."""
        return build_app(self.gateway, self.lifespan)

    def routers(self) -> list[GatewayRouter]:
        """All routes, for `include_router`: in this order, if their paths are not prefixed."""
        return [module.router(self.gateway) for module in route_modules()]

    @contextlib.asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Runs the runtime: the application starts when it serves. Raises why it could not."""
        supervising = asyncio.create_task(self._supervised.run())
        up = asyncio.create_task(self._supervised.first_up())
        try:
            await asyncio.wait({supervising, up}, return_when=asyncio.FIRST_COMPLETED)
            if supervising.done():
                supervising.result()
            yield
        finally:
            up.cancel()
            self.gateway.drain()
            await self._supervised.stop(RUNTIME_GRACE)
            await asyncio.gather(supervising, up, return_exceptions=True)
            await asyncio.to_thread(self.gateway.traces.close)


class ModelServer(GatewayServer):
    """A gateway before a runtime of its own, which lives as long as the application."""

    def __init__(
        self, model: str = "nano", settings: ServerSettings | None = None, **runtime_options: Any
    ) -> None:
        """Starts nothing yet. `runtime_options` are fields of RuntimeConfig and SchedulerConfig.
        Raises `InvalidParameter` for settings of several runtimes.
        """
        for name in ("join", "ray", "models"):
            if settings is not None and getattr(settings, name):
                raise _several(name)
        if settings is not None and settings.starts_several:
            raise _several("replicas")
        super().__init__(
            settings,
            one_runtime(lambda: RuntimeProcess(model, log_to_stderr=True, **runtime_options)),
        )


def _several(name: str) -> InvalidParameter:
    return InvalidParameter(
        f"{name} is for `lmprog serve`; this application starts one runtime of its own.",
        name=name,
    )


def create_app(
    model: str | None = None, settings: ServerSettings | None = None, **runtime_options: Any
) -> FastAPI:
    """The gateway as an application, with a runtime that starts and ends with it.

    What is not given comes from the environment and from `lmprog.toml` or `lmprog.yaml`, as for
    `lmprog serve`; address and port are up to the HTTP server that runs it.
    """
    chosen = configured({}, os.environ, None, Path.cwd())
    server = ModelServer(
        model or chosen.model,
        settings or chosen.settings(),
        **{**chosen.runtime_options(), **runtime_options},
    )
    return server.app()
