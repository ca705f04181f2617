"""The way of one call through the package: which files its code is in, which values it passes.

`python -m benchmarks.walk [gen | select | json | chat]` runs one program, or a chat over HTTP, on a
runtime in this process, with the smallest random model (a chat: nano), and lists the files of
lmprog whose functions ran between the call and its result, and the value classes (dataclasses and
messages) that those functions were given. An earlier revision is followed by running the same
command there.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import msgspec

import lmprog
from benchmarks import runner
from lmprog.backends.client import RuntimeBackend
from lmprog.config import RuntimeConfig
from lmprog.launch import Connection, greet
from lmprog.runtime.assembly import assemble
from lmprog.server.http.http_server import HttpServer, bind, run, url_of
from lmprog.server.options.server_settings import ServerSettings
from lmprog.server.service import serve
from lmprog.transport import ClientId, LocalRuntimeChannel, Received

PACKAGE = Path(lmprog.__file__).parent
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


class Walk:
    """Counts calls by file, and the value classes among the arguments."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.values: dict[str, str] = {}

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        """A hook for `sys.setprofile`."""
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(str(PACKAGE)):
            return
        self.calls[str(Path(name).relative_to(PACKAGE))] += 1
        for value in list(frame.f_locals.values()):
            kind = type(value)
            is_value = dataclasses.is_dataclass(kind) or isinstance(value, msgspec.Struct)
            if is_value and kind.__module__.startswith("lmprog"):
                self.values[kind.__name__] = kind.__module__

    def add(self, other: Walk) -> None:
        self.calls += other.calls
        self.values |= other.values


@lmprog.function
def plain(s: lmprog.Branch) -> str:
    s += "The sky is"
    s += lmprog.gen("answer", max_tokens=3, temperature=0)
    return str(s["answer"])


@lmprog.function
def chosen(s: lmprog.Branch) -> str:
    s += "The sky is"
    s += lmprog.select("answer", ["red", "blue"])
    return str(s["answer"])


@lmprog.function
def confined(s: lmprog.Branch) -> str:
    s += "The sky is"
    s += lmprog.gen("answer", max_tokens=16, temperature=0, schema=SCHEMA)
    return str(s["answer"])


PROGRAMS = {"gen": plain, "select": chosen, "json": confined}


class Heard(LocalRuntimeChannel):
    """Knows whether something has come."""

    has_heard = False

    def receive(self, wait: float) -> list[tuple[ClientId, Received]]:
        found = super().receive(wait)
        self.has_heard |= bool(found)
        return found


@contextmanager
def a_runtime(
    walk: Walk, model: str = "dummy:tiny"
) -> Iterator[tuple[LocalRuntimeChannel, Callable[[], None]]]:
    """The channel of one in this process, and how it is followed from now on. Turns in which nothing
    came and nothing was computed are no part of a call's way: how many there are is chance.
    """
    channel = Heard()
    config = RuntimeConfig(model=model, dtype="float32", threads=1, kv_memory_mb=32)
    loop, _ = assemble(config, channel)
    following, followed, ended = threading.Event(), threading.Event(), threading.Event()

    def serve() -> None:
        while not ended.is_set():
            turn, num_steps = Walk(), loop.scheduler.stats.steps
            channel.has_heard = False
            is_followed = following.is_set()
            if is_followed:
                sys.setprofile(turn.profile)
                followed.set()
            loop.step()
            sys.setprofile(None)
            if is_followed and (channel.has_heard or loop.scheduler.stats.steps > num_steps):
                walk.add(turn)
        channel.close()

    def follow() -> None:
        following.set()
        followed.wait()  # the runtime's step that waits now is not seen
        walk.calls.clear()
        walk.values.clear()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield channel, follow
    finally:
        ended.set()
        thread.join()


def walked(program: lmprog.Program[[], str]) -> Walk:
    """Runs the program twice, and follows the second run."""
    walk = Walk()
    with (
        a_runtime(walk) as (channel, follow),
        RuntimeBackend(greet(channel.connect())) as backend,
    ):
        using = program.using(backend=backend)
        using.run()
        follow()
        threading.setprofile(walk.profile)
        sys.setprofile(walk.profile)
        using.run()
        sys.setprofile(None)
        threading.setprofile(None)
    return walk


class Here:
    """A runtime of this process, for a gateway."""

    def __init__(self, channel: LocalRuntimeChannel) -> None:
        self._channel = channel

    def connect(self, client: str = "") -> Connection:
        return greet(self._channel.connect())


def walked_chat() -> Walk:
    """The same of a chat over HTTP: what the gateway and the runtime pass for it."""
    walk = Walk()
    settings = ServerSettings(port=0)
    bound = bind(settings)
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "temperature": 0}

    def ask() -> None:
        head = {"content-type": "application/json"}
        url = url_of(bound) + "/v1/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), head)
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer)["choices"]

    with a_runtime(walk, "nano") as (channel, follow):

        def ready(server: HttpServer) -> None:
            async def two_chats() -> None:
                await asyncio.to_thread(ask)
                await asyncio.to_thread(follow)
                sys.setprofile(walk.profile)
                await asyncio.to_thread(ask)
                sys.setprofile(None)
                server.stop_now()

            tasks.append(asyncio.get_running_loop().create_task(two_chats()))

        tasks: list[asyncio.Task[None]] = []
        run(lambda: serve(settings, Here(channel), bound, ready))
    return walk


@runner.command
def main(kind: Annotated[str, {"choices": [*PROGRAMS, "chat"]}] = "gen") -> None:
    walk = walked_chat() if kind == "chat" else walked(PROGRAMS[kind])
    print(f"{len(walk.calls)} files, {sum(walk.calls.values()):,} calls")
    for file, count in walk.calls.most_common():
        print(f"{count:6} {file}")
    print(f"{len(walk.values)} value classes")
    for name, module in sorted(walk.values.items(), key=lambda item: item[1]):
        print(f"       {module}.{name}")
