"""What comes over a real socket and is no proper HTTP: answered in the same form, and nobody else
notices.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from urllib.parse import urlsplit

import pytest

from lmprog.server.http.http_server import HttpConnection, HttpServer, bind
from lmprog.server.options.server_settings import ServerSettings
from lmprog.server.service import serve
from tests.server.conftest import Served
from tests.server.fake_runtime import Fake

GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"


def talk(server: Served, *parts: bytes) -> tuple[int, dict[str, str], bytes]:
    """Sends `parts`, reads until the server closes or the body is whole: status, headers, body."""
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), timeout=60) as client:
        said = b""
        try:
            for part in parts:
                client.sendall(part)
            while not is_whole(said):
                more = client.recv(65_536)
                if not more:
                    break
                said += more
        except (BrokenPipeError, ConnectionResetError):
            said += drain(client)
    head, _, body = said.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines if ": " in line)
    return int(status.split()[1]) if status else 0, headers, body


def drain(client: socket.socket) -> bytes:
    """What has come before the connection broke."""
    client.settimeout(1.0)
    try:
        return client.recv(65_536)
    except OSError:
        return b""


def is_whole(said: bytes) -> bool:
    head, border, body = said.partition(b"\r\n\r\n")
    if not border:
        return False
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(lengths) and len(body) >= int(lengths[0].split(b":")[1])


@pytest.mark.parametrize(
    "parts",
    [
        (b"nonsense\r\n\r\n",),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20,),
        (b"GET / HTTX/1.1\r\n\r\n",),
        (GET + b"x: " + b"y" * 100_000,),
        (GET + b"".join(b"x-%d: y\r\n" % number for number in range(20_000)),),
        (b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",),
        (
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: "
            b"5\r\ncontent-length: 6\r\n\r\nhello",
        ),
        (b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: nine\r\n\r\n",),
        (b"GET /health HTTP/1.1\r\nhost : x\r\n\r\n",),
    ],
    ids=[
        "words",
        "tls",
        "protocol",
        "header",
        "headers",
        "path",
        "two lengths",
        "no length",
        "blank",
    ],
)
def test_what_is_not_http_is_refused_with_a_reason(
    server: Served, parts: tuple[bytes, ...]
) -> None:
    status, headers, body = talk(server, *parts)
    assert status in (0, 400, 431), "refused, or cut off while it was still sending"
    if status:
        assert headers["content-type"] == "application/json"
        assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert talk(server, GET + b"\r\n")[0] == 200


@pytest.mark.parametrize(
    ("sent", "line", "message"),
    [
        (b"nonsense\r\n\r\n", b"400 Bad Request", "illegal request line"),
        (b"GET /health HTTP/1.1\r\n\r\n", b"400 Bad Request", "Missing mandatory Host: header"),
        (
            b"GET /health HTTP/1.1\r\nhost: a\r\nhost: localhost\r\n\r\n",
            b"400 Bad Request",
            "Found multiple Host: headers",
        ),
        (
            GET + b"x: " + b"y" * 70_000,
            b"431 Request Header Fields Too Large",
            "more than 65,536 bytes",
        ),
    ],
)
def test_a_refused_request_has_a_reason_in_its_status_line_and_in_its_body(
    server: Served, sent: bytes, line: bytes, message: str
) -> None:
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), timeout=60) as client:
        client.sendall(sent)
        said = b""
        while more := client.recv(65_536):
            said += more
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[0] == b"HTTP/1.1 " + line
    assert message in json.loads(body)["error"]["message"]


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/nowhere", "GET", 404),
        ("/v1/chat/completions", "GET", 405),
        ("/v1/models", "DELETE", 405),
        ("/%00%ff/..", "GET", 404),
        ("/health/", "GET", 404),
    ],
)
def test_wrong_ways_are_refused_in_openais_form(
    server: Served, path: str, method: str, status: int
) -> None:
    found, headers, body = talk(
        server, f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    )
    assert found == status
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
    assert headers["x-request-id"]


def test_a_body_that_is_announced_too_large_is_refused_before_it_comes(server: Served) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    began = time.monotonic()
    status, headers, body = talk(server, head + b"content-length: 9000000\r\n\r\n")
    assert status == 413
    assert headers["connection"] == "close"
    assert json.loads(body)["error"]["code"] == "body_too_large"
    assert time.monotonic() - began < 30


def test_an_absolute_target_is_its_path_and_names_the_host(server: Served) -> None:
    status, _, _ = talk(
        server, b"GET http://localhost/health HTTP/1.1\r\nhost: evil.example\r\n\r\n"
    )
    assert status == 200
    status, _, _ = talk(
        server, b"GET http://evil.example/health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    )
    assert status == 403


def test_a_connection_ends_after_a_body_that_has_two_lengths(server: Served) -> None:
    body = b'{"prompt":"Hi","max_tokens":1}'
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    lengths = b"content-length: %d\r\ntransfer-encoding: chunked\r\n\r\n" % len(body)
    status, headers, _ = talk(server, head + lengths + chunks)
    assert (status, headers["connection"]) == (200, "close")


def test_a_request_in_single_bytes_is_served(server: Served) -> None:
    assert talk(server, *(bytes([byte]) for byte in GET + b"\r\n"))[0] == 200


def test_requests_in_a_row_on_one_connection_are_answered_in_order(server: Served) -> None:
    one = GET + b"x-request-id: %d\r\n\r\n"
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), timeout=60) as client:
        client.sendall(b"".join(one % number for number in range(5)))
        said = b""
        while said.count(b"x-request-id: ") < 5:
            said += client.recv(65_536)
    assert [said.index(b"x-request-id: %d" % number) for number in range(5)] == sorted(
        said.index(b"x-request-id: %d" % number) for number in range(5)
    )


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /health HTT",
        GET,
        GET + b"\r\n" + GET,  # the second request never ends
    ],
    ids=["nothing", "a part of a line", "a part of the headers", "a part of the second request"],
)
def test_who_never_ends_his_headers_is_cut_off(
    fake: Fake, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HttpConnection, "header_seconds", 0.3)
    with bind(ServerSettings(port=0)) as bound:

        async def run() -> bytes:
            started: asyncio.Future[HttpServer] = asyncio.get_running_loop().create_future()
            serving = asyncio.create_task(serve(ServerSettings(), fake, bound, started.set_result))
            server = await started
            reader, writer = await asyncio.open_connection(*bound.getsockname()[:2])
            writer.write(sent)
            try:
                said = await asyncio.wait_for(reader.read(), 30)
            except ConnectionResetError:
                said = b""
            writer.close()
            server.stop()
            await serving
            return said

        assert (b"200 OK" in asyncio.run(run())) == (sent.count(b"GET") == 2)
