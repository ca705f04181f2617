"""`lmprog serve --no-http`, or with `--address`: a runtime without a gateway in the foreground, for
clients of the wire protocol.

The first SIGINT or SIGTERM asks the runtime to shut down, a second one stops everything at once.
Exit code 0 means that the runtime was asked to shut down and did so cleanly; a runtime that dies
gives 1, and so does one that hangs, which is ended: whoever restarts this process restarts it too,
and needs no probe of its own.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Self

from lmprog import wire
from lmprog.cli.arguments import options_of
from lmprog.errors import RuntimeGone
from lmprog.launch import RuntimeProcess
from lmprog.launch.child_process import become_other_rank
from lmprog.launch.restarts import LONGEST_GAP, HangTimeouts, ProgressWatch
from lmprog.launch.runtime_process import configured
from lmprog.linux import tells_of_waits

STOP_GRACE = 30.0
"""Seconds that the runtime has for an orderly shutdown."""
HANGS = HangTimeouts(stall=5.0, frozen=2.5 if tells_of_waits() else 4.0)
"""A runtime that stands still is gone within 3 s; the rest of 10 is for its next start, which takes
most of it on a busy machine. It needs no more time there, where waiting for a processor is no
standing still. A mask that is made in a thread may take longer, so one that answers has more time.
"""
ASK_SECONDS = 0.5
"""Between two questions for figures."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LOOK = 0.2  # poll interval in seconds for whether the runtime still runs


def run(given: argparse.Namespace) -> int:
    become_other_rank(configured(given.model, options_of(given)))
    told: list[int] = []  # no event: its lock may be held by this very thread when a signal comes
    with _signals_put_back():
        _on_signals(_interrupt)
        print(f"starting a runtime for {given.model} ...", file=sys.stderr, flush=True)
        runtime = RuntimeProcess(
            given.model,
            address=given.address,
            log_to_stderr=True,
            keys=given.keys,
            **options_of(given),
        )
        try:
            _on_signals(lambda number, frame: told.append(number))
            _announce(runtime)
            with RuntimeWatch(runtime) as watch:
                wait_until(told, watch.goes_on)
            asked = runtime.alive and watch.trouble is None
            said = "stopping"
            if watch.trouble is not None:
                said = f"lmprog: the runtime hangs and is ended: {watch.trouble}"
                runtime.write_stacks()
                runtime.close(0.0)
            elif not asked:
                said = f"lmprog: the runtime ended by itself (exit code {runtime.exit_code})"
            print(said, file=sys.stderr, flush=True)
        finally:
            _on_signals(
                signal.SIG_DFL
            )  # a second one ends this process; the runtime notices within two seconds
            runtime.close(STOP_GRACE)
    return 0 if asked and runtime.exit_code == 0 else 1


class RuntimeWatch:
    """Whether a runtime makes progress, by what it answers and computes. One more client of it."""

    def __init__(self, runtime: RuntimeProcess, timeouts: HangTimeouts = HANGS) -> None:
        self.trouble: str | None = None
        """Why the runtime must be ended."""
        self._runtime = runtime
        self._connection = runtime.connect("watch")
        self._looked = time.monotonic()
        self._now = self._asked = 0.0
        self._is_asked = False
        self._progress = ProgressWatch(timeouts, 0.0, runtime.busy_seconds() or 0.0)

    def goes_on(self) -> bool:
        """Asked a few times a second."""
        read = time.monotonic()
        passed, self._looked = min(read - self._looked, LONGEST_GAP), read
        now = self._now = self._now + passed
        cpu = self._runtime.busy_seconds()
        if cpu is None:
            return False
        self._progress.take_pulse(cpu, now, passed)
        try:
            if not self._is_asked and now - self._asked >= ASK_SECONDS:
                self._is_asked, self._asked = True, now
                self._connection.send([wire.Describe(1)])
            for reply in self._connection.receive(0.0):
                if isinstance(reply, wire.Described):
                    self._is_asked = False
                    self._progress.take_figures(reply.figures, now)
        except RuntimeGone:
            self._is_asked = True  # no answer comes any more, which is what is judged
        self.trouble = self._progress.trouble(now)
        return self.trouble is None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def wait_until(told: Sequence[int], is_alive: Callable[[], bool]) -> None:
    """Returns when a signal has come, or when the runtime has ended."""
    while is_alive() and not told:
        time.sleep(_LOOK)


def _announce(runtime: RuntimeProcess) -> None:
    facts = runtime.facts
    num_pages = int(facts["num_pages"] or 0)
    slots = num_pages * int(facts["page_size"] or 0)
    lines = {
        "model": facts["model"],
        "dtype": facts.get("dtype"),
        "engine": facts.get("engine"),
        "context": f"{facts['context_len']} tokens",
        "pool": f"{slots} tokens in {num_pages} pages, {slots // 1024} requests of "
        "1,024 tokens at once",
        "address": runtime.address,
        "connect": f'backend = lmprog.connect("{runtime.address}"), or: lmprog run '
        "FILE.py::FUNCTION "
        f"--address {runtime.address}",
    }
    for name, value in lines.items():
        if value is not None:
            print(f"{name:>10}  {value}")
    print("ready; Ctrl-C stops it", flush=True)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _on_signals(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in _SIGNALS:
        signal.signal(number, handler)


@contextmanager
def _signals_put_back() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
