"""A client or a runtime in a process of its own, to be killed or stopped by a test.

`python peer.py client ADDRESS` greets, opens a branch, says `ready` and goes on reading; `python
peer.py runtime ADDRESS` greets whoever comes, answers nothing else, and says `ready` once bound.
"""

from __future__ import annotations

import sys

from lmprog import wire
from lmprog.errors import RuntimeGone
from lmprog.transport import ZmqClientChannel, ZmqRuntimeChannel

WELCOME = wire.Welcome(
    version=wire.PROTOCOL_VERSION,
    model="peer",
    context_len=64,
    vocab_size=256,
    page_size=4,
    num_pages=16,
    pid=0,
)


def client(address: str) -> None:
    channel = ZmqClientChannel(address)
    channel.send([wire.Hello(wire.PROTOCOL_VERSION), wire.Open(1)])
    while not channel.receive(1.0):
        pass
    print("ready", flush=True)
    try:
        while True:
            channel.receive(10.0)
    except RuntimeGone:
        channel.close()


def runtime(address: str) -> None:
    channel = ZmqRuntimeChannel(address)
    print("ready", flush=True)
    while True:
        heard = channel.receive(10.0)
        channel.send(
            [(name, WELCOME) for name, message in heard if isinstance(message, wire.Hello)]
        )


if __name__ == "__main__":
    {"client": client, "runtime": runtime}[sys.argv[1]](sys.argv[2])
