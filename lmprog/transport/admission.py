"""Who may speak to the runtime: frames of strangers in, ops of greeted clients out.

Shared by all runtime channels. Knows which clients have said `Hello` in our version, and counts
what it drops. It knows no sockets: it is given frames and returns what to hand on and what to
answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmprog import wire
from lmprog.transport.channel import UNDECODABLE, ClientId, Gone


@dataclass(frozen=True, slots=True)
class Heard:
    """What a frame was worth: messages to hand on, and at most one refusal to send back."""

    messages: tuple[wire.Op | Gone, ...] = ()
    refusal: wire.Failed | None = None


_NOTHING = Heard()


class Admission:
    """Remembers every client that has sent something intelligible, until `forget`."""

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
        """All that are remembered, welcome or refused."""
        return [*self._welcome, *self._refused]

    def is_welcome(self, client: ClientId) -> bool:
        return client in self._welcome

    def hear(self, client: ClientId, frame: bytes) -> Heard:
        """Never raises, whatever the bytes are."""
        self.counters["frames_received"] += 1
        try:
            ops = wire.decode_ops(frame)
        except UNDECODABLE:
            self.counters["frames_malformed"] += 1
            return _NOTHING
        messages: list[wire.Op | Gone] = []
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
        return Heard(tuple(messages), refusal)

    def malformed(self) -> None:
        """Counts a message that was not even a frame."""
        self.counters["frames_received"] += 1
        self.counters["frames_malformed"] += 1

    def forget(self, client: ClientId) -> bool:
        """True where the client had been welcome, so that its `Gone` is due; false the second
        time.
        """
        self._refused.discard(client)
        if client not in self._welcome:
            return False
        self._welcome.discard(client)
        self.counters["clients_gone"] += 1
        return True

    def refuse_slow(self, limit: int) -> wire.Failed:
        """The last thing that a client hears which does not read its replies; it may say `Hello`
        again.
        """
        self.counters["clients_too_slow"] += 1
        return wire.Failed(
            call=None,
            code="overloaded",
            message=f"More than {limit} bytes of replies were waiting for this client to read them, so its branches"
            " were freed; read replies as they come, and connect again.",
        )

    def _greet(self, client: ClientId) -> list[wire.Op | Gone]:
        """A second greeting starts anew: what the client owned until now is freed first."""
        renewed = self.forget(client)
        self._welcome.add(client)
        self.counters["clients_welcome"] += 1
        return [Gone()] if renewed else []

    def _refuse(self, client: ClientId, op: wire.Op) -> wire.Failed | None:
        """Only once: a client that goes on talking nonsense gets no more attention."""
        if client in self._refused or client in self._welcome:
            return None
        self._refused.add(client)
        self.counters["clients_refused"] += 1
        ours = wire.PROTOCOL_VERSION
        if isinstance(op, wire.Hello):
            said = f"The client speaks protocol version {op.version}, this runtime version {ours}; use the same lmprog."
        else:
            said = f"The first message must be Hello with protocol version {ours}, not {type(op).__name__}."
        return wire.Failed(call=None, code="protocol", message=said)
