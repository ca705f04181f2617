"""Requests in the form in which nearly all of them come, and their answers, without h11.

Such a head comes whole, in HTTP/1.1, with one host, at most a `content-length`, and no field
twice. What has any other form is left to h11, so that no form is understood in two ways:
`plain_head` takes a part of what h11 takes, and reads it as h11 does. Knows bytes and ASGI; knows
no application.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Protocol
from urllib.parse import unquote

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from lmprog.server.http.http_errors import Problem

Field = tuple[bytes, bytes]

_HEAD = re.compile(
    rb"(GET|POST|PUT|DELETE) (/[!-~]*+) HTTP/1\.1\r\n"
    rb"((?:[!#$%&'*+.^_`|~0-9A-Za-z-]++:[\t -~\x80-\xff]*+\r\n)++)\r\n"
)
_H11S = frozenset((b"transfer-encoding", b"expect", b"upgrade"))
"""Fields that ask for more than is done here."""
_MOST_DIGITS = 15
STATUS_LINES = {
    status: b"HTTP/1.1 %d %b" % (status, phrase) for status, phrase in STATUS_PHRASES.items()
}
_CHUNKED = (b"transfer-encoding", b"chunked")
_NO_BODY = (204, 304)
_LAST_CHUNK = b"0\r\n\r\n"


class PlainHead:
    """The head of one request. `end`: where its body begins; `length`: that of the body."""

    __slots__ = ("end", "fields", "length", "method", "target")

    def __init__(
        self, method: bytes, target: bytes, fields: list[Field], end: int, length: int
    ) -> None:
        self.method = method
        self.target = target
        self.fields = fields
        self.end = end
        self.length = length

    def scope(self) -> dict[str, Any]:
        """What ASGI says of the request itself."""
        path, _, query = self.target.partition(b"?")
        text = path.decode("ascii")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self.method.decode("ascii"),
            "root_path": "",
            "path": unquote(text) if "%" in text else text,
            "raw_path": path,
            "query_string": query,
            "headers": self.fields,
        }


def plain_head(data: bytes, most: int) -> PlainHead | None:
    """The head that `data` begins with, of `most` bytes; None where h11 has to read it."""
    found = _HEAD.match(data)
    if found is None or found.end() > most:
        return None
    method, target, block = found.groups()
    fields = []
    for line in block[:-2].split(b"\r\n"):
        name, _, value = line.partition(b":")
        fields.append((name.lower(), value.strip(b" \t")))
    given = dict(fields)
    length = given.get(b"content-length", b"0")
    if (
        len(given) != len(fields)
        or b"host" not in given
        or not _H11S.isdisjoint(given)
        or given.get(b"connection", b"keep-alive").lower() != b"keep-alive"
        or not length.isdigit()
        or len(length) > _MOST_DIGITS
    ):
        return None
    return PlainHead(method, target, fields, found.end(), int(length))


def head_of(status: int, fields: Iterable[Field]) -> bytes:
    """The head of an answer. Raises ValueError for what would be another field."""
    lines = [STATUS_LINES[status], *[b"%b: %b" % field for field in fields]]
    head = b"\r\n".join(lines) + b"\r\n\r\n"
    ends = len(lines) + 1
    if head.count(b"\n") != ends or head.count(b"\r") != ends or b"\0" in head:
        raise ValueError("a header's value has the end of a line in it")
    return head


class Answering(Protocol):
    """The connection of a request."""

    transport: asyncio.Transport
    flow: FlowControl

    def on_response_complete(self) -> None: ...


class PlainRequest(RequestResponseCycle):
    """One request, and the answer that is written to it: for ASGI by `receive` and `send`, and
    by shorter ways for our own application: `when_gone`, and a `whole_body`.
    """

    def __init__(
        self,
        connection: Answering,
        scope: dict[str, Any],
        body: bytes,
        missing: int,
        default_fields: list[Field],
        logger: Any,
    ) -> None:
        """`missing` bytes of the body are still to come."""
        self.scope = scope  # type: ignore[assignment]
        self.transport = connection.transport
        self.flow = connection.flow
        self.logger = logger
        self.on_response = connection.on_response_complete
        self.disconnected = self.response_started = self.response_complete = False
        self.keep_alive = True
        self._defaults = default_fields
        self._parts = [body] if body else []
        self._held = len(body)
        self.missing = missing
        self._is_told = False
        self._is_chunked = False
        self._head = b""
        self._news: asyncio.Event | None = None
        self._leavers: list[Callable[[], None]] = []
        state = scope["state"]
        state["when_gone"] = self.when_gone
        if body and not missing:
            state["whole_body"] = body

    @property
    def message_event(self) -> PlainRequest:  # type: ignore[override]
        """What uvicorn's connection sets."""
        return self

    def feed(self, data: bytes) -> bytes:
        """More of the body has come; what of `data` lies behind it."""
        part = data[: self.missing]
        self.missing -= len(part)
        if not self.response_complete:
            self._parts.append(part)
            self._held += len(part)
            if self._held > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            self._wake()
        return data[len(part) :]

    def set(self) -> None:
        """uvicorn's connection says so when the client has left."""
        self._wake()
        if self.disconnected:
            leavers = self._leavers
            self._let_go()
            for leave in leavers:
                leave()

    def _let_go(self) -> None:
        """Of what a connection would hold until its next request, and of what holds this one."""
        self._leavers, self._parts = [], []
        self.scope["state"].pop("when_gone", None)

    def when_gone(self, action: Callable[[], None]) -> Callable[[], None]:
        """Calls `action` when the client leaves before the answer is complete; what takes that
        back.
        """
        if self.disconnected:
            action()
            return lambda: None
        self._leavers.append(action)
        return lambda: self._leavers.remove(action) if action in self._leavers else None

    async def receive(self) -> Any:
        """As ASGI has it."""
        while not (
            self.disconnected
            or self.response_complete
            or self._parts
            or (not self.missing and not self._is_told)
        ):
            self.flow.resume_reading()
            if self._news is None:
                self._news = asyncio.Event()
            await self._news.wait()
            self._news.clear()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts, self._held = [], 0
        self._is_told = not self.missing
        return {"type": "http.request", "body": body, "more_body": self.missing > 0}

    async def send(self, message: Any) -> None:
        """As ASGI has it."""
        kind = message["type"]
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        expected = "http.response.body" if self.response_started else "http.response.start"
        if kind != expected or self.response_complete:
            raise RuntimeError(f"The answer goes on with {expected!r}, not with {kind!r}.")
        if not self.response_started:
            self._begin(message["status"], message.get("headers", ()))
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if self._is_chunked and body:
            body = b"%x\r\n%b\r\n" % (len(body), body)
        last = _LAST_CHUNK if self._is_chunked and not more else b""
        written = self._head + body + last
        self._head = b""
        if written:
            self.transport.write(written)
        if not more:
            self._end()

    def _begin(self, status: int, given: Iterable[Field]) -> None:
        """The head is written with the body where its length is known, else at once."""
        fields = [*self._defaults, *given]
        names = dict(fields)
        self._is_chunked = b"content-length" not in names and status not in _NO_BODY
        if self._is_chunked:
            fields.append(_CHUNKED)
        self._head = head_of(status, fields)
        self.response_started = True
        if names.get(b"connection", b"").lower() == b"close":
            self.keep_alive = False
        if self._is_chunked:
            self.transport.write(self._head)
            self._head = b""

    def _end(self) -> None:
        self.response_complete = True
        self._let_go()
        self._wake()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    def _wake(self) -> None:
        if self._news is not None:
            self._news.set()


class PlainConnection(H11Protocol):
    """uvicorn's connection, on which requests of the usual form are read without h11."""

    header_seconds: ClassVar[float] = 60.0
    """Within which the headers of a request must be there, from its first byte or the connection's
    beginning.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._timer: asyncio.TimerHandle | None = None
        self._has_h11_read = False
        self._ahead = b""
        """What has come behind a request that is under way."""
        self._rests_since = 0.0

    @property
    def may_refuse(self) -> bool:
        """Whether heads have to be seen by h11's parser, which may refuse them."""
        return False

    def data_received(self, data: bytes) -> None:
        plain = self.cycle if type(self.cycle) is PlainRequest else None
        if plain is not None and plain.missing:
            data = plain.feed(data)
            if plain.response_complete:  # of a body that nobody reads, for as long as headers may
                self._rests_since = self.loop.time()
                if self._timer is None:
                    self.time_headers(True)
        if plain is not None and not plain.response_complete:
            self._keep_ahead(data)
        elif data and not self._begin_plain(data):
            self._read_by_h11(data)

    def _read_by_h11(self, data: bytes) -> None:
        self._has_h11_read = True
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:  # a request is under way
            self.time_headers(False)
        elif self._timer is None:
            # uvicorn's own timer between requests ends with the first byte of the next
            self.time_headers(True)

    def _begin_plain(self, data: bytes) -> bool:
        """Whether a request begins here that needs no h11."""
        most = self.config.h11_max_incomplete_event_size or 0
        if self._has_h11_read:
            states = {self.conn.our_state, self.conn.their_state}
            if states != {h11.IDLE} or self.conn.trailing_data[0]:
                return False
        if self.may_refuse:
            return False
        head = plain_head(data, most)
        if head is None:
            return False
        if self._timer is not None:
            self.time_headers(False)
        end = head.end + head.length
        body = data[head.end : end]
        scope = head.scope()
        scope["server"], scope["client"] = self.server, self.client
        scope["scheme"], scope["state"] = self.scheme, self.app_state.copy()
        fields = self.server_state.default_headers
        request = PlainRequest(self, scope, body, head.length - len(body), fields, self.logger)
        self.scope, self.headers, self.cycle = request.scope, head.fields, request
        self._keep_ahead(data[end:])
        task = self.loop.create_task(request.run_asgi(self.app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)
        return True

    def _keep_ahead(self, data: bytes) -> None:
        if data:  # requests are answered one after the other
            self._ahead += data
            self.flow.pause_reading()

    def on_response_complete(self) -> None:
        if type(self.cycle) is not PlainRequest:
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self._rests_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            seconds, handler = self.timeout_keep_alive, self.timeout_keep_alive_handler
            self.timeout_keep_alive_task = self.loop.call_later(seconds, handler)
        self.flow.resume_reading()
        ahead, self._ahead = self._ahead, b""
        if ahead:
            self.data_received(ahead)

    def timeout_keep_alive_handler(self) -> None:
        """Closes the connection if nothing has come for so long. The timer goes on while plain
        requests come and go: to set it for each would cost each.
        """
        self.timeout_keep_alive_task = None
        if self.cycle is not None and not self.cycle.response_complete:
            return  # it is set when the answer is written
        left = self._rests_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            handler = self.timeout_keep_alive_handler
            self.timeout_keep_alive_task = self.loop.call_later(left, handler)
        else:
            super().timeout_keep_alive_handler()

    def time_headers(self, waits: bool) -> None:
        """Whether the headers of a request are waited for, from now on."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if waits:
            self._timer = self.loop.call_later(self.header_seconds, self.transport.abort)


FULL_BODY = Problem(503, "The server has as many connections as it may.", code="overloaded").body()
FULL = (
    b"%bcontent-type: application/json\r\ncontent-length: %d\r\nretry-after: 1\r\n"
    b"connection: close\r\n\r\n%b" % (STATUS_LINES[503] + b"\r\n", len(FULL_BODY), FULL_BODY)
)
"""The answer to a connection beyond what the process may have."""
