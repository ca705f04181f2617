"""A connection before its first request goes on: what HTTP needs is made when it is needed.

A full server refuses thousands of connections in a moment. Making a parser and an account of flow
for each took half of the time of a refusal. Knows who refuses early; what is not refused becomes an
`HttpConnection` with its first bytes.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.config import Config
from uvicorn.server import ServerState

from lmprog.server.http.early_refusal import EarlyRefusal, RefusedBody
from lmprog.server.http.listener import HttpConnection


class NewConnection(asyncio.Protocol):
    """One client's connection, as long as all of its requests are refused. uvicorn makes it, and
    closes it by `shutdown`.
    """

    early: ClassVar[EarlyRefusal]
    http: ClassVar[type[HttpConnection]]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._made_of = (config, server_state, app_state)
        self._connections: set[Any] = server_state.connections
        self._loop = _loop or asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waits_since = 0.0
        """For the first byte of a request."""
        self._refused: RefusedBody | None = None
        """What is still to come of the last request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._connections.add(self)
        self._waits_since = self._loop.time()
        self._timer = self._loop.call_later(self.http.header_seconds, self._end_waiting)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        if self._refused is not None:
            self._refused.end()

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        assert transport is not None
        if self._refused is not None:
            self._refused.forget(len(data))
            return
        answer = self.early.answer(data)
        if answer is None:
            self._leave()
            made = self.http(*self._made_of, _loop=self._loop)
            transport.set_protocol(made)
            made.connection_made(transport)
            made.data_received(data)
            return
        transport.write(answer.written)
        self._waits_since = self._loop.time()
        if answer.closes:
            self._refused = RefusedBody(transport, answer.missing, self._loop)

    def shutdown(self) -> None:
        """The server ends."""
        if self._transport is not None:
            self._transport.close()

    def _leave(self) -> None:
        self._connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_waiting(self) -> None:
        assert self._transport is not None
        left = self._waits_since + self.http.header_seconds - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._end_waiting)
        else:
            self._transport.abort()
