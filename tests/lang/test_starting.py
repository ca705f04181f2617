"""An event loop goes on while what a program runs on is started or connected."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

import lmprog
from lmprog.backends import Backend
from lmprog.backends.connecting import default
from lmprog.testing import Scripted

NUM_TICKS = 100
LONG = 20.0
"""Seconds for which a start waits for a loop that does not go on."""


@lmprog.function
async def asked(s: lmprog.Branch, word: str) -> str:
    s.append(word)
    return await s.gen()


@lmprog.function
def asked_plainly(s: lmprog.Branch, word: str) -> str:
    s.append(word)
    return s.gen().value


async def _arun(program: lmprog.Program[[str], str]) -> list[str]:
    return [(await program.arun("a")).value]


async def _amap(program: lmprog.Program[[str], str]) -> list[str]:
    return list(await program.amap(["a"]))


async def _imap(program: lmprog.Program[[str], str]) -> list[str]:
    return [run.value async for _, run in program.imap(["a"])]


async def _stream(program: lmprog.Program[[str], str]) -> list[str]:
    events = [event async for event in program.stream("a")]
    return [event.value for event in events if isinstance(event, lmprog.Done)]


async def _address(program: lmprog.Program[[str], str]) -> list[str]:
    return [(await program.arun("a", backend="ipc://nowhere")).value]  # type: ignore[call-arg]


@pytest.mark.parametrize("program", [asked, asked_plainly])
@pytest.mark.parametrize("way", [_arun, _amap, _imap, _stream, _address])
def test_a_loop_goes_on_while_a_backend_starts(
    way: Callable[[lmprog.Program[[str], str]], Awaitable[list[str]]],
    program: lmprog.Program[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, has_ticked = threading.Event(), threading.Event()

    def start(*_: object) -> Backend:
        begun.set()
        assert has_ticked.wait(LONG), "the loop does not go on while the backend starts"
        return scripted

    async def main() -> list[str]:
        running = asyncio.ensure_future(way(program))
        num_ticks = 0
        while num_ticks < NUM_TICKS and not running.done():
            await asyncio.sleep(0.001)
            num_ticks += begun.is_set()
        has_ticked.set()
        return await running

    fresh = default._Default()
    monkeypatch.setattr(default, "_default", fresh)
    monkeypatch.setattr(default._Default, "_start", start)
    monkeypatch.setattr(default._Default, "at", start)
    with Scripted(["yes"]) as scripted:
        assert asyncio.run(main()) == ["yes"]


def test_a_backend_that_is_there_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> str:
        own = threading.active_count()
        run = await asked.arun("a")
        assert threading.active_count() == own
        return run.value

    with Scripted(["yes"]) as scripted:
        fresh = default._Default()
        monkeypatch.setattr(default, "_default", fresh)
        fresh.give(scripted)
        assert scripted.client is not None
        assert asyncio.run(main()) == "yes"
