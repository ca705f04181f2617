"""A process whose programs are interrupted while a service does not answer: `python -m
tests.lang.interrupted_programs MODE URL`.

It tells, as a line of JSON each: what it was interrupted with and what is done by then, once the
prompt would be back; and after "go" on its input, when all threads of programs have ended, what had
begun by then. "interrupt" on its input interrupts the main thread without a signal.
"""

from __future__ import annotations

import _thread
import asyncio
import json
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import lmprog
from lmprog.errors import LmprogError

NUM_ITEMS = 400
CONCURRENCY = 8
ITEMS = [str(index) for index in range(NUM_ITEMS)]
THREADS = {
    "lmprog-batch",
    "lmprog-branch",
    "lmprog-call",
    "lmprog-run",
    "lmprog-stop",
    "lmprog-tool",
}
"""The names of threads in which something runs."""
begun: list[str] = []
handed_out: list[str] = []
"""By an iterator of runs, whose error has the others."""
folder = tempfile.TemporaryDirectory()  # for replies


@lmprog.function
def plain(s: lmprog.Branch, item: str) -> str:
    begun.append(item)
    s.append(item)
    return s.gen("a", max_tokens=4).value


@lmprog.function
async def awaiting(s: lmprog.Branch, item: str) -> str:
    begun.append(item)
    s.append(item)
    return await s.gen(max_tokens=4)


@lmprog.function
def stubborn(s: lmprog.Branch, item: str) -> None:
    """Goes on from every error, with runs of its own."""
    s.append(item)
    while True:
        try:
            plain.run(item)
        except LmprogError as error:
            if s.cursor.scope.ended is not None:
                return
            s.append(str(error))


@lmprog.function
def forking(s: lmprog.Branch) -> None:
    def body(branch: lmprog.Branch) -> str:
        begun.append("body")
        return branch.gen(max_tokens=4).value

    s.append("x")
    with s.fork(40) as branches:
        branches.each(body)


@lmprog.function
def racing(s: lmprog.Branch) -> str:
    s.append("x")
    with s.fork(8) as branches:
        return lmprog.race(*(branch.gen(max_tokens=4) for branch in branches)).value


def _generator() -> None:
    runs = plain.run_batch(
        [(item,) for item in ITEMS], num_threads=CONCURRENCY, generator_style=True
    )
    handed_out.extend(run.value for run in runs)


def _imap() -> None:
    for _, run in awaiting.imap(ITEMS, concurrency=CONCURRENCY):
        handed_out.append(run.value)


async def _imap_async() -> None:
    async for _, run in plain.imap(ITEMS, concurrency=CONCURRENCY):
        handed_out.append(run.value)


def _stream() -> None:
    for _ in awaiting.stream("x"):
        pass


def _text_iter() -> None:
    for _ in plain.run("x", stream=True).text_iter():  # type: ignore[call-arg]
        pass


async def _stream_async() -> None:
    async for _ in plain.stream("x"):
        pass


async def _amap() -> None:
    await awaiting.amap(ITEMS, concurrency=CONCURRENCY)


async def _amap_plain() -> None:
    await plain.amap(ITEMS, concurrency=CONCURRENCY)


async def _in_a_cell(body: Callable[[], object]) -> object:
    return body()


def _map(program: Any) -> Callable[[], object]:
    return lambda: program.map(ITEMS, concurrency=CONCURRENCY)


def _cell(body: Callable[[], object]) -> Callable[[], object]:
    """As in a notebook, whose loop runs and does not handle the signal."""
    return lambda: asyncio.new_event_loop().run_until_complete(_in_a_cell(body))


def _on_loop(body: Callable[[], Awaitable[None]]) -> Callable[[], object]:
    async def main() -> BaseException | None:
        try:
            await body()
        except asyncio.CancelledError as error:
            told.append(error)
            raise
        return None

    return lambda: asyncio.run(main())


MODES: dict[str, Callable[[], object]] = {
    "map plain": _map(plain),
    "map async": _map(awaiting),
    "map stubborn": _map(stubborn),
    "map cached": lambda: plain.map(ITEMS, concurrency=CONCURRENCY, cache=folder.name),
    "run_batch": lambda: plain.run_batch([(item,) for item in ITEMS], num_threads=CONCURRENCY),
    "generator": _generator,
    "imap": _imap,
    "imap async": _on_loop(_imap_async),
    "amap": _on_loop(_amap),
    "amap plain": _on_loop(_amap_plain),
    "cell map plain": _cell(_map(plain)),
    "cell map async": _cell(_map(awaiting)),
    "run plain": lambda: plain.run("x"),
    "run async": lambda: awaiting.run("x"),
    "cell run plain": _cell(lambda: plain.run("x")),
    "cell run async": _cell(lambda: awaiting.run("x")),
    "stream": _stream,
    "stream async": _on_loop(_stream_async),
    "text_iter": _text_iter,
    "fork": lambda: forking.run(),
    "race": lambda: racing.run(),
}
told: list[BaseException] = []
going_on = threading.Event()


def _listen() -> None:
    for line in sys.stdin:
        if line.strip() == "interrupt":
            _thread.interrupt_main()
        else:
            going_on.set()


def _tell(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main(mode: str, url: str) -> None:
    threading.Thread(target=_listen, daemon=True).start()
    # the package takes longer to import than everything else here together
    is_of_package = mode in ("map plain", "cell run async")
    lmprog.set_default_backend(
        lmprog.OpenAI("m", base_url=url)
        if is_of_package
        else lmprog.connect(url.removesuffix("/v1"))
    )
    try:
        MODES[mode]()
    except KeyboardInterrupt as error:
        told.append(error)
    results = getattr(told[0], "results", None)
    done = None if results is None else len(handed_out) + len(results.values)
    _tell(kind=type(told[-1]).__name__, done=done, begun=len(begun))
    going_on.wait()
    while any(thread.name in THREADS for thread in threading.enumerate()):
        time.sleep(0.01)
    _tell(begun=len(begun))


if __name__ == "__main__":
    main(*sys.argv[1:])
