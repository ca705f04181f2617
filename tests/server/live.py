"""A whole server on a socket, with nano behind it: what tests with real clients stand on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from lmprog.server.run import HttpServer, RuntimeSource, bind, serve, url_of
from lmprog.server.settings import Settings

START_SECONDS = 120.0


class Live:
    """Where the server is, and a plain client of it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.Client(base_url=url, timeout=120.0, trust_env=False)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def ok(self, path: str, **body: Any) -> Any:
        response = self.post(path, **body)
        assert response.status_code == 200, response.text
        return response.json()

    def refused(self, path: str, **body: Any) -> dict[str, Any]:
        """The error of a request that must be answered with 400."""
        response = self.post(path, **body)
        assert response.status_code == 400, response.text
        error: dict[str, Any] = response.json()["error"]
        return error

    def events(self, path: str, **body: Any) -> Iterator[str]:
        """The data of each event, without comments."""
        with self.http.stream("POST", path, json=body) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            for line in response.iter_lines():
                if line.startswith("data: "):
                    yield line.removeprefix("data: ")


@contextmanager
def serving(runtime: RuntimeSource, **settings: Any) -> Iterator[Live]:
    """A server in a thread of this process, before `runtime`, which is its caller's."""
    chosen = Settings(port=0, **settings)
    bound = bind(chosen)
    ready = threading.Event()
    servers: list[HttpServer] = []

    def when_ready(server: HttpServer) -> None:
        servers.append(server)
        ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(serve(chosen, runtime, bound, when_ready)))
    thread.start()
    try:
        assert ready.wait(START_SECONDS), "the server did not start"
        live = Live(url_of(bound))
        with live.http:
            yield live
    finally:
        for server in servers:
            server.stop_now()
        thread.join(START_SECONDS)
