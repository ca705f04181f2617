"""A channel that is further away than it is: every message takes longer, each way, and is
counted.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Sequence
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
        self._turn = itertools.count()
        self._changed = threading.Condition()
        self._outbox: list[tuple[float, int, Sequence[wire.Op]]] = []
        self._inbox: list[tuple[float, int, list[wire.Reply] | LmprogError]] = []
        self._closed = False
        self._threads = [
            threading.Thread(target=body, daemon=True) for body in (self._carry_out, self._carry_in)
        ]
        for thread in self._threads:
            thread.start()

    def send(self, ops: Sequence[wire.Op]) -> None:
        with self._changed:
            self.sent += 1
            heapq.heappush(self._outbox, (time.monotonic() + self._one_way, next(self._turn), ops))
            self._changed.notify_all()

    def receive(self, timeout: float) -> list[wire.Reply]:
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                now = time.monotonic()
                if self._inbox and self._inbox[0][0] <= now:
                    came = self._inbox[0][2]
                    if isinstance(came, LmprogError):
                        raise came
                    heapq.heappop(self._inbox)
                    return came
                if now >= deadline:
                    return []
                self._changed.wait(
                    min(deadline, self._inbox[0][0] if self._inbox else deadline) - now
                )

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._inner.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _carry_out(self) -> None:
        """Body of the thread that sends what is due."""
        while True:
            with self._changed:
                while not self._closed and not (
                    self._outbox and self._outbox[0][0] <= time.monotonic()
                ):
                    self._changed.wait(
                        self._outbox[0][0] - time.monotonic() if self._outbox else None
                    )
                if self._closed:
                    return
                ops = heapq.heappop(self._outbox)[2]
            try:
                self._inner.send(ops)
            except LmprogError as error:
                self._put(error)

    def _carry_in(self) -> None:
        """Body of the thread that takes what comes."""
        while not self._closed:
            try:
                replies = self._inner.receive(0.2)
            except LmprogError as error:
                self._put(error)
                return
            if replies:
                self._put(replies)

    def _put(self, came: list[wire.Reply] | LmprogError) -> None:
        with self._changed:
            heapq.heappush(self._inbox, (time.monotonic() + self._one_way, next(self._turn), came))
            self._changed.notify_all()
