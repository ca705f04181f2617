"""Channels: how ops reach a runtime and replies come back, over ZeroMQ or inside one process.

Two protocols (`RuntimeChannel`, `ClientChannel`), their ZeroMQ implementations, and the local pair
for tests and offline use. Messages of `lmprog.wire` are encoded also between two ends in one
process, so that what works locally works over ZeroMQ.
"""

from __future__ import annotations

from lmprog.transport.address import (
    CurveClient,
    CurveServer,
    client_keys,
    keys_of_runtime,
    write_keys,
)
from lmprog.transport.channel import (
    ClientChannel,
    ClientId,
    DeliveringChannel,
    Gone,
    GreetedChannel,
    LocalClientChannel,
    LocalRuntimeChannel,
    Received,
    ReplyReader,
    RuntimeChannel,
    Unreadable,
    WatchedChannel,
    local_pair,
)
from lmprog.transport.event_socket import EventSocket
from lmprog.transport.zmq_channel import ZmqClientChannel, ZmqRuntimeChannel

__all__ = [
    "ClientChannel",
    "ClientId",
    "CurveClient",
    "CurveServer",
    "DeliveringChannel",
    "EventSocket",
    "Gone",
    "GreetedChannel",
    "LocalClientChannel",
    "LocalRuntimeChannel",
    "Received",
    "ReplyReader",
    "RuntimeChannel",
    "Unreadable",
    "WatchedChannel",
    "ZmqClientChannel",
    "ZmqRuntimeChannel",
    "client_keys",
    "keys_of_runtime",
    "local_pair",
    "write_keys",
]
