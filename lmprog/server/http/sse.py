"""Server-sent events: keep-alive comments, error events, disconnecting slow readers.

`EventStream` writes what an async generator of bytes gives. While it writes, it watches for the
client's leaving; then, or when a write has not moved for `write_stall` seconds, the generator is
closed, and with it what it holds. `until_gone` does the same for an answer that is not streamed.
Knows HTTP's ends; knows no formats.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from lmprog.errors import LmprogError
from lmprog.server.http.http_errors import (
    ClientGone,
    HttpError,
    Problem,
    body_of,
    event_name_of,
    problem_of,
)
from lmprog.server.options.server_settings import ServerSettings

log = logging.getLogger("lmprog.server")

T = TypeVar("T")

KEEP_ALIVE = b": keep-alive\n\n"
END = b"data: [DONE]\n\n"
_encoder = msgspec.json.Encoder()
_LINE_ENDS = (
    (b"\xc2\x85", b"\\u0085"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)


def event(
    value: object, name: str | None = None, encode: Callable[[Any], bytes] = _encoder.encode
) -> bytes:
    """One event with JSON data."""
    begins = b"data: " if name is None else b"event: " + name.encode() + b"\ndata: "
    return b"".join((begins, one_line(encode(value)), b"\n\n"))


def failure_event(problem: Problem, scope: Scope) -> bytes:
    """How a stream of the request of `scope` ends that fails, as its dialect has it."""
    return event(body_of(problem, scope), event_name_of(scope), bytes)


def one_line(data: bytes) -> bytes:
    """JSON with what some clients take for the end of a line escaped: U+0085, U+2028, U+2029."""
    if data.isascii():
        return data
    if b"\xe2\x80" in data or b"\xc2\x85" in data:  # rare: most texts are left as they are
        for character, escaped in _LINE_ENDS:
            data = data.replace(character, escaped)
    return data


async def until_gone(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`. Raises `ClientGone`, with `work` cancelled, when the client leaves
    first.

    The body must have been read: what comes after it can only be the client's leaving.
    """
    task, is_gone, is_over = asyncio.current_task(), False, False
    assert task is not None

    def leave() -> None:
        nonlocal is_gone
        if not is_over:
            is_gone = True
            task.cancel()

    forget = _watch(request, leave)
    try:
        try:
            return await work
        finally:
            if is_gone:  # perhaps just now: then what cancels this comes with the next pause
                await asyncio.sleep(0)
    except asyncio.CancelledError:
        if is_gone and not task.uncancel():
            raise ClientGone from None
        raise
    finally:
        is_over = True  # a callback that is due already cannot be taken back
        forget()


def _watch(request: Request, leave: Callable[[], None]) -> Callable[[], object]:
    """Calls `leave` when the client leaves; what ends that. Our own listener says so by itself."""
    when_gone: Callable[..., Callable[[], object]] | None
    when_gone = request.scope.get("state", {}).get("when_gone")
    if when_gone is not None:
        return when_gone(leave)
    leaving = asyncio.ensure_future(_gone(request.receive))
    leaving.add_done_callback(lambda _: leave())
    return leaving.cancel


class EventStream(Response):
    """A response of events. Made by `begin`, so that an error before the first event is an answer
    with its status.
    """

    media_type = "text/event-stream"
    idle = KEEP_ALIVE
    """What is sent from time to time while there is nothing to tell."""

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        settings: ServerSettings,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(
            headers={"cache-control": "no-cache", "x-accel-buffering": "no", **headers}
        )
        del self.headers["content-length"]
        self._events = events
        self._settings = settings
        self._first: asyncio.Task[bytes] | None = None
        self._names: Mapping[str, str] | None = None
        """See `problem_of`."""
        self._failed: Callable[[Problem], bytes]
        self._wrote = 0.0
        self._writing = False

    @classmethod
    async def begin(
        cls,
        request: Request,
        events: AsyncGenerator[bytes, None],
        settings: ServerSettings,
        headers: Mapping[str, str] | None = None,
        failed: Callable[[Problem], bytes] | None = None,
    ) -> EventStream:
        """Waits for the first event, or `first_reply_wait`. Raises what `events` raises until then,
        or ClientGone. What it raises later becomes its last events: those that `failed` gives,
        or `failure`.
        """
        made = cls(events, settings, headers or {})
        made._names = getattr(request.state, "names", None)
        made._failed = failed or (lambda problem: cls.failure(problem, request.scope))
        made._first = asyncio.create_task(_first_of(events))
        try:
            await until_gone(
                request, asyncio.wait({made._first}, timeout=settings.first_reply_wait)
            )
            if made._first.done():
                made._first.result()
        except BaseException:
            await made._drop()
            raise
        return made

    @staticmethod
    def failure(problem: Problem, scope: Scope) -> bytes:
        """How the stream ends where it fails."""
        return failure_event(problem, scope)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        self._wrote = loop.time()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch_client, receive, tasks)
                tasks.start_soon(self._watch_silence, scope, send, tasks)
                await self._say(
                    send,
                    {"type": "http.response.start", "status": 200, "headers": self.raw_headers},
                )
                write = _writer(scope, send)
                async for part in self._guarded():
                    self._writing = True
                    await write(part)
                    self._writing = False
                    self._wrote = loop.time()
                await self._say(send, _body(b"", more=False))
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._drop()

    async def _guarded(self) -> AsyncGenerator[bytes, None]:
        """The events; an error becomes the last one."""
        try:
            if self._first is not None:
                first = await self._first
                if first:
                    yield first
            async for part in self._events:
                yield part
        except LmprogError as error:
            yield self._failed(problem_of(error, self._names))
        except HttpError as error:
            yield self._failed(error.problem)
        except ClientGone:
            return
        except Exception:  # the border: the client hears of it, the log has the rest
            log.exception("a stream failed")
            yield self._failed(
                Problem(500, "The server failed while it answered; its log says more.")
            )

    async def _say(self, send: Send, message: Message) -> None:
        self._writing = True
        await send(message)
        self._writing = False
        self._wrote = asyncio.get_running_loop().time()

    async def _watch_client(self, receive: Receive, tasks: anyio.abc.TaskGroup) -> None:
        await _gone(receive)
        tasks.cancel_scope.cancel()

    async def _watch_silence(self, scope: Scope, send: Send, tasks: anyio.abc.TaskGroup) -> None:
        """Sends keep-alive comments; ends the stream of a client that reads nothing."""
        settings, loop = self._settings, asyncio.get_running_loop()
        while True:
            limit = settings.write_stall if self._writing else settings.keep_alive
            left = self._wrote + limit - loop.time()
            if left > 0:
                await asyncio.sleep(min(left, settings.keep_alive, settings.write_stall))
            elif self._writing:
                log.warning(
                    "a client read nothing for %g s; its stream is closed", settings.write_stall
                )
                cut_off(scope)
                tasks.cancel_scope.cancel()
                return
            elif self.idle:
                await self._say(send, _body(self.idle))
            else:
                self._wrote = loop.time()

    async def _drop(self) -> None:
        if self._first is not None:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
            self._first = None  # its error has the frames of whoever waited, and they this
        await self._events.aclose()


class LineStream(EventStream):
    """The same as lines of JSON, which have no place for comments."""

    media_type = "application/x-ndjson"
    idle = b""

    @staticmethod
    def failure(problem: Problem, scope: Scope) -> bytes:
        return body_of(problem, scope) + b"\n"


def line(value: object) -> bytes:
    """One line of a `LineStream`."""
    return one_line(_encoder.encode(value)) + b"\n"


def cut_off(scope: Scope) -> None:
    """Ends the connection without waiting for its buffers, where the server gave us the
    transport.
    """
    transport = scope.get("state", {}).get("transport")
    if transport is not None:
        transport.abort()


def _writer(scope: Scope, send: Send) -> Callable[[bytes], Awaitable[None]]:
    """How parts are written: by our listener's short way where the response is chunked, else as
    ASGI says.
    """
    short: Callable[[bytes], Awaitable[None]] | None = scope.get("state", {}).get("write_part")
    if short is not None and scope.get("http_version") == "1.1":
        return short
    return lambda part: send(_body(part))


def _body(part: bytes, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": part, "more_body": more}


async def _first_of(events: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(events, b"")


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
