"""A runtime without a model, and a gateway before it: what the gateway costs by itself.

    python -m benchmarks.speaker runtime ipc:///tmp/x/socket [SECONDS]
    python -m benchmarks.speaker gateway ipc:///tmp/x/socket [PLACES]

The runtime speaks the wire and computes nothing: in each step, which takes SECONDS (default: none),
every generation gets one token; one whose prompt begins with `wait` gets none. Both print one line
of JSON when they serve, and end when their input is closed.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from lmprog import launch, wire
from lmprog.launch import Connection
from lmprog.server.http.http_server import HttpServer, bind, run, url_of
from lmprog.server.options.server_settings import ServerSettings
from lmprog.server.service import serve
from lmprog.transport import ClientId, Received, ZmqRuntimeChannel

WORD = "word "
CONTEXT = 1_000_000


class Speaker:
    """Answers generations; branches are only remembered as far as they wait."""

    def __init__(self, address: str, pace: float = 0.0) -> None:
        self._channel = ZmqRuntimeChannel(address)
        self._pace = pace
        self._silent: set[tuple[ClientId, int]] = set()
        self._running: dict[tuple[ClientId, int], tuple[wire.Generate, int]] = {}
        self._ended = threading.Event()

    def serve(self) -> None:
        while not self._ended.is_set():
            replies: list[tuple[ClientId, wire.Reply]] = []
            for client, op in self._channel.receive(0.0 if self._running else 0.2):
                replies += self._take(client, op)
            if self._pace and self._running:
                time.sleep(self._pace)
            replies += self._step()
            self._channel.send(replies)
        self._channel.close()

    def end(self) -> None:
        self._ended.set()

    def _take(self, client: ClientId, op: Received) -> list[tuple[ClientId, wire.Reply]]:
        match op:
            case wire.Hello():
                return [
                    (
                        client,
                        wire.Welcome(wire.PROTOCOL_VERSION, "speaker", CONTEXT, 1000, 16, 1, 0),
                    )
                ]
            case wire.Append(branch=branch, pieces=(wire.TextPiece(text=text), *_)) if (
                text.startswith("wait")
            ):
                self._silent.add((client, branch))
            case wire.Generate() if (client, op.branch) not in self._silent:
                self._running[client, op.branch] = (op, 0)
            case wire.Close(branch=branch):
                self._silent.discard((client, branch))
                self._running.pop((client, branch), None)
            case wire.Describe(call=call):
                return [(client, wire.Described(call, {}))]
        return []

    def _step(self) -> list[tuple[ClientId, wire.Reply]]:
        replies: list[tuple[ClientId, wire.Reply]] = []
        for place, (gen, said) in list(self._running.items()):
            client, most = place[0], gen.sampling.max_tokens or 1
            if said < most:
                self._running[place] = (gen, said + 1)
                if gen.stream:
                    replies.append((client, wire.Delta(gen.call, 0, WORD, 1)))
                continue
            del self._running[place]
            output = wire.Output(WORD * most, (1,) * most, "length")
            replies.append(
                (client, wire.CallDone(gen.call, (output,), wire.Usage(prompt=1, generated=most)))
            )
        return replies


class _At:
    """A runtime that runs already, for the gateway."""

    def __init__(self, address: str) -> None:
        self._address = address

    def connect(self, client: str = "") -> Connection:
        return launch.connect(self._address, client=client)


def main() -> None:
    role, address = sys.argv[1:3]
    if role == "runtime":
        speaker = Speaker(address, float(sys.argv[3]) if len(sys.argv) > 3 else 0.0)
        _say({"address": address})
        _at_end(speaker.end)
        speaker.serve()
        return
    places = int(sys.argv[3]) // 2 if len(sys.argv) > 3 else 4096
    settings = ServerSettings(port=0, max_running=places, max_waiting=places, first_reply_wait=0.05)
    bound = bind(settings)

    def ready(server: HttpServer) -> None:
        _say({"url": url_of(bound)})
        _at_end(server.stop_now)

    run(lambda: serve(settings, _At(address), bound, ready))


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


def _at_end(action: Any) -> None:
    """Runs `action` when whoever started us closes our input."""
    threading.Thread(target=lambda: (sys.stdin.read(), action()), daemon=True).start()


if __name__ == "__main__":
    main()
