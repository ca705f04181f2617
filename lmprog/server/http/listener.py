"""A connection to the server: uvicorn's h11 protocol, with time limits and errors in OpenAI's form.

Adds to uvicorn: the transport for `sse.cut_off`, a short way for the parts of streams, a time
within which the headers must have come and answers be read, and an answer with its reason to what
is not HTTP. Knows uvicorn's protocol class; knows no application.
"""

from __future__ import annotations

import asyncio
import sys
from http import HTTPStatus
from typing import Any, ClassVar

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from lmprog.server.http.early_refusal import EarlyRefusal, RefusedBody
from lmprog.server.http.http_errors import Problem


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


class HttpConnection(H11Protocol):
    """One client's connection."""

    header_seconds: ClassVar[float] = 60.0
    """Within which the headers of a request must be there, from its first byte or the connection's
    beginning.
    """
    write_stall: ClassVar[float] = 60.0
    """An answer that was written, and of which its client reads nothing for so long, is cut off."""
    early: ClassVar[EarlyRefusal | None] = None
    """Sees the first bytes of requests."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, dict(app_state), _loop)
        self._timer: asyncio.TimerHandle | None = None
        self._unread: UnreadAnswer | None = None
        self._refused: RefusedBody | None = None
        """What is still to come of a request that was refused early."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state["transport"] = transport
        self.app_state["write_part"] = self.write_part
        self._timer = self.loop.call_later(self.header_seconds, self._end_waiting)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._unread is not None:
            self._unread.end()
        if self._refused is not None:
            self._refused.end()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        is_watched = self._unread is not None and not self._unread.is_over
        if not is_watched and self.transport.get_write_buffer_size():
            self._unread = UnreadAnswer(self.transport, self.loop, self.write_stall)
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        if self._refused is not None:
            self._refused.forget(len(data))
            return
        if self.early is not None and self._is_between and self.conn.trailing_data[0] == b"":
            answer = self.early.answer(data)
            if answer is not None:
                self._unset_keepalive_if_required()
                self.transport.write(answer.written)
                if answer.closes:
                    self._refused = RefusedBody(self.transport, answer.missing, self.loop)
                return
        super().data_received(data)
        if not self._is_between:
            self._stop_timer()
        elif (
            self._timer is None
        ):  # uvicorn's own timer between requests ends with the first byte of the next
            self._timer = self.loop.call_later(self.header_seconds, self._end_waiting)

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

    @property
    def _is_between(self) -> bool:
        """No request has come yet, or the last one is answered."""
        return self.cycle is None or self.cycle.response_complete

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_waiting(self) -> None:
        self._timer = None
        if self._is_between:
            self.transport.abort()
