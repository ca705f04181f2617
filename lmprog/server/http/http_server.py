"""The HTTP server: uvicorn with h11 and limits, on a socket that is bound before anything starts.

Requests of the usual form are read without h11 (`plain_requests`), all others by it. Adds to
uvicorn's protocol: a time within which headers must have come and answers be read, the
transport for `sse.cut_off`, a short way for the parts of streams, an answer with its reason to what
is not HTTP, refusals in the turn in which a head has come (`EarlyRefusal`), and of connections
beyond what a process may have. Installs no signal handler and prints nothing: its caller does.
Knows uvicorn; knows no application.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import resource
import socket
import sys
from collections.abc import Awaitable, Callable, Generator
from http import HTTPStatus
from typing import Any, ClassVar

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.server import ServerState

from lmprog.errors import InvalidParameter
from lmprog.heap import kept_small
from lmprog.server.fairness.accounts import HeldBytes
from lmprog.server.http.early_refusal import EarlyRefusal, RefusedBody
from lmprog.server.http.http_errors import Problem
from lmprog.server.http.plain_requests import FULL, PlainConnection
from lmprog.server.options.server_settings import ServerSettings

BACKLOG = 65_535
"""Connections that wait to be accepted; the system has a limit of its own. One that finds no place
there tries again after a second.
"""
COLLECTED_EVERY = (5_000, 2, 200)
"""New objects until the youngest are looked at, and of how many such looks one takes in the next
older ones. Few objects here stand in cycles, so that little garbage waits for it.
"""
LEAST_SPARE_FILES = 64
"""Of the files that the process may have open, so many are for others than connections: for pipes,
logs, and what comes faster than it can be refused.
"""


class _Parser(h11.Connection):
    """h11, which gives away only the requests that are not refused."""

    def __init__(self, most: int, refuse: Callable[[h11.Request], bytes | None]) -> None:
        """`refuse` answers a request, and gives what has come after it; None: it may go on."""
        super().__init__(h11.SERVER, most)
        self._most = most
        self._refuse = refuse

    def let_go(self) -> None:
        """There are no more requests."""
        self._refuse = lambda _: None

    def next_event(self) -> Any:
        event = super().next_event()
        while type(event) is h11.Request:
            rest = self._refuse(event)
            if rest is None:
                return self._plain(event)
            super().__init__(h11.SERVER, self._most)  # nothing of the refused request is known
            if not rest:
                return h11.NEED_DATA
            self.receive_data(rest)
            event = super().next_event()
        return event

    def _plain(self, head: h11.Request) -> h11.Request:
        """The request as RFC 9112 has it understood: an absolute target names the host itself
        (3.2.2), and where a body has two lengths the connection ends after it (6.3).
        """
        names = {name for name, _ in head.headers}
        if names >= {b"content-length", b"transfer-encoding"}:
            self._cstate.process_keep_alive_disabled()
        scheme, _, rest = head.target.partition(b"://")
        if scheme.lower() not in (b"http", b"https"):
            return head
        host, slash, path = rest.partition(b"/")
        fields = [
            (name, value) for name, value in head.headers.raw_items() if name.lower() != b"host"
        ]
        return h11.Request(
            method=head.method,
            target=slash + path or b"/",
            headers=[(b"host", host), *fields],
            http_version=head.http_version,
        )


class UnreadAnswer:
    """An answer that was written whole, and that its client has not read: it keeps its bytes for as
    long as the client reads on.
    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, seconds: float
    ) -> None:
        """After `seconds` in which nothing was read the connection ends."""
        self._transport = transport
        self._loop = loop
        self._seconds = seconds
        self._left = transport.get_write_buffer_size()
        self.is_over = False
        """The client has read all of it."""
        self._timer = loop.call_later(seconds, self._look)

    def end(self) -> None:
        """Nobody looks any more."""
        self._timer.cancel()

    def _look(self) -> None:
        before, self._left = self._left, self._transport.get_write_buffer_size()
        if self._left == before:
            self._transport.abort()
        elif self._left:  # it reads, or asks for more
            self._timer = self._loop.call_later(self._seconds, self._look)
        else:
            self.is_over = True


class _HeldUntilRead:
    """What requests held, of whose answers on a connection much is unread."""

    def __init__(self, flow: FlowControl) -> None:
        self._flow = flow
        self._parts: list[HeldBytes] = []

    def keep(self, held: HeldBytes) -> None:
        if self._flow.write_paused:
            self._parts.append(held.hand_over())

    def leave(self) -> None:
        """It is read, or nobody is there any more."""
        while self._parts:
            self._parts.pop().leave()


class HttpConnection(PlainConnection):
    """One client's connection."""

    write_stall: ClassVar[float] = 60.0
    """An answer that was written, and of which its client reads nothing for so long, is cut off."""
    early: ClassVar[EarlyRefusal | None] = None
    """Sees the heads of requests."""
    most_connections: ClassVar[int] = sys.maxsize
    when_full: ClassVar[Callable[[], None]]
    """Called for each one beyond them."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, dict(app_state), _loop)
        if self.early is not None and config.h11_max_incomplete_event_size is not None:
            self.conn = _Parser(config.h11_max_incomplete_event_size, self._refuse)
        self._unread: UnreadAnswer | None = None
        self._held: _HeldUntilRead
        self._refused: RefusedBody | None = None
        """What is still to come of a request that was refused."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._held = _HeldUntilRead(self.flow)
        if len(self.connections) > self.most_connections:
            type(self).when_full()
            transport.write(FULL)
            transport.close()
            return
        self.app_state["transport"] = transport
        self.app_state["write_part"] = self.write_part
        self.app_state["keep_until_read"] = self._held.keep
        self.time_headers(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self.time_headers(False)
        if self._unread is not None:
            self._unread.end()
        if self._refused is not None:
            self._refused.end()
        self.resume_writing()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._let_go()

    def _let_go(self) -> None:
        """Of all that holds this: so its memory is free now, not when Python looks for circles."""
        self.cycle = self.scope = None  # type: ignore[assignment]
        self.app_state.clear()
        if isinstance(self.conn, _Parser):
            self.conn.let_go()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._held.leave()

    @property
    def may_refuse(self) -> bool:
        return self.early is not None and self.early.monitor.is_refusing

    def data_received(self, data: bytes) -> None:
        if self._refused is not None:
            self._refused.forget(len(data))
        else:
            super().data_received(data)

    def on_response_complete(self) -> None:
        is_watched = self._unread is not None and not self._unread.is_over
        if not is_watched and self.transport.get_write_buffer_size():
            self._unread = UnreadAnswer(self.transport, self.loop, self.write_stall)
        super().on_response_complete()

    def _refuse(self, head: h11.Request) -> bytes | None:
        """Answers a request for which there is no room, and gives what has come after it. A body
        without a content-length, or one that the client sends only when it is asked to, is left to
        the application.
        """
        early = self.early
        if early is None or not early.is_for(head):
            return None
        fields = [(name.lower(), value) for name, value in head.headers.raw_items()]
        given = dict(fields)
        if b"content-length" not in given or b"expect" in given:
            return None
        come, length = self.conn.trailing_data[0], int(given[b"content-length"])
        missing = length - len(come)
        ends = missing > 0 or given.get(b"connection", b"").lower() == b"close"
        answer = early.answer(head, fields, ends)
        if not answer:
            return None
        self.transport.write(answer)
        if ends:
            self._refused = RefusedBody(self.transport, missing, self.loop)
            return b""
        self.time_headers(True)
        return come[length:]

    async def write_part(self, part: bytes) -> None:
        """Writes a part of a chunked body past ASGI's layers and h11: a fifth of what a stream
        cost.

        Only between the response's start and its end, and only in HTTP/1.1. h11 keeps no account of
        chunks, so its state stays right.
        """
        if self.flow.write_paused:
            await self.flow.drain()
        if part and not self.transport.is_closing():  # an empty chunk would be the end
            self.transport.write(b"%x\r\n%b\r\n" % (len(part), part))

    def send_400_response(self, msg: str) -> None:
        """The answer to what cannot be read as HTTP/1.1. Called while h11's error is handled."""
        error = sys.exc_info()[1]
        hint = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            status = HTTPStatus(hint)
            if status is HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
                limit = self.config.h11_max_incomplete_event_size or 0
                message = f"The headers have more than {limit:,} bytes."
            else:
                message = f"This is not a valid HTTP/1.1 request: {error or msg}."
            body = Problem(status, message).body()
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
                (b"connection", b"close"),
            ]
            phrase = status.phrase.encode()
            for said in (
                h11.Response(status_code=status, headers=headers, reason=phrase),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                if output := self.conn.send(said):
                    self.transport.write(output)
        self.transport.close()


class HttpServer(uvicorn.Server):
    """uvicorn with h11 and limits. It leaves signals to the command line."""

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        when_stopping: Callable[[], None],
        early: EarlyRefusal | None = None,
        when_full: Callable[[], None] = lambda: None,
    ) -> None:
        """`when_stopping` is called first when it is told to stop. `early` sees requests before
        the application does. `when_full` is called for each connection that is refused, since the
        process may have no more.
        """
        decided = {
            "early": early,
            "write_stall": settings.write_stall,
            "most_connections": connections_allowed(),
            "when_full": staticmethod(when_full),
        }
        http = type("_Connection", (HttpConnection,), decided)
        super().__init__(
            uvicorn.Config(
                app,
                http=http,
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


def raise_file_limit() -> int:
    """Lets this process have as many files open as the system permits, and gives the number. Many
    systems begin with 1,024, for programs that use `select`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # a system that has a lower one of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def connections_allowed() -> int:
    """How many connections this process may have: each is an open file."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(1, files - max(LEAST_SPARE_FILES, files // 16))


MOST_NOT_SENT = 64 * 1024
"""Bytes of one connection that the system holds and has not sent. Without a bound it takes
megabytes for a client that reads nothing, which then seems to read.
"""


def bind(settings: ServerSettings) -> socket.socket:
    """The listening socket. Raises `InvalidParameter` where the address cannot be had."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, number)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # connections have it from this one
                bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MOST_NOT_SENT)
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
    do nothing else: it may have all the files that it can, garbage is collected seldom, and freed
    memory is the system's again.
    """
    raise_file_limit()

    async def whole() -> None:
        await main()

    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        factory = uvloop.new_event_loop
    with kept_small(), collected_seldom(), asyncio.Runner(loop_factory=factory) as runner:
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
