"""A window, and servers for it to look at: before a fake runtime of a chosen pace, and before
nano.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lmprog.launch import Connection
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.http.http_server import HttpServer, bind, url_of
from lmprog.server.link.runtime_link import RuntimeLink
from lmprog.server.options.server_settings import ServerSettings
from lmprog.server.service import serve_gateway
from tests.server.fake_runtime import Fake

if TYPE_CHECKING:
    from tests.browser.window import Window


def missing() -> str:
    """Why there can be no browser; empty where there can."""
    if importlib.util.find_spec("selenium") is None:
        return "selenium is not installed: pip install selenium"
    from tests.browser.window import program

    for names, package in (
        (("chromium", "chromium-browser"), "chromium"),
        (("chromedriver",), "chromium-driver"),
    ):
        if program(*names) is None:
            return f"there is no {names[0]}: apt-get install {package}"
    return ""


class Site:
    """A server in a thread, before a fake runtime that can be taken away and given back."""

    def __init__(self, fake: Fake, **settings: Any) -> None:
        self._fake = fake
        self._settings = ServerSettings(**{"port": 0, "ui_show_text": True, **settings})
        self._bound = bind(self._settings)
        self.url = url_of(self._bound)
        self._server: HttpServer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gateway: Gateway | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="site")
        self._thread.start()
        assert self._ready.wait(60)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._gateway = Gateway(self._settings, RuntimeLink())
        self._gateway.link.replace(self._fake.connect("http"))

        def ready(server: HttpServer) -> None:
            self._server = server
            self._ready.set()

        try:
            await serve_gateway(self._gateway, self._bound, ready)
        finally:
            self._gateway.link.close()

    @property
    def gateway(self) -> Gateway:
        assert self._gateway is not None
        return self._gateway

    def replace(self, connection: Connection | None) -> None:
        """From now on this runtime, or none."""
        assert self._loop is not None
        assert self._gateway is not None
        self._loop.call_soon_threadsafe(self._gateway.link.replace, connection)

    def is_watched(self) -> bool:
        """Whether any request is open; a page that stands still has one, its stream of pictures."""
        assert self._gateway is not None
        return self._gateway.open_requests > 0

    def close(self) -> None:
        assert self._loop is not None
        assert self._server is not None
        self._loop.call_soon_threadsafe(self._server.stop)
        self._thread.join(60)
        self._bound.close()


@contextmanager
def opened(
    window: Window, *, pace: float = 0.0, width: int = 1400, **settings: Any
) -> Iterator[tuple[Site, Fake]]:
    """The page of a server before a fake runtime whose steps take `pace` seconds; left before the
    server ends.
    """
    with Fake(pace=pace) as fake:
        served = Site(fake, **settings)
        try:
            window.visit(served.url, width=width)
            yield served, fake
        finally:
            window.driver.get("about:blank")
            served.close()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Window]:
    """One browser for all tests, since it takes seconds to start."""
    why = missing()
    if why and os.environ.get("CI"):
        pytest.fail(f"the browser tests must run in CI: {why}")
    if why:
        pytest.skip(why)
    os.environ.setdefault("SE_OFFLINE", "true")  # selenium would look for drivers elsewhere
    os.environ.setdefault("SE_AVOID_STATS", "true")
    from tests.browser.window import Window

    window = Window(Path(tmp_path_factory.mktemp("profile")))
    yield window
    window.close()


@pytest.fixture
def window(browser: Window) -> Iterator[Window]:
    """The browser, which must have had nothing to complain about when the test is over."""
    browser.complaints()
    yield browser
    assert browser.complaints() == []
