"""Refuses generations of a full server from the first bytes of their connection.

A refusal that goes through HTTP's parser, the event loop's queue and the application takes half a
millisecond, so a flood of thousands is refused after seconds. Here it is written in the turn in
which its head is read, for a tenth of that. Only plain requests are taken: a POST whose head has
come at once, with one content-length; every other is left to the parser. Knows heads and who
decides; does not know why there is no room.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lmprog.server.http.middleware import (
    RequestMonitor,
    log_request,
    request_id_headers,
    request_id_of,
)

_NAME = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_LENGTH = re.compile(rb"[0-9]{1,15}")
_NEEDS_PARSER = frozenset((b"transfer-encoding", b"expect", b"upgrade", b"trailer"))
_LONGEST_HEAD = 16_384
LINGER_SECONDS = 2.0
"""How long the rest of a refused body may take."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """What was read of a request, and how many bytes of its body are still to come."""

    scope: dict[str, Any]
    missing: int
    closes: bool
    """The client wants no other request on this connection."""


@dataclass(frozen=True, slots=True)
class EarlyAnswer:
    """Bytes to write; then `missing` bytes of the body are to be read and forgotten."""

    written: bytes
    missing: int
    closes: bool


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


class EarlyRefusal:
    """Decides about a connection's first bytes."""

    def __init__(
        self,
        routes: Collection[Route],
        refuse: Callable[[Request], Response | None],
        is_refusing: Callable[[], bool],
        monitor: RequestMonitor,
    ) -> None:
        """`refuse` gives the refusal of a request to one of `routes`; None: it may go on. Nothing
        is asked and read unless the server `is_refusing`.
        """
        self._is_refusing = is_refusing
        self._routes = {route.path.encode(): route for route in routes}
        self._refuse = refuse
        self._monitor = monitor

    def answer(self, data: bytes) -> EarlyAnswer | None:
        """The whole answer to a request that begins with `data`; None: the parser's."""
        head = read_head(data, self._routes) if self._is_refusing() else None
        if head is None:
            return None
        request = Request(head.scope)
        request_id = request_id_of(request.headers)
        head.scope["state"] = {"request_id": request_id}
        response = self._refuse(request)
        if response is None:
            return None
        with self._monitor.watch(head.scope) as end:
            closes = head.closes or head.missing > 0
            for name in request_id_headers(head.scope["path"]):
                response.headers[name] = request_id
            written = _encoded(response, closes)
            log_request(head.scope, response.status_code, end, request_id)
        return EarlyAnswer(written, head.missing, closes)


def read_head(data: bytes, routes: Mapping[bytes, Route]) -> RequestHead | None:
    """A plain request to one of `routes`, by their paths, as ASGI's scope; None for any other."""
    end = data.find(b"\r\n\r\n", 0, _LONGEST_HEAD)
    if end < 0:
        return None
    line, *fields = data[:end].split(b"\r\n")
    method, _, rest = line.partition(b" ")
    target, _, version = rest.partition(b" ")
    route = routes.get(target)
    if method != b"POST" or version != b"HTTP/1.1" or route is None:
        return None
    headers: list[tuple[bytes, bytes]] = []
    for field in fields:
        name, colon, value = field.partition(b":")
        if not colon or _NAME.fullmatch(name) is None:
            return None
        headers.append((name.lower(), value.strip(b" \t")))
    names = [name for name, _ in headers]
    if names.count(b"host") != 1 or names.count(b"content-length") != 1:
        return None
    if not _NEEDS_PARSER.isdisjoint(names):
        return None
    given = dict(headers)
    length = given[b"content-length"]
    if _LENGTH.fullmatch(length) is None:
        return None
    missing = int(length) - (len(data) - end - 4)
    if missing < 0:  # the next request has begun
        return None
    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": route.path,
        "route": route,
        "headers": headers,
        "query_string": b"",
        "root_path": "",
    }
    return RequestHead(scope, missing, given.get(b"connection", b"").lower() == b"close")


def _encoded(response: Response, closes: bool) -> bytes:
    """A response as HTTP/1.1."""
    phrase = HTTPStatus(response.status_code).phrase.encode()
    lines = [b"HTTP/1.1 %d %b" % (response.status_code, phrase)]
    lines += [b"%b: %b" % field for field in response.raw_headers]
    if closes:
        lines.append(b"connection: close")
    return b"\r\n".join(lines) + b"\r\n\r\n" + bytes(response.body)
