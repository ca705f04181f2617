"""The outermost layer: a number for every request, a count of the open ones, and a refusal where
there are too many.

`x-request-id` is taken from the client where it is harmless, and goes out with every answer. Knows
headers only.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Sequence
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lmprog.server.gateway import Gateway
from lmprog.server.http.http_errors import Problem, response_of

log = logging.getLogger("lmprog.server")

_HARMLESS = re.compile(r"[A-Za-z0-9._:+/=@-]{1,128}")

_FULL = Problem(
    503, "The server has as many requests open as it may; try again.", code="overloaded"
)


class RequestMiddleware:
    """Middleware. Leaves `request_id` in the request's state; logs one line a request, without its
    text.
    """

    def __init__(self, app: ASGIApp, gateway: Gateway, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._gateway = gateway
        self._patterns = {
            route.endpoint: route.path for route in routes if isinstance(route, Route)
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        gateway = self._gateway
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _HARMLESS.fullmatch(given) else secrets.token_hex(16)
        scope.setdefault("state", {})["request_id"] = request_id
        began, status = gateway.clock(), 0

        async def reply(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        gateway.open_requests += 1
        with gateway.traces.request(scope) as ended:
            try:
                if gateway.open_requests > gateway.settings.max_requests:
                    gateway.meters.refused("too_many_requests")
                    await response_of(_FULL)(scope, receive, reply)
                else:
                    await self._app(scope, receive, reply)
            finally:
                gateway.open_requests -= 1
                took, route = gateway.clock() - began, self._route(scope)
                gateway.meters.answered(scope["method"], route, status, took)
                ended(route, status)
                path = quote(scope["path"][:200], safe="/:~")
                log.info(
                    "%s %s %d %.1f ms %s", scope["method"], path, status, 1e3 * took, request_id
                )

    def _route(self, scope: Scope) -> str:
        """The pattern of the path; clients can send any path."""
        endpoint = scope.get("endpoint")
        return self._patterns.get(endpoint, "other") if endpoint is not None else "other"
