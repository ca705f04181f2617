"""As many connections as the system permits, whatever limit the server is started with; those
beyond it are answered and counted.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

import pytest

from lmprog.server.gateway.gateway import Gateway
from lmprog.server.http import http_server
from lmprog.server.http.http_server import HttpServer, bind, connections_allowed
from lmprog.server.link.runtime_link import RuntimeLink
from lmprog.server.options.server_settings import ServerSettings

STREAMS = 150
SERVING = """
import asyncio, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from lmprog.server.http.http_server import HttpServer, bind, run
from lmprog.server.options.server_settings import ServerSettings

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"begun", "more_body": True})
    while (await receive())["type"] != "http.disconnect":
        pass

settings = ServerSettings(port=0)
bound = bind(settings)
print(bound.getsockname()[1], flush=True)
run(lambda: HttpServer(app, settings, lambda: None).serve([bound]))
"""


def test_a_server_that_begins_with_a_low_limit_holds_more_open_streams_than_that() -> None:
    command = [sys.executable, "-c", SERVING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())

        try:
            with ExitStack() as stack:
                for _ in range(STREAMS):
                    one = stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
                    one.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                    said = b""
                    while b"begun" not in said:
                        said += one.recv(4096)
                        assert said, "the server has closed the connection"
        finally:
            server.kill()


@pytest.mark.parametrize(
    ("files", "allowed"),
    [(256, 192), (1024, 960), (65_536, 61_440), (10, 1), (resource.RLIM_INFINITY, sys.maxsize)],
)
def test_some_files_are_kept_for_others_than_connections(
    files: int, allowed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert connections_allowed() == allowed


def test_a_connection_beyond_them_is_answered_counted_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_server, "connections_allowed", lambda: 2)
    settings = ServerSettings(port=0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("nothing is asked")

    async def run() -> bytes:
        gateway = Gateway(settings, RuntimeLink())
        bound = bind(settings)
        server = HttpServer(app, settings, lambda: None, None, gateway.refuse_connection)
        serving = asyncio.create_task(server.serve([bound]))
        where = bound.getsockname()[:2]
        try:
            kept = [await asyncio.open_connection(*where) for _ in range(2)]
            said = b""
            for _ in range(3):
                reader, writer = await asyncio.open_connection(*where)
                said += await asyncio.wait_for(reader.read(), 60)
                writer.close()
            kept[0][1].close()
            while len(server.server_state.connections) > 1:
                await asyncio.sleep(0.01)
            again = await asyncio.open_connection(*where)
            while len(server.server_state.connections) < 2:
                await asyncio.sleep(0.01)
            assert not again[0].at_eof()
            for _, opened in (*kept, again):
                opened.close()
            counted = 'admission_rejections_total{model_name="",reason="too_many_connections"} 3.0'
            assert counted in gateway.meters.text()[0].decode()
            return said
        finally:
            server.stop_now()
            await serving

    assert asyncio.run(run()).count(b"HTTP/1.1 503 Service Unavailable") == 3
    lines = [record.getMessage() for record in caplog.records]
    assert sum("connections were refused" in line for line in lines) == 1
