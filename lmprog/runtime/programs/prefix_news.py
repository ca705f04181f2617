"""What clients tell each other of the programs that they send here: fleets, mostly, which lead
programs to where their prefixes are.

Passes keys on. Does not know what they stand for, nor what the tree has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from lmprog import wire
from lmprog.transport import ClientId

MOST_UNTOLD = 4096
"""Programs that are kept for a client that does not ask; the oldest go first."""


class PrefixNews:
    """`send` hands a reply to a client."""

    def __init__(self, send: Callable[[ClientId, wire.Reply], None]) -> None:
        self._send = send
        self._untold: dict[ClientId, deque[tuple[int, ...]]] = {}
        """Of clients that have ever asked."""
        self._waiting: dict[ClientId, int] = {}
        """Their calls that wait for the next program."""

    def share(self, client: ClientId, keys: tuple[int, ...]) -> None:
        """A program that the client has sent: for all others that have ever asked."""
        for other, untold in self._untold.items():
            if other == client:
                continue
            untold.append(keys)
            call = self._waiting.pop(other, None)
            if call is not None:
                self.answer(other, call)

    def answer(self, client: ClientId, call: int) -> None:
        """Tells what the client does not know yet, now or with the next program."""
        untold = self._untold.setdefault(client, deque(maxlen=MOST_UNTOLD))
        if not untold:
            self._waiting[client] = call
            return
        self._send(client, wire.PrefixesAre(call, tuple(untold)))
        untold.clear()

    def forget(self, client: ClientId) -> None:
        """The client is gone."""
        self._untold.pop(client, None)
        self._waiting.pop(client, None)
