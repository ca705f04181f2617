"""A runtime process without a model, for the keeper: it serves, and does what a prompt tells it to.

`python -m tests.server.scripted_runtime` takes the arguments of the real one. Prompts: `hang` (the
loop sleeps for ever), `spin` (it computes for ever), `stand` (it answers questions, but its work
stands still), `die`; anything else is answered with one word.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import threading
import time

from lmprog import wire
from lmprog.launch.parent_pipe import Parent
from lmprog.transport import ClientId, Gone, ZmqRuntimeChannel


def sleeps_for_ever() -> None:
    while True:
        time.sleep(1.0)


def computes_for_ever() -> None:
    while True:
        pass


class Loop:
    """The loop, with nothing in it but the script."""

    def __init__(self, channel: ZmqRuntimeChannel) -> None:
        self._channel = channel
        self._prompts: dict[int, str] = {}
        self._standing = 0
        self._done = 0

    def step(self) -> None:
        for client, message in self._channel.receive(0.05):
            self._hear(client, message)

    def _hear(self, client: ClientId, message: wire.Op | Gone) -> None:
        match message:
            case wire.Hello():
                welcome = wire.Welcome(
                    wire.PROTOCOL_VERSION, "scripted", 64, 256, 16, 16, os.getpid()
                )
                self._channel.send([(client, welcome)])
            case wire.Describe(call=call):
                figures = {
                    "running": float(self._standing),
                    "waiting": 0.0,
                    "calls_done": float(self._done),
                }
                self._channel.send(
                    [(client, wire.Described(call, {**figures, "pid": float(os.getpid())}))]
                )
            case wire.Append(branch=branch, pieces=pieces):
                self._prompts[branch] = "".join(
                    piece.text for piece in pieces if isinstance(piece, wire.TextPiece)
                )
            case wire.Generate(branch=branch, call=call):
                self._obey(client, self._prompts[branch], call)

    def _obey(self, client: ClientId, prompt: str, call: int) -> None:
        match prompt:
            case "hang":
                sleeps_for_ever()
            case "spin":
                computes_for_ever()
            case "die":
                os._exit(9)
            case "stand":
                self._standing += 1
            case _:
                self._done += 1
                output = wire.Output("word", (1,), "stop")
                self._channel.send(
                    [(client, wire.CallDone(call, (output,), wire.Usage(prompt=1, generated=1)))]
                )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config-json", required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--ready-fd", type=int, required=True)
    parser.add_argument("--parent-fd", type=int, required=True)
    given = parser.parse_args()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    parent = Parent(given.ready_fd, given.parent_fd)
    parent.watch(stopped.set)
    channel = ZmqRuntimeChannel(given.address)
    loop = Loop(channel)
    parent.ready(channel.address, {"model": "scripted"})
    while not stopped.is_set():
        loop.step()
    channel.close()


if __name__ == "__main__":
    main()
