"""Admits clients: frames of anybody in, ops of greeted clients out.

Shared by all runtime channels. Knows which clients have sent `Hello` in our version, and counts
what it drops. Knows no sockets: it takes frames and returns what to hand on and what to answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmprog import wire
from lmprog.transport.channel import UNDECODABLE, ClientId, Gone, Received, Unreadable


@dataclass(frozen=True, slots=True)
class Admitted:
    """What a frame holds: messages to hand on, and at most one refusal to send back."""

    messages: tuple[Received, ...] = ()
    refusal: wire.Failed | None = None
    num_ops: int = 0
    """What reading it and answering it takes."""


_NOTHING = Admitted()


class Admission:
    """Remembers every client that has sent a readable frame, until `forget`."""

    def __init__(self) -> None:
        self.counters: dict[str, int] = {
            "frames_received": 0,
            "frames_malformed": 0,
            "ops_received": 0,
            "ops_refused": 0,
            "clients_welcome": 0,
            "clients_refused": 0,
            "clients_gone": 0,
            "clients_too_slow": 0,
            "replies_dropped": 0,
        }
        self._welcome: set[ClientId] = set()
        self._refused: set[ClientId] = set()

    def known(self) -> list[ClientId]:
        """All remembered clients, welcome or refused."""
        return [*self._welcome, *self._refused]

    def is_welcome(self, client: ClientId) -> bool:
        return client in self._welcome

    def admit(self, client: ClientId, frame: bytes) -> Admitted:
        """Never raises, whatever the bytes are."""
        self.counters["frames_received"] += 1
        try:
            ops = wire.decode_ops(frame)
        except UNDECODABLE as error:
            self.counters["frames_malformed"] += 1
            if self.is_welcome(client):
                return self._unreadable(frame, str(error))
            return self._of_another_version(client, frame)
        messages: list[Received] = []
        refusal: wire.Failed | None = None
        for op in ops:
            if isinstance(op, wire.Hello) and op.version == wire.PROTOCOL_VERSION:
                messages += self._greet(client)
            elif client not in self._welcome or isinstance(op, wire.Hello):
                self.counters["ops_refused"] += 1
                refusal = refusal or self._refuse(client, op)
                continue
            self.counters["ops_received"] += 1
            messages.append(op)
        return Admitted(tuple(messages), refusal, len(ops))

    def _of_another_version(self, client: ClientId, frame: bytes) -> Admitted:
        """Whoever greets is told of its version, though its messages are not ours."""
        try:
            version = wire.version_in(frame)
        except UNDECODABLE:
            return _NOTHING
        if version is None or version == wire.PROTOCOL_VERSION:
            return _NOTHING
        return Admitted(refusal=self._refuse(client, wire.Hello(version)))

    def count_malformed(self) -> None:
        """Counts a transport message that is not one frame."""
        self.counters["frames_received"] += 1
        self.counters["frames_malformed"] += 1

    def _unreadable(self, frame: bytes, reason: str) -> Admitted:
        """A greeted client learns of every frame that is not carried out."""
        try:
            calls, branches = wire.named_in(frame)
        except UNDECODABLE:
            message = f"A message could not be read: {reason}."
            return Admitted(refusal=wire.Failed(call=None, code="protocol", message=message))
        num_ops = len(calls) + len(branches)
        return Admitted((Unreadable(calls, branches, reason),), num_ops=num_ops)

    def forget(self, client: ClientId) -> bool:
        """True where the client had been welcome, so that its `Gone` is due."""
        self._refused.discard(client)
        if client not in self._welcome:
            return False
        self._welcome.discard(client)
        self.counters["clients_gone"] += 1
        return True

    def refuse_slow(self, limit: int) -> wire.Failed:
        """The last reply to a client that does not read its replies; it may send `Hello` again."""
        self.counters["clients_too_slow"] += 1
        return wire.Failed(
            call=None,
            code="overloaded",
            message=f"More than {limit} bytes of replies were waiting for this client to "
            "read them, "
            "so its branches were freed; read replies as they come, and connect again.",
        )

    def _greet(self, client: ClientId) -> list[Received]:
        """A second greeting starts anew: what the client owned is freed first."""
        renewed = self.forget(client)
        self._welcome.add(client)
        self.counters["clients_welcome"] += 1
        return [Gone()] if renewed else []

    def _refuse(self, client: ClientId, op: wire.Op) -> wire.Failed | None:
        """Only once per client."""
        if client in self._refused or client in self._welcome:
            return None
        self._refused.add(client)
        self.counters["clients_refused"] += 1
        ours = wire.PROTOCOL_VERSION
        if isinstance(op, wire.Hello):
            message = f"The client speaks protocol version {op.version}, this runtime version "
            message += f"{ours}; use the same lmprog."
        else:
            message = f"The first message must be Hello with protocol version {ours}, "
            message += f"not {type(op).__name__}."
        return wire.Failed(call=None, code="protocol", message=message)
