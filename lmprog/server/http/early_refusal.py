"""Refuses generations of a full server before their bodies are read, so that refusing is cheap.

Knows paths and a function that says whether there is room; does not know why there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from lmprog.server.http.http_errors import Problem, response_of


class EarlyRefusal:
    """Middleware, behind the one that finds out whose request it is."""

    def __init__(
        self, app: ASGIApp, refusal: Callable[[], Problem | None], paths: Collection[str]
    ) -> None:
        """`paths`: those of routes that generate."""
        self._app = app
        self._refusal = refusal
        self._paths = frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in self._paths:
            problem = self._refusal()
            if problem is not None:
                await response_of(problem)(scope, receive, send)
                return
        await self._app(scope, receive, send)
