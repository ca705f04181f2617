"""A backend over any client channel: a runtime process over ZeroMQ, or one in this process.

Knows the calls about a runtime as a whole (statistics, clearing the cache); it starts no processes.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from lmprog import wire
from lmprog.backends.client import CallOp, Client, LastReply
from lmprog.errors import LmprogError, ProtocolError

if TYPE_CHECKING:
    from lmprog.backends import Backend
    from lmprog.transport import GreetedChannel


class RuntimeBackend:
    """Owns a client over `channel`. A context manager: leaving it closes the client."""

    def __init__(self, channel: GreetedChannel) -> None:
        self._client = Client(channel)

    @property
    def client(self) -> Client:
        return self._client

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def ask(backend: Backend, op: CallOp) -> LastReply:
    """Makes one call about the runtime as a whole; blocks. Raises the error it fails with."""
    call = backend.client.call(op)
    backend.client.flush()
    outcome = call.wait()
    if isinstance(outcome, LmprogError):
        raise outcome
    return outcome


def describe(backend: Backend) -> dict[str, float]:
    """The runtime's statistics, by name."""
    reply = ask(backend, wire.Describe(backend.client.number()))
    if not isinstance(reply, wire.Described):
        raise ProtocolError(f"asked for figures, the runtime answered {type(reply).__name__}")
    return reply.figures


def flush(backend: Backend) -> None:
    """Evicts every page of the runtime's cache that no live branch uses."""
    ask(backend, wire.Flush(backend.client.number()))
