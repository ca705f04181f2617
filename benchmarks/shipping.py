"""Programs shipped whole against the same programs op by op: messages and time, `python -m
benchmarks.shipping`.

    python -m benchmarks.shipping [--model NAME|FOLDER] [--latency MS,MS] [--tokens N]
                                  [--repeat R] [--only NAMES]

Shipped whole, a program refers to results that are not there yet, and waits once, at its end. Op by
op it waits for every result before it goes on, as a client must that puts prompts together itself.
Both ask for the same calls, with forced lengths and greedy sampling, on one runtime whose cache is
emptied before each run, and must give the same result. `--latency` (milliseconds for the way there
and back) is added between client and runtime. The best of `--repeat` runs counts. Seconds depend on
the machine; messages and the difference between latencies hardly do.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Annotated, Any

import lmprog
from benchmarks import runner
from lmprog import launch, wire
from lmprog.backends.client import RuntimeBackend
from lmprog.errors import LmprogError
from lmprog.transport import GreetedChannel

# -- a channel that is further away than it is


class DelayedChannel:
    """`inner`, `round_trip` seconds further away. Messages keep their order; with 0 only the
    counting is added.
    """

    def __init__(self, inner: GreetedChannel, round_trip: float) -> None:
        self.info = inner.info
        self.sent = 0  # messages to the runtime
        self._inner = inner
        self._one_way = round_trip / 2
        self._outbox: SimpleQueue[tuple[float, Sequence[wire.Op] | None]] = SimpleQueue()
        self._inbox: SimpleQueue[tuple[float, list[wire.Reply] | LmprogError]] = SimpleQueue()
        self._is_closed = False
        self._threads = [
            threading.Thread(target=body, daemon=True) for body in (self._carry_out, self._carry_in)
        ]
        for thread in self._threads:
            thread.start()

    def send(self, ops: Sequence[wire.Op]) -> None:
        self.sent += 1
        self._outbox.put((time.monotonic() + self._one_way, ops))

    def receive(self, timeout: float) -> list[wire.Reply]:
        """What is under way when the time is over is waited for."""
        try:
            due, came = self._inbox.get(timeout=max(0.0, timeout))
        except Empty:
            return []
        wait_until(due)
        if isinstance(came, LmprogError):
            self._inbox.put((due, came))  # whoever asks again is told again
            raise came
        return came

    def close(self) -> None:
        self._is_closed = True
        self._outbox.put((0.0, None))
        self._inner.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _carry_out(self) -> None:
        """Body of the thread that sends what is due."""
        while True:
            due, ops = self._outbox.get()
            if ops is None:
                return
            wait_until(due)
            try:
                self._inner.send(ops)
            except LmprogError as error:
                self._inbox.put((time.monotonic() + self._one_way, error))

    def _carry_in(self) -> None:
        """Body of the thread that takes what comes."""
        while not self._is_closed:
            came: list[wire.Reply] | LmprogError
            try:
                came = self._inner.receive(0.2)
            except LmprogError as error:
                came = error
            if came:
                self._inbox.put((time.monotonic() + self._one_way, came))
            if isinstance(came, LmprogError):
                return


def wait_until(due: float) -> None:
    time.sleep(max(0.0, due - time.monotonic()))


# -- programs in both forms

STEPS = 8  # of the chain, and fields of the form
BRANCHES = 4


async def _said(gen: lmprog.Gen[str], whole: bool) -> object:
    """What goes into later text: the result, or, shipped whole, a reference to it."""
    return gen if whole else await gen


@lmprog.function
async def chain(s: lmprog.Branch, whole: bool) -> str:
    """Each step quotes the one before on a branch of its own."""
    s.append("A story in short sentences.\nFirst: ")
    said = await _said(s.gen(), whole)
    for step in range(1, STEPS):
        [branch] = s.fork()
        branch.append(f"\nGo on from '{said}' ({step}): ")
        said = await _said(branch.gen(), whole)
    s.append(f"\nThe end: {said}")
    return await s.gen()


@lmprog.function
async def form(s: lmprog.Branch, whole: bool) -> str:
    """Fields between literal texts, on one branch."""
    s.append("A person.\n")
    last: lmprog.Gen[str] | None = None
    for field in ("name", "age", "town", "job", "food", "game", "mood", "wish")[:STEPS]:
        s.append(f"\n{field}: ")
        last = s.gen(name=field)
        await _said(last, whole)
    assert last is not None
    return await last


@lmprog.function
async def tips(s: lmprog.Branch, whole: bool) -> str:
    """A fork; each branch drafts and improves; a summary quotes all."""
    s.append("How to stay healthy.\n")
    async with s.fork(BRANCHES) as branches:

        async def improve(index: int, branch: lmprog.Branch) -> object:
            branch.append(f"Tip {index}: ")
            draft = await _said(branch.gen(), whole)
            branch.append(f"\n'{draft}', in other words: ")
            return await _said(branch.gen(), whole)

        found = await asyncio.gather(
            *(improve(index, branch) for index, branch in enumerate(branches))
        )
        s.append("".join(f"\n- {said}" for said in found) + "\nIn short: ")
        return await s.gen()


@lmprog.function
async def judged(s: lmprog.Branch, whole: bool) -> str:
    """A draft, three opinions on it, a choice among words by likelihood, a last version."""
    s.append("A line about the sea: ")
    draft = await _said(s.gen(), whole)
    opinions = []
    for judge in ("a sailor", "a poet", "a cook"):
        [branch] = s.fork()
        branch.append(f"\nWhat {judge} says of '{draft}': ")
        opinions.append(await _said(branch.gen(), whole))
    s.append("\nThey said:" + "".join(f"\n{said}" for said in opinions) + "\nIs it good? ")
    choice = s.select("yes", "no")
    if not whole:
        await choice
    s.append("\nBetter: ")
    return await s.gen()


PROGRAMS = {program.function.__name__: program for program in (chain, form, tips, judged)}


@dataclass(frozen=True, slots=True)
class Shipped:
    """One program in one form at one latency."""

    messages: int
    seconds: float
    result: str
    text: str


def ship(
    backend: RuntimeBackend, channel: DelayedChannel, program: Any, whole: bool, tokens: int
) -> Shipped:
    """One run, from its first op to its result, on an empty cache."""
    lmprog.flush_cache(backend)
    settled = program.using(backend=backend, temperature=0, max_tokens=tokens, ignore_eos=True)

    async def timed() -> tuple[Any, float, int]:
        begin, before = time.perf_counter(), channel.sent
        run = await settled.arun(whole)
        return run, time.perf_counter() - begin, channel.sent - before

    run, seconds, messages = asyncio.run(timed())
    return Shipped(messages, seconds, run.value, run.text())


def measured(
    backend: RuntimeBackend, channel: DelayedChannel, program: Any, tokens: int, repeat: int
) -> list[Shipped]:
    """The best run of each form, whole first, taking turns. Raises `ValueError` where they do not
    agree.
    """
    sides = {
        form: partial(ship, backend, channel, program, form == "whole", tokens)
        for form in ("whole", "op by op")
    }
    found = runner.in_turn(sides, repeat).values()
    together, single = (min(runs, key=lambda one: one.seconds) for runs in found)
    if (together.result, together.text) != (single.result, single.text):
        raise ValueError(
            f"{program}: shipped whole it gave {together.result!r}, op by op {single.result!r}"
        )
    return [together, single]


@runner.command
def main(
    *,
    model: str = "nano",
    latency: Annotated[runner.Floats, "milliseconds there and back, several with commas"] = (0, 20),
    tokens: Annotated[int, "of each generation"] = 8,
    repeat: int = 3,
    only: runner.Names = tuple(PROGRAMS),
) -> None:
    columns = "messages, whole; messages, op by op; ms, whole; ms, op by op; times"
    runner.head("program", "added latency", *columns.split("; "))
    with lmprog.Runtime(model) as runtime:
        for one in latency:
            channel = DelayedChannel(launch.connect(runtime.address, client="shipping"), one / 1000)
            with RuntimeBackend(channel) as backend:
                for name in (name for name in PROGRAMS if name in only):
                    ship(backend, channel, PROGRAMS[name], True, tokens)  # warms up
                    whole, single = measured(backend, channel, PROGRAMS[name], tokens, repeat)
                    times = [f"{1000 * form.seconds:.0f}" for form in (whole, single)]
                    counts = (whole.messages, single.messages)
                    ratio = f"{single.seconds / whole.seconds:.2f}"
                    runner.say(name, f"{one:g} ms", *counts, *times, ratio)
