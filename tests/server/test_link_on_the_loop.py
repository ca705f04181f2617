"""The gateway's link to a runtime over ZeroMQ is read on the event loop, and misses nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lmprog import launch, wire
from lmprog.errors import LmprogError, Overloaded, RuntimeGone
from lmprog.launch import Connection
from lmprog.server.link.runtime_link import CLOSE_SECONDS, RuntimeLink
from lmprog.transport import ZmqRuntimeChannel
from lmprog.transport import address as addresses

PATIENCE = 60.0


class Echo:
    """A runtime that answers each `Describe` with the number of its call, while `reads` is set."""

    def __init__(self, address: str) -> None:
        self.reads = threading.Event()
        self.reads.set()
        self._ended = threading.Event()
        self.channel = ZmqRuntimeChannel(address)
        self._thread = threading.Thread(target=self._serve, name="echo")
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self.reads.set()
        self._thread.join()

    def _serve(self) -> None:
        while not self._ended.is_set():
            self.reads.wait()
            replies: list[tuple[bytes, wire.Reply]] = []
            for client, op in self.channel.receive(0.05):
                if isinstance(op, wire.Hello):
                    welcome = wire.Welcome(wire.PROTOCOL_VERSION, "echo", 4096, 256, 4, 64, 0)
                    replies.append((client, welcome))
                elif isinstance(op, wire.Describe):
                    replies.append((client, wire.Described(op.call, {"call": op.call})))
            self.channel.send(replies)
        self.channel.close()


@pytest.fixture
def echo(tmp_path: Path) -> Iterator[Echo]:
    made = Echo(f"ipc://{tmp_path}/socket")
    yield made
    made.end()


async def linked(echo: Echo) -> RuntimeLink:
    connection = await asyncio.to_thread(launch.connect, echo.channel.address)
    link = RuntimeLink()
    link.replace(connection)
    return link


def test_no_thread_reads_and_every_call_is_answered(echo: Echo) -> None:
    async def scenario() -> None:
        before = threading.active_count()
        link = await linked(echo)
        own = {thread.name for thread in threading.enumerate()}
        assert "lmprog-link" not in own
        assert threading.active_count() <= before + 1  # that of `to_thread`
        for _ in range(100):  # a send may hide that something has come
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*(link.figures(PATIENCE) for _ in range(5)))
        link.close()

    asyncio.run(scenario())


def test_what_a_full_pipe_holds_up_is_sent_when_there_is_room(
    echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "HIGH_WATER_MARK", 4)

    async def scenario() -> None:
        link = await linked(echo)
        echo.reads.clear()
        asked = [asyncio.create_task(link.figures(PATIENCE)) for _ in range(3000)]
        await asyncio.sleep(0.2)
        echo.reads.set()
        async with asyncio.timeout(PATIENCE):
            found = await asyncio.gather(*asked)
        assert [one["call"] for one in found] == sorted(one["call"] for one in found)
        link.close()

    asyncio.run(scenario())


def test_the_end_of_the_runtime_is_noticed_while_nothing_is_sent(echo: Echo) -> None:
    async def scenario() -> None:
        link = await linked(echo)
        with link.exchange(is_servers_own=True) as exchange:
            exchange.call()
            await asyncio.to_thread(echo.end)
            with pytest.raises(RuntimeGone):
                async with asyncio.timeout(PATIENCE):
                    await exchange.answer()
        assert not link.is_up

    asyncio.run(scenario())


class Recorded:
    """A connection's channel that keeps what is sent; each frame is a list."""

    def __init__(self) -> None:
        self.frames: list[list[wire.Op]] = []
        self.error: LmprogError | None = None

    def send(self, ops: Sequence[wire.Op]) -> None:
        if self.error is not None:
            raise self.error
        self.frames.append(list(ops))

    def receive(self, timeout: float) -> list[wire.Reply]:
        time.sleep(min(timeout, 0.001))
        return []

    def close(self) -> None: ...


def recorded() -> tuple[RuntimeLink, Recorded]:
    channel, link = Recorded(), RuntimeLink()
    welcome = wire.Welcome(wire.PROTOCOL_VERSION, "recorded", 4096, 256, 4, 64, 0)
    link.replace(Connection(channel, welcome))
    return link, channel


def an_idle_branch(link: RuntimeLink) -> int:
    """Opened and closed; no call ever ran on it."""
    with link.exchange() as exchange:
        number = exchange.branch()
        exchange.send(wire.Open(number))
    return number


def test_a_branch_on_which_nothing_runs_is_closed_in_the_frame_of_the_next_ops() -> None:
    async def scenario() -> None:
        link, channel = recorded()
        first, second = an_idle_branch(link), an_idle_branch(link)
        assert channel.frames == [[wire.Open(first)], [wire.Close(first), wire.Open(second)]]
        link.close()

    asyncio.run(scenario())


def test_where_nothing_else_is_sent_it_is_closed_all_the_same() -> None:
    async def scenario() -> None:
        link, channel = recorded()
        branches = [an_idle_branch(link) for _ in range(3)]
        async with asyncio.timeout(PATIENCE):
            while len(channel.frames) < 4:
                await asyncio.sleep(0.001)
        assert channel.frames[-1] == [wire.Close(branches[-1])]
        link.close()

    asyncio.run(scenario())


def test_a_branch_with_a_call_under_way_is_closed_at_once() -> None:
    async def scenario() -> None:
        link, channel = recorded()
        idle = an_idle_branch(link)
        with link.exchange() as exchange:
            busy = exchange.branch()
            exchange.call()
        assert channel.frames[1:] == [[wire.Close(idle), wire.Close(busy)]]
        link.close()

    asyncio.run(scenario())


def test_what_a_refused_frame_would_have_closed_is_closed_later() -> None:
    async def scenario() -> None:
        link, channel = recorded()
        number = an_idle_branch(link)
        channel.error = Overloaded("full")
        with link.exchange() as exchange, pytest.raises(Overloaded):
            exchange.send(wire.Describe(exchange.call()))
        await asyncio.sleep(2 * CLOSE_SECONDS)  # tried in vain
        channel.error = None
        async with asyncio.timeout(PATIENCE):
            while len(channel.frames) < 2:
                await asyncio.sleep(0.001)
        assert channel.frames[1:] == [[wire.Close(number)]]
        link.close()

    asyncio.run(scenario())
