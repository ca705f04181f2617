"""Backends: where programs run. A backend is any object with a connected `Client`; the frontend
treats all of them alike.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from lmprog import wire
from lmprog.backends.client import Client


@runtime_checkable
class Backend(Protocol):
    """Owns a client for as long as it is open."""

    @property
    def client(self) -> Client:
        """The client that programs send their ops through. Raises `RuntimeGone` when the backend
        was closed.
        """
        ...

    def close(self) -> None:
        """Closes the client; pending calls fail. Idempotent."""
        ...


@runtime_checkable
class Speculates(Protocol):
    """A backend that can request more tokens than a call needs, for later calls; see
    `lmprog.function`.
    """

    def speculate(self, branch: int, num_tokens: int) -> None:
        """Sets the token budget for speculation on `branch`. Called before it is opened or
        forked.
        """
        ...


@runtime_checkable
class Remembers(Protocol):
    """A backend that can be told how a call was answered in an earlier process, so that its branch
    is as it was.
    """

    def remember(self, call: int, reply: wire.CallReply) -> None:
        """The call of that number is answered by `reply`; nobody is asked. Before it is sent."""
        ...
