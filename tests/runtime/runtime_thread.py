"""A runtime's loop in a thread of this process, for tests that look into it while programs run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lmprog.backends.client import RuntimeBackend
from lmprog.launch import greet
from lmprog.runtime.loop import Loop
from lmprog.transport import LocalRuntimeChannel


class RuntimeThread:
    """Steps the loop until `end`, and stops it in order."""

    def __init__(self, loop: Loop, channel: LocalRuntimeChannel) -> None:
        self._loop, self._channel = loop, channel
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        try:
            while not self._ended.is_set():
                self._loop.step()
            self._loop.stop()
            self._loop.scheduler.check()
        finally:
            self._channel.close()  # whoever waits hears of it, also when a step raised

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


@contextmanager
def serving(loop: Loop, channel: LocalRuntimeChannel) -> Iterator[RuntimeBackend]:
    """A backend of the loop, whose clients come by `channel`."""
    thread = RuntimeThread(loop, channel)
    try:
        with RuntimeBackend(greet(channel.connect())) as backend:
            yield backend
    finally:
        thread.end()
