"""Requests without h11: what is read so is read as h11 reads it, and is answered in its bytes."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmprog.server.http.plain_requests import PlainRequest, head_of, plain_head

HEAD = b"POST /v1/x?a=1 HTTP/1.1\r\nHost: me\r\nContent-Type:  a b \t\r\ncontent-length: 3\r\n\r\n"


def by_h11(data: bytes) -> Any:
    judge = h11.Connection(h11.SERVER, 65536)
    judge.receive_data(data)
    return judge.next_event(), judge


def test_a_head_is_read_as_h11_reads_it() -> None:
    head = plain_head(HEAD + b"abc", 1000)
    request, judge = by_h11(HEAD + b"abc")
    assert head is not None
    assert (head.method, head.target) == (request.method, request.target)
    assert head.fields == list(request.headers)
    assert HEAD[head.end :] == b""
    assert head.length == len(judge.next_event().data)
    assert head.scope()["path"] == "/v1/x"
    assert head.scope()["query_string"] == b"a=1"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"HTTP/1.1", b"HTTP/1.0"),
        (b"POST /", b"POST http://me/"),
        (b"POST ", b"HEAD "),
        (b"\r\n\r\n", b"\r\n"),
        (b"content-length: 3", b"content-length: 3\r\ncontent-length: 3"),
        (b"content-length: 3", b"content-length: 3\r\ntransfer-encoding: chunked"),
        (b"content-length: 3", b"content-length: +3"),
        (b"content-length: 3", b"content-length: " + b"9" * 16),
        (b"content-length: 3", b"expect: 100-continue"),
        (b"content-length: 3", b"connection: close"),
        (b"content-length: 3", b"upgrade: h2c"),
        (b"content-length: 3", b"folded:\r\n 3"),
        (b"content-length: 3", b"with space : 3"),
        (b"content-length: 3", b"zero: \x00"),
        (b"content-length: 3", b"bare: \n"),
        (b"Host: me", b"Guest: me"),
    ],
)
def test_what_has_another_form_is_left_to_h11(before: bytes, after: bytes) -> None:
    assert plain_head(HEAD.replace(before, after, 1), 1000) is None


def test_a_head_beyond_the_limit_is_left_to_h11() -> None:
    assert plain_head(HEAD, len(HEAD)) is not None
    assert plain_head(HEAD, len(HEAD) - 1) is None


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(HEAD) - 1), st.binary(max_size=3), st.integers(0, 2))
def test_what_is_read_without_h11_is_what_h11_reads(at: int, change: bytes, cut: int) -> None:
    data = HEAD[:at] + change + HEAD[at + cut :] + b"abc"
    head = plain_head(data, 1000)
    if head is not None:
        request, _ = by_h11(data)
        assert type(request) is h11.Request
        assert (head.method, head.target) == (request.method, request.target)
        assert head.fields == list(request.headers)


@pytest.mark.parametrize("value", [b"a\r\nb: c", b"a\nb", b"a\rb", b"a\0b"])
def test_no_header_of_an_answer_makes_another(value: bytes) -> None:
    with pytest.raises(ValueError, match="end of a line"):
        head_of(200, [(b"x", value)])


class Connection:
    """A connection that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.completed = 0
        self.is_closed = False
        self.write_paused = False
        self.transport: Any = self
        self.flow: Any = self

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def resume_reading(self) -> None: ...

    def pause_reading(self) -> None: ...

    def on_response_complete(self) -> None:
        self.completed += 1


def asked(body: bytes = b"", missing: int = 0) -> tuple[PlainRequest, Connection]:
    connection = Connection()
    scope: dict[str, Any] = {"state": {}, "headers": []}
    return PlainRequest(connection, scope, body, missing, [(b"date", b"now")], None), connection


START = {"type": "http.response.start", "status": 200}


def test_an_answer_of_known_length_is_one_write_and_one_without_is_chunked() -> None:
    async def scenario() -> None:
        for message in (
            {**START, "headers": [(b"content-length", b"2")]},
            {"type": "http.response.body", "body": b"ok"},
        ):
            await whole.send(message)
        assert whole_on.written == b"HTTP/1.1 200 OK\r\ndate: now\r\ncontent-length: 2\r\n\r\nok"
        await parts.send(START)
        assert parts_on.written.endswith(b"transfer-encoding: chunked\r\n\r\n")
        await parts.send({"type": "http.response.body", "body": b"ok", "more_body": True})
        await parts.send({"type": "http.response.body"})
        assert parts_on.written.endswith(b"\r\n\r\n2\r\nok\r\n0\r\n\r\n")

    (whole, whole_on), (parts, parts_on) = asked(), asked()
    asyncio.run(scenario())
    assert whole_on.completed == parts_on.completed == 1
    assert not whole_on.is_closed


def test_an_answer_that_says_close_ends_the_connection() -> None:
    request, connection = asked()
    fields = [(b"content-length", b"0"), (b"connection", b"close")]

    async def scenario() -> None:
        await request.send({**START, "status": 413, "headers": fields})
        await request.send({"type": "http.response.body"})

    asyncio.run(scenario())
    assert connection.is_closed
    assert request.response_complete


def test_a_body_comes_in_parts_and_what_lies_behind_it_is_the_next_requests() -> None:
    async def scenario() -> list[Any]:
        first = await request.receive()
        waiting = asyncio.ensure_future(request.receive())
        await asyncio.sleep(0)
        assert request.feed(b"cdNEXT") == b"NEXT"
        second = await waiting
        last = asyncio.ensure_future(request.receive())
        await asyncio.sleep(0)
        assert not last.done()
        request.disconnected = True
        request.set()
        return [first, second, await last]

    request, _ = asked(b"ab", 2)
    assert asyncio.run(scenario()) == [
        {"type": "http.request", "body": b"ab", "more_body": True},
        {"type": "http.request", "body": b"cd", "more_body": False},
        {"type": "http.disconnect"},
    ]


def test_who_watches_for_a_client_hears_of_its_leaving_once() -> None:
    heard: list[str] = []
    request, _ = asked()
    request.when_gone(lambda: heard.append("a"))
    request.when_gone(lambda: heard.append("b"))()
    request.disconnected = True
    request.set()
    request.set()
    request.when_gone(lambda: heard.append("late"))
    assert heard == ["a", "late"]
