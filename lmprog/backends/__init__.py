"""Where programs run. A backend is anything with a connected `Client`; everything else is the same
for all.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from lmprog.backends.client import Client


@runtime_checkable
class Backend(Protocol):
    """Owns a client for as long as it is open."""

    @property
    def client(self) -> Client:
        """The conversation that programs talk through. Raises `RuntimeGone` when the backend was
        closed.
        """
        ...

    def close(self) -> None:
        """Ends it: calls still waiting fail. Safe to repeat."""
        ...


@runtime_checkable
class Speculates(Protocol):
    """A backend on which a request may say more than its call asks for; see `lmprog.function`."""

    def speculate(self, branch: int, num_tokens: int) -> None:
        """Told before `branch` is opened or forked: its calls may say so many tokens for later
        ones.
        """
        ...
