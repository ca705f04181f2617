"""A runtime process without a model: it speaks the same two pipes and the same wire, and does what
its "model" says.

`python -m scripted_child` takes the arguments of the real one. The model's name is the script:
`ok`, `die`, `silent`, `fails`, `stubborn` (ignores SIGTERM and its parent's end), `slow` (two
seconds of stages).
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time

from lmprog import wire
from lmprog.errors import ContextOverflow
from lmprog.launch.parent_pipe import Parent, config_from_json
from lmprog.transport import ZmqRuntimeChannel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config-json", required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--ready-fd", type=int, required=True)
    parser.add_argument("--parent-fd", type=int, required=True)
    given = parser.parse_args()
    parent = Parent(given.ready_fd, given.parent_fd)
    config = config_from_json(given.config_json)
    stopped = threading.Event()
    if config.model == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        parent.watch(lambda: None)
    else:
        signal.signal(signal.SIGTERM, lambda *_: stopped.set())
        parent.watch(stopped.set)
    begin(config.model, parent)
    channel = ZmqRuntimeChannel(given.address)
    page_size = config.scheduler.page_size
    facts = {"model": config.model, "context_len": 64, "page_size": page_size, "num_pages": 16}
    parent.ready(channel.address, facts)
    welcome = wire.Welcome(
        wire.PROTOCOL_VERSION, config.model, 64, 256, config.scheduler.page_size, 16, 0
    )
    while not stopped.is_set():
        for client, message in channel.receive(0.05):
            if isinstance(message, wire.Hello):
                channel.send([(client, welcome)])
            elif isinstance(message, wire.Read):
                channel.send([(client, wire.TextIs(message.call, "canned", 1))])
    channel.close()


def begin(script: str, parent: Parent) -> None:
    if script == "die":
        sys.stderr.write("first line\nthe reason of the death\n")
        sys.exit(7)
    if script == "fails":
        parent.failed(ContextOverflow("Too long.", prompt=9, max_tokens=2, limit=10))
        sys.exit(1)
    if script == "silent":
        parent.stage("reads the weights")
        time.sleep(60)
    if script == "slow":
        for part in range(4):
            parent.stage(f"reads part {part}")
            time.sleep(0.5)


if __name__ == "__main__":
    main()
