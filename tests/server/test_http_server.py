"""The short way of a stream's parts: the bytes that h11 would have written, and slow readers are
waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
from typing import Any

import h11

from lmprog.server.http.http_server import HttpConnection, HttpServer, UnreadAnswer, bind, run
from lmprog.server.options.server_settings import ServerSettings


class Transport:
    def __init__(self) -> None:
        self.written = b""
        self.closing = False

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closing


class Flow:
    def __init__(self) -> None:
        self.write_paused = False
        self.writable = asyncio.Event()

    async def drain(self) -> None:
        await self.writable.wait()


def connection() -> Any:
    made: Any = HttpConnection.__new__(HttpConnection)
    made.transport, made.flow = Transport(), Flow()
    return made


def test_parts_are_the_chunks_that_h11_would_write() -> None:
    judge = h11.Connection(h11.SERVER)
    judge.receive_data(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    judge.next_event()
    judge.send(h11.Response(status_code=200, headers=[(b"transfer-encoding", b"chunked")]))
    ours = connection()
    parts = [b"data: {}\n\n", b"x" * 5000, b"\x00\r\n"]
    for part in parts:
        asyncio.run(ours.write_part(part))
    assert ours.transport.written == b"".join(
        judge.send(h11.Data(data=part)) or b"" for part in parts
    )


def test_an_empty_part_is_not_the_end_of_the_body() -> None:
    ours = connection()
    asyncio.run(ours.write_part(b""))
    assert ours.transport.written == b""


def test_nothing_is_written_to_who_has_left() -> None:
    ours = connection()
    ours.transport.closing = True
    asyncio.run(ours.write_part(b"late"))
    assert ours.transport.written == b""


def test_a_part_waits_until_the_reader_has_read() -> None:
    async def scenario() -> tuple[bytes, bytes]:
        ours = connection()
        ours.flow.write_paused = True
        writing = asyncio.create_task(ours.write_part(b"more"))
        await asyncio.sleep(0)
        before = bytes(ours.transport.written)
        ours.flow.writable.set()
        await writing
        return before, ours.transport.written

    assert asyncio.run(scenario()) == (b"", b"4\r\nmore\r\n")


def test_a_server_process_seldom_looks_at_its_live_objects() -> None:
    """A flood's connections would be looked at again and again."""
    found: dict[str, int] = {}

    async def flood() -> None:
        count = sum(generation["collections"] for generation in gc.get_stats())
        connections = [[] for _ in range(9_000)]  # type: ignore[var-annotated]
        found["collections"] = sum(one["collections"] for one in gc.get_stats()) - count
        found["frozen"] = gc.get_freeze_count()
        del connections

    before = gc.get_threshold()
    run(flood)
    assert found["collections"] <= 1
    assert found["frozen"] > 10_000
    assert gc.get_threshold() == before


def test_a_server_leaves_the_heap_frozen_or_not_as_it_was() -> None:
    """In a process of its own: to unfreeze that of the tests would cost all that come later."""
    code = (
        "import gc\n"
        "from lmprog.server.http.http_server import collected_seldom\n"
        "with collected_seldom(): assert gc.get_freeze_count()\n"
        "assert not gc.get_freeze_count()\n"
        "gc.freeze()\n"
        "with collected_seldom(): pass\n"
        "assert gc.get_freeze_count()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class Buffer:
    """A transport of which only what waits to be read matters."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = list(sizes)
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self.sizes.pop(0)

    def abort(self) -> None:
        self.aborted = True


class Clock:
    """A loop whose timers are called at once, one after the other."""

    def __init__(self) -> None:
        self.due: list[Any] = []

    def call_later(self, _: float, action: Any) -> Any:
        self.due.append(action)
        return None

    def run(self) -> None:
        while self.due:
            self.due.pop(0)()


def test_an_answer_that_nobody_reads_is_cut_off_and_one_that_is_read_slowly_is_not() -> None:
    for sizes, is_cut in (((9, 9), True), ((9, 5, 5), True), ((9, 5, 1, 0), False)):
        buffer, clock = Buffer(*sizes), Clock()
        answer = UnreadAnswer(buffer, clock, 60.0)  # type: ignore[arg-type]
        clock.run()
        assert buffer.aborted == is_cut, sizes
        assert answer.is_over != is_cut
        assert buffer.sizes == []


def test_a_client_that_reads_nothing_of_a_large_answer_loses_its_connection() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"%d" % SIZE)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"x" * SIZE})

    async def whole() -> None:
        settings = ServerSettings(port=0, write_stall=0.1)
        bound = bind(settings)
        server = HttpServer(app, settings, lambda: None)
        serving = asyncio.create_task(server.serve([bound]))
        try:
            reader, writer = await asyncio.open_connection(*bound.getsockname(), limit=2**16)
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            while not server.server_state.connections:
                await asyncio.sleep(0.01)
            while server.server_state.connections:
                await asyncio.sleep(0.01)
            got = 0
            with contextlib.suppress(ConnectionError):
                while part := await reader.read(2**20):
                    got += len(part)
            assert got < SIZE
            writer.close()
        finally:
            server.stop_now()
            await serving

    asyncio.run(whole())


SIZE = 64 * 1024 * 1024
"""More than the buffers of any system hold."""
