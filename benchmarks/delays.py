"""A channel that is further away than it is: every message takes longer, each way, and is
counted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from lmprog import wire
from lmprog.errors import LmprogError

if TYPE_CHECKING:
    from lmprog.transport import GreetedChannel


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
