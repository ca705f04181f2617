"""Fair sharing between clients: the one that was served least goes first.

Each client has an account: the tokens computed for it, divided by its weight, whatever became of
its calls. *Virtual time* is the lowest account of those whose calls wait, and never goes back. A
client whose call comes has at least that on its account, so nobody can save up; and if it has more,
it keeps that, though it had nothing open for a while, so nobody gets rid of what it was served. The
accounts of those with nothing open are bounded: the first to go would be reached the soonest.

The shares are work-conserving: they order clients and never hold anybody back.

Knows clients by their keys, weights and tokens.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

MOST_IDLE = 4096
"""Accounts of clients with nothing open. Beyond them those with the least on them are forgotten."""


@dataclass(slots=True)
class _Account:
    served: float
    weight: float = 1.0
    num_open: int = 0


class ClientShares:
    """The accounts of clients that have sequences, and of those that had some of late."""

    def __init__(self) -> None:
        self._accounts: dict[Hashable, _Account] = {}
        self._virtual_time = 0.0
        self._num_idle = 0
        self._most_idle = MOST_IDLE

    def __len__(self) -> int:
        return len(self._accounts)

    @property
    def are_several(self) -> bool:
        """Whether more than one client has sequences."""
        return len(self._accounts) - self._num_idle > 1

    def submit(
        self,
        client: Hashable,
        num_sequences: int,
        weight: float = 1.0,
        waiting: Iterable[Hashable] = (),
    ) -> None:
        """A call of the client arrived; from now on the client has that weight. `waiting`: those
        with calls that wait already, which nobody who comes goes before.
        """
        self._pass([self.served(other) for other in waiting])
        account = self._accounts.get(client)
        if account is None:
            account = self._accounts[client] = _Account(self._virtual_time)
        elif not account.num_open:
            self._num_idle -= 1
        account.served = max(account.served, self._virtual_time)
        account.weight = weight
        account.num_open += num_sequences

    def end(self, client: Hashable) -> None:
        """A sequence of the client ended."""
        account = self._accounts[client]
        account.num_open -= 1
        if not account.num_open:
            self._num_idle += 1
            if self._num_idle > self._most_idle:
                self._forget()

    def serve(self, client: Hashable, num_tokens: int) -> None:
        """Tokens are computed for the client."""
        account = self._accounts[client]
        account.served += num_tokens / account.weight

    def served(self, client: Hashable) -> float:
        account = self._accounts.get(client)
        return self._virtual_time if account is None else account.served

    def least_served_first(self, waiting: Iterable[Hashable]) -> list[Hashable]:
        """The clients whose calls wait."""
        found = sorted(waiting, key=self.served)
        if found:
            self._pass([self.served(found[0])])
        return found

    def _pass(self, waiting: list[float]) -> None:
        """Moves virtual time on to the least that one of those who wait was served."""
        self._virtual_time = max(self._virtual_time, min(waiting, default=0.0))

    def _forget(self) -> None:
        """Half of the accounts without anything open, those that have the least on them."""
        idle = [client for client, one in self._accounts.items() if not one.num_open]
        for client in sorted(idle, key=self.served)[: len(idle) // 2]:
            del self._accounts[client]
        self._num_idle = len(idle) - len(idle) // 2
