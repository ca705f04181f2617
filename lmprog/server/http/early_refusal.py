"""Refusals in the turn in which a head has come, and what becomes of the body behind it.

Knows heads and routes; what is refused, and why, its caller says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import h11
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lmprog.server.http.middleware import (
    RequestMonitor,
    log_request,
    request_id_headers,
    request_id_of,
)
from lmprog.server.http.plain_requests import STATUS_LINES

LINGER_SECONDS = 2.0
"""How long the rest of a refused body may take."""


class EarlyRefusal:
    """Answers requests for which there is no room, before a task is made for them: a flood of
    thousands is refused in a fifth of the time that it would take in the application.
    """

    def __init__(
        self,
        routes: Iterable[Route],
        refuse: Callable[[Request], Response | None],
        monitor: RequestMonitor,
    ) -> None:
        """`refuse` gives the refusal of a POST to one of `routes`; None: it may go on. It is asked
        only while the `monitor` says that requests are being refused.
        """
        self._routes = {route.path.encode(): route for route in routes}
        self._refuse = refuse
        self.monitor = monitor
        """Knows whether requests may have to be refused now."""

    def is_for(self, head: h11.Request) -> bool:
        """Whether such a request may have to be refused."""
        return (
            self.monitor.is_refusing
            and head.method == b"POST"
            and head.http_version == b"1.1"
            and head.target in self._routes
        )

    def answer(self, head: h11.Request, fields: list[tuple[bytes, bytes]], ends: bool) -> bytes:
        """The whole answer; empty where the request may go on. `ends`: the connection ends with
        it.
        """
        route = self._routes[head.target]
        scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": route.path,
            "route": route,
            "headers": fields,
            "query_string": b"",
            "root_path": "",
        }
        request = Request(scope)
        request_id = request_id_of(fields)
        scope["state"] = {"request_id": request_id}
        response = self._refuse(request)
        if response is None:
            return b""
        with self.monitor.watch(scope) as end:
            lines = [STATUS_LINES[response.status_code]]
            lines += [b"%b: %b" % field for field in response.raw_headers]
            for name in request_id_headers(route.path):
                lines.append(b"%b: %b" % (name, request_id.encode()))
            if ends:
                lines.append(b"connection: close")
            log_request(scope, response.status_code, end, request_id)
        return b"\r\n".join(lines) + b"\r\n\r\n" + bytes(response.body)


class RefusedBody:
    """What is still to come of a refused request: forgotten, and then the connection ends. Bytes
    that nobody reads would make the system take the answer back.
    """

    def __init__(
        self, transport: asyncio.Transport, missing: int, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._transport = transport
        self._missing = missing
        self._timer = loop.call_later(LINGER_SECONDS, transport.abort)
        self.forget(0)

    def forget(self, count: int) -> None:
        self._missing -= count
        if self._missing <= 0:
            self._transport.close()

    def end(self) -> None:
        """The connection is gone."""
        self._timer.cancel()
