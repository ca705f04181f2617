"""The outermost middleware: request ids, the limit of open requests (503), the access log, the
answer to a request that broke.

`x-request-id` is taken from the client where it is safe to log, and sent with every answer. Reads
headers only.
"""

from __future__ import annotations

import logging
import random
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lmprog.server.http.http_errors import Problem, response_of, speaks_anthropic

log = logging.getLogger("lmprog.server")

_SAFE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:+/=@-]{1,128}")

_ids = random.Random(secrets.token_bytes(32))
"""urandom for each would be slow."""

_FULL = Problem(
    503, "The server has as many requests open as it may; try again.", code="overloaded"
)

RequestEnd: TypeAlias = Callable[[str, int], float]
"""Called with the route and the status of a request when it ends; gives its seconds."""


class RequestMonitor(Protocol):
    """Counts and times requests."""

    @property
    def is_refusing(self) -> bool:
        """Whether generations have been refused a moment ago."""
        ...

    def watch(self, scope: Scope) -> AbstractContextManager[RequestEnd]:
        """Around one request, which counts as open inside."""
        ...

    def is_overfull(self) -> bool:
        """Whether more requests are open than may be; counts the refusal."""
        ...


class RequestMiddleware:
    """Middleware. Leaves `request_id` in the request's state; logs one line for each request,
    without its text.
    """

    def __init__(
        self,
        app: ASGIApp,
        monitor: RequestMonitor,
        broke: Callable[[Request, Exception], Awaitable[Response]],
    ) -> None:
        """`broke` answers where `app` raises; the error is raised all the same."""
        self._app = app
        self._monitor = monitor
        self._broke = broke

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(scope["headers"])
        scope.setdefault("state", {})["request_id"] = request_id
        id_headers = request_id_headers(scope["path"])
        status = 0

        async def reply(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                others = [one for one in message.get("headers", ()) if one[0] not in id_headers]
                value = request_id.encode()
                message["headers"] = [*others, *[(name, value) for name in id_headers]]
            await send(message)

        with self._monitor.watch(scope) as end:
            try:
                if self._monitor.is_overfull():
                    await response_of(_FULL, scope)(scope, receive, reply)
                else:
                    await self._app(scope, receive, reply)
            except Exception as error:
                if not status:
                    response = await self._broke(Request(scope), error)
                    await response(scope, receive, reply)
                raise
            finally:
                log_request(scope, status, end, request_id)


def request_id_of(fields: Iterable[tuple[bytes, bytes]]) -> str:
    """The client's, where it is safe to log; else one of ours."""
    for name, value in fields:
        if name == b"x-request-id":
            given = value.decode("latin-1")
            if _SAFE_REQUEST_ID.fullmatch(given):
                return given
            break
    return f"{_ids.getrandbits(128):032x}"


def request_id_headers(path: str) -> tuple[bytes, ...]:
    """The headers of an answer that name its request; Anthropic's clients read one of their own."""
    return (b"x-request-id", b"request-id") if speaks_anthropic(path) else (b"x-request-id",)


def log_request(scope: Scope, status: int, end: RequestEnd, request_id: str) -> None:
    """Counts and logs a request that has ended."""
    # The path's pattern, for labels: clients can send any path.
    seconds = end(getattr(scope.get("route"), "path", "other"), status)
    if log.isEnabledFor(logging.INFO):
        path = quote(scope["path"][:200], safe="/:~")
        log.info("%s %s %d %.1f ms %s", scope["method"], path, status, 1e3 * seconds, request_id)
