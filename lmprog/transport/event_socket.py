"""Numbered messages for whoever listens, over ZeroMQ: what a runtime publishes of its cache.

Knows frames and who missed some. Does not know what is in them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import zmq

from lmprog.errors import InvalidParameter
from lmprog.transport import address as addresses

MAX_KEPT_MESSAGES = 10_000
MAX_KEPT_BYTES = 64 << 20
_END = (-1).to_bytes(8, "big", signed=True)
_MAX_REQUEST_BYTES = 1024


class EventSocket:
    """Binds `address` for listeners, or connects to it where one listens for several that publish;
    binds `replay_address` for those who missed something.

    vLLM's framing of key/value events: messages are numbered, and sent again to whoever missed
    some. A PUB socket sends topic, number and payload; a ROUTER socket gets the number of the
    first message that is wanted, and sends all from there on, then an end. Listeners that read
    too slowly lose messages, and see it by the numbers. Knows frames; does not know what is in
    them. For one thread.
    """

    def __init__(
        self,
        address: str,
        replay_address: str | None,
        topic: str,
        *,
        is_open: bool = False,
        connects: bool = False,
    ) -> None:
        """`is_open` allows addresses of other machines; there is no encryption. A listener that
        `connects` reaches may come later, and come again.
        """
        for one, is_bound in ((address, not connects), (replay_address, True)):
            if one is not None and not (is_open and one.startswith("tcp://")):
                _check(one, is_bound)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._topic = topic.encode()
        self._kept: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._next = 0
        self._publisher = self._opened(zmq.PUB, address, connects=connects)
        self._replay: zmq.Socket[bytes] | None = None
        if replay_address is not None:
            self._replay = self._opened(zmq.ROUTER, replay_address)

    @property
    def address(self) -> str:
        return self._publisher.getsockopt_string(zmq.LAST_ENDPOINT)

    @property
    def replay_address(self) -> str | None:
        replay = self._replay
        return None if replay is None else replay.getsockopt_string(zmq.LAST_ENDPOINT)

    def publish(self, payload: bytes) -> None:
        """Never waits."""
        self._publisher.send_multipart([self._topic, _number(self._next), payload])
        self._kept.append((self._next, payload))
        self._kept_bytes += len(payload)
        self._next += 1
        while len(self._kept) > MAX_KEPT_MESSAGES or self._kept_bytes > MAX_KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popleft()[1])

    def serve_replays(self, everything: Callable[[], bytes]) -> None:
        """Answers those who ask. Where what is asked for is no longer kept, they get one message
        with `everything` that counts now, under the last number.
        """
        while self._replay is not None and self._replay.poll(0):
            request = self._replay.recv_multipart()
            if len(request) != 3 or request[1] or len(request[2]) != 8:
                continue  # nobody who speaks this
            client, first = request[0], int.from_bytes(request[2], "big")
            is_kept = not self._kept or first >= self._kept[0][0]
            if is_kept:
                found = [(number, kept) for number, kept in self._kept if number >= first]
            else:
                found = [(self._next - 1, everything())]
            for number, payload in found:
                self._answer(client, [self._topic, _number(number), payload])
            self._answer(client, [b"", _END, b""])

    def close(self) -> None:
        self._context.destroy(linger=0)

    def _answer(self, client: bytes, frames: Sequence[bytes]) -> None:
        assert self._replay is not None
        self._replay.send_multipart([client, b"", *frames])

    def _opened(self, kind: int, address: str, *, connects: bool = False) -> zmq.Socket[bytes]:
        made = self._context.socket(kind)
        made.setsockopt(zmq.SNDHWM, MAX_KEPT_MESSAGES)
        made.setsockopt(zmq.LINGER, 0)
        made.setsockopt(zmq.MAXMSGSIZE, _MAX_REQUEST_BYTES)
        try:
            if connects:
                made.connect(address)
            else:
                made.bind(address)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise InvalidParameter(
                f"events cannot be published at {address}: {error}", name="kv_events", value=address
            ) from None
        return made


def _check(address: str, is_bound: bool) -> None:
    try:
        addresses.check(address, has_keys=False)
        if is_bound:
            addresses.check_free(address)
    except InvalidParameter as error:
        raise InvalidParameter(
            f"{error.message} Events have no keys; kv_events_open allows any address.",
            name="kv_events",
            value=address,
        ) from None


def _number(number: int) -> bytes:
    return number.to_bytes(8, "big")
