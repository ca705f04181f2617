"""A runtime in a thread of this process, real in everything but the model: a hash over its pages,
speaking bytes.

`Fake` is a `RuntimeSource` for a gateway; `asking` gives an HTTP client on a gateway before it,
without sockets.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx2

from lmprog import wire
from lmprog.config import SchedulerConfig
from lmprog.launch import Connection, greet
from lmprog.runtime.loop import Loop
from lmprog.runtime.programs.call_builder import ServedModel
from lmprog.runtime.programs.call_constraints import CallConstraints
from lmprog.runtime.programs.interpreter import Interpreter
from lmprog.runtime.programs.public_prefixes import public_prefix
from lmprog.runtime.scheduling.namespaces import AdapterNames, Namespaces
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.text.chat_template import load_template
from lmprog.runtime.text.tokenizer import ByteTokenizer
from lmprog.server.app import build_app
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.link.runtime_link import RuntimeLink
from lmprog.server.options.server_settings import ServerSettings
from lmprog.simulation.fake_engine import FakeEngine
from lmprog.simulation.plain_sampler import PlainSampler
from lmprog.transport import LocalRuntimeChannel

CONTEXT = 2000


class Fake:
    """Everything real but the model. `pace` is what each step takes, in seconds: 0 for as fast as
    it goes.
    """

    suggested = wire.SuggestedSampling()
    infill: tuple[str, ...] = ()
    sampler: type[PlainSampler] = PlainSampler

    def __init__(
        self,
        pace: float = 0.0,
        public: Sequence[Path] = (),
        adapters: Mapping[str, str] = MappingProxyType({}),
        **changes: Any,
    ) -> None:
        tokenizer = ByteTokenizer()
        config = SchedulerConfig(**{"page_size": 4, "num_pages": 4000, **changes})
        self.scheduler = Scheduler(config, CONTEXT)
        engine = FakeEngine(config.num_pages, config.page_size, tokenizer.vocab_size)
        template = load_template(None)
        namespaces = Namespaces(
            tokenizer.vocab_size,
            [public_prefix(path, tokenizer, lambda: template) for path in public],
        )
        constraints = CallConstraints(tokenizer, tokenizer.vocab_size)
        facts = (CONTEXT, tokenizer.vocab_size, 4, config.num_pages, 0, self.suggested)
        welcome = wire.Welcome(
            wire.PROTOCOL_VERSION, "fake", *facts, infill=self.infill, adapters=dict(adapters)
        )
        self.channel = LocalRuntimeChannel()
        model = ServedModel(
            tokenizer, lambda: template, welcome, namespaces, AdapterNames(adapters)
        )
        self.interpreter = Interpreter(
            self.scheduler,
            model,
            constraints,
            time.monotonic,
            random.Random(1),
            counters=self.channel.counters,
        )
        self._loop = Loop(
            self.channel, self.interpreter, self.scheduler, engine, self.sampler(), time.monotonic
        )
        self._pace = pace
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="fake-runtime")
        self._thread.start()

    def connect(self, client: str = "") -> Connection:
        return greet(self.channel.connect(), client=client)

    def end(self) -> None:
        """As a runtime ends that is killed: its clients hear of it."""
        self._ended.set()
        self._thread.join()

    def __enter__(self) -> Fake:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _serve(self) -> None:
        try:
            while not self._ended.is_set():
                self._loop.step()
                if self._pace and not self.scheduler.idle:
                    time.sleep(self._pace)
        finally:
            self.channel.close()


@asynccontextmanager
async def asking(
    runtime: Fake, **settings: Any
) -> AsyncIterator[tuple[httpx2.AsyncClient, Gateway]]:
    """A client on a gateway before `runtime`, within this event loop."""
    gateway = Gateway(ServerSettings(**settings), RuntimeLink())
    gateway.link.replace(runtime.connect("test"))
    transport = httpx2.ASGITransport(app=build_app(gateway), raise_app_exceptions=False)
    try:
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://localhost", timeout=120.0
        ) as client:
            yield client, gateway
    finally:
        gateway.link.close()


class Asgi:
    """One request to an ASGI application, by hand: its start is waited for, and it can be left at
    any moment.
    """

    def __init__(
        self,
        app: Any,
        method: str,
        path: str,
        headers: dict[str, str] | None = None,
        body: Any = None,
        client: str = "127.0.0.1",
    ) -> None:
        """`body` is sent as JSON where it is given; `client` is an address."""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.parts: list[bytes] = []
        self.ended = False
        """The last part has come."""
        self.reads = asyncio.Event()
        """Cleared: the client takes nothing more, and writes wait."""
        self.reads.set()
        self._left = asyncio.Event()
        self._came = asyncio.Event()
        self._messages = [
            {"type": "http.request", "body": b"" if body is None else json.dumps(body).encode()}
        ]
        raw = {"content-type": "application/json", **(headers or {})}
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "http_version": "1.1",
            "server": ("test", 80),
            "client": (client, 1),
            "headers": [(name.lower().encode(), value.encode()) for name, value in raw.items()],
        }
        self.task = asyncio.create_task(app(scope, self._receive, self._send))
        self.task.add_done_callback(lambda _: self._came.set())

    async def started(self) -> int:
        """The status, once it is there."""
        while not self.status and not self.task.done():
            await self._next()
        return self.status

    async def until(self, words: bytes) -> None:
        """Until `words` have come."""
        while words not in b"".join(self.parts) and not self.task.done():
            await self._next()

    async def leave(self) -> None:
        """Goes away, and waits until the application has noticed."""
        self._left.set()
        await asyncio.wait({self.task})
        if not self.task.cancelled():
            self.task.result()

    async def _next(self) -> None:
        self._came.clear()
        await self._came.wait()

    async def _receive(self) -> dict[str, Any]:
        if self._messages:
            return self._messages.pop()
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        await self.reads.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.parts.append(message.get("body", b""))
            self.ended = not message.get("more_body", False)
        self._came.set()
