"""A private server for one command: a runtime and a gateway on this machine, with a random key.

Knows how to start and stop both; knows no requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from collections.abc import Iterator

from lmprog.errors import RuntimeGone
from lmprog.launch import RuntimeProcess
from lmprog.server.http.http_server import HttpServer, bind, url_of
from lmprog.server.options.server_settings import ServerSettings
from lmprog.server.service import serve

START_SECONDS = 60.0


@contextlib.contextmanager
def own_server(model: str, requests: int) -> Iterator[tuple[str, str]]:
    """(URL, key) of a server for `requests` concurrent requests, for as long as the block runs."""
    key = secrets.token_hex(24)  # as an argument it must not look like an option
    settings = ServerSettings(port=0, api_keys=(key,), max_running=max(256, requests), drain=1.0)
    bound = bind(settings)
    ready = threading.Event()
    servers: list[HttpServer] = []

    def when_ready(server: HttpServer) -> None:
        servers.append(server)
        ready.set()

    with RuntimeProcess(model) as runtime:
        thread = threading.Thread(
            target=lambda: asyncio.run(serve(settings, runtime, bound, when_ready))
        )
        thread.start()
        try:
            if not ready.wait(START_SECONDS):
                raise RuntimeGone("The server did not start.")
            yield url_of(bound), key
        finally:
            for server in servers:
                server.stop_now()
            thread.join()
