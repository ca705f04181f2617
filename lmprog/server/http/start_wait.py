"""Lets requests wait while the runtime starts, so that clients may begin when the port opens.

Knows which routes need a runtime; does not know what a runtime is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from lmprog.server.http.auth import LocalRoute, OpenRoute


class StartWaitMiddleware:
    """Middleware: awaits `started` before any route that needs the runtime."""

    def __init__(
        self,
        app: ASGIApp,
        started: Callable[[], Awaitable[None]],
        is_up: Callable[[], bool],
        routes: Sequence[BaseRoute],
    ) -> None:
        """`started` returns when the runtime is up, or when nobody may wait any longer."""
        self._app = app
        self._started = started
        self._is_up = is_up
        self._need_runtime = [
            route for route in routes if not isinstance(route, OpenRoute | LocalRoute)
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_up() and self._needs_runtime(scope):
            await self._started()
        await self._app(scope, receive, send)

    def _needs_runtime(self, scope: Scope) -> bool:
        return any(route.matches(scope)[0] is Match.FULL for route in self._need_runtime)
