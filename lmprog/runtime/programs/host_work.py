"""Work of the host that takes long for one call, done between steps, a piece at a time.

Such work is a generator: what it does up to a `yield` is a piece. In each turn pieces are done for
`TURN_SECONDS`, each time one of the client that was served least, on whose account it is. What
nobody wants any more is dropped between two pieces.

Knows seconds and accounts; does not know what is done.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeAlias

from lmprog.runtime.scheduling.sequence import Client
from lmprog.runtime.scheduling.waiting_queue import ClientShares

TURN_SECONDS = 0.005
"""By which a step may be delayed; the piece that is begun last may go beyond."""

Pieces: TypeAlias = Generator[None, None, None]


@dataclass(eq=False, slots=True)
class _Work:
    payer: Client
    pieces: Pieces
    is_wanted: Callable[[], bool]


class HostWork:
    """What is done for all clients."""

    def __init__(self, shares: ClientShares, clock: Callable[[], float]) -> None:
        self._shares = shares
        self._clock = clock
        self.under_way: list[_Work] = []

    def begin(self, payer: Client, pieces: Pieces, is_wanted: Callable[[], bool]) -> None:
        """The first piece is done in the next turn."""
        self.under_way.append(_Work(payer, pieces, is_wanted))

    def turn(self) -> None:
        now = self._clock()
        ends = now + TURN_SECONDS
        while self.under_way and now < ends:
            work = min(self.under_way, key=lambda one: self._shares.served(one.payer))
            if not work.is_wanted() or next(work.pieces, self) is self:
                work.pieces.close()
                self.under_way.remove(work)
            before, now = now, self._clock()
            self._shares.work(work.payer, now - before)
