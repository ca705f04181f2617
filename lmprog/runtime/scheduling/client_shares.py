"""Fair sharing between clients: the one that was served least goes first.

Each client has a counter of the tokens computed for it, divided by its weight. A client that comes,
or comes back, starts at the lowest counter of those that are busy: nobody can save up. The shares
are work-conserving: they order clients and never hold anybody back.

Knows clients by their keys, weights and tokens.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable


class ClientShares:
    """Counters of the clients that have sequences."""

    def __init__(self) -> None:
        self._served: dict[Hashable, float] = {}
        self._open: dict[Hashable, int] = {}
        self._weights: dict[Hashable, float] = {}
        self._floor = 0.0

    def submit(self, client: Hashable, num_sequences: int, weight: float = 1.0) -> None:
        """A call of the client arrived; from now on the client has that weight."""
        self._weights[client] = weight
        if client not in self._open:
            self._floor = min(self._served.values(), default=self._floor)
            self._served[client] = self._floor
            self._open[client] = 0
        self._open[client] += num_sequences

    def end(self, client: Hashable) -> None:
        """A sequence of the client ended."""
        self._open[client] -= 1
        if not self._open[client]:
            self._floor = max(self._floor, min(self._served.values()))
            del self._open[client], self._served[client], self._weights[client]

    def serve(self, client: Hashable, num_tokens: int) -> None:
        """Tokens were computed for the client."""
        if client in self._served:
            self._served[client] += num_tokens / self._weights[client]

    def served(self, client: Hashable) -> float:
        return self._served.get(client, self._floor)

    def least_served_first(self, clients: Iterable[Hashable]) -> list[Hashable]:
        return sorted(clients, key=self.served)
