"""Publishes the cache's events with each turn of the loop.

A channel around the runtime's own: what the loop sends at the end of a turn goes out first, then
what the turn changed in the tree. Knows turns and addresses; which blocks there are, `BlockRecord`
knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from lmprog import wire
from lmprog.config import RuntimeConfig
from lmprog.runtime.kv_events.block_record import AllBlocksCleared, BlockRecord, encoded
from lmprog.transport import ClientId, EventSocket, Received, RuntimeChannel


class PublishingChannel:
    """See `RuntimeChannel`. Events begin with a clearing: a runtime begins with an empty cache."""

    def __init__(self, channel: RuntimeChannel, record: BlockRecord, events: EventSocket) -> None:
        self._channel = channel
        self._record = record
        self.events = events
        self.counters = channel.counters
        events.publish(encoded(time.time(), [AllBlocksCleared()]))

    def receive(self, wait: float) -> Sequence[tuple[ClientId, Received]]:
        return self._channel.receive(wait)

    def send(self, replies: Sequence[tuple[ClientId, wire.Reply]]) -> None:
        self._channel.send(replies)
        if happened := self._record.take_events():
            self.events.publish(encoded(time.time(), happened))
        self.events.serve_replays(lambda: encoded(time.time(), self._record.all_events()))

    def close(self) -> None:
        self.events.close()
        self._channel.close()


def publishing(
    config: RuntimeConfig, channel: RuntimeChannel, record: Callable[[], BlockRecord]
) -> RuntimeChannel:
    """`channel`, publishing where `config` asks for it; only there the tree gets a `record`. Raises
    InvalidParameter where nothing can be published there.
    """
    if config.kv_events is None:
        return channel
    socket = EventSocket(
        config.kv_events, config.kv_events_replay, config.kv_events_topic, config.kv_events_open
    )
    return PublishingChannel(channel, record(), socket)
