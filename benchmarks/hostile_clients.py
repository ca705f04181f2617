"""Can some clients hold up the others? `python -m benchmarks.hostile_clients [--seconds S]`.

Eight clients send requests on nano (60 tokens, 8 generated, as soon as the last one is answered):
alone, and beside ten hostile clients of five kinds, two of each, that send without end and all at
once: frames full of opens and closes; texts to tokenise; branches forked a hundred times; frames
with values that are not allowed; calls with long prompts, 200 at a time. Milliseconds to the first
token, p50 and p99, of the runtime's processor time. The bar: p99 at most three times that without
hostile clients.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated

from benchmarks import runner
from benchmarks.own_loop import OwnLoop
from lmprog import wire
from lmprog.simulation.world import SimChannel
from lmprog.transport import ClientId, Received
from lmprog.transport.channel import MAX_OPS, Admission, replies_frames

FRAMES_A_TURN, BYTES_A_TURN, OPS_A_TURN = 64, 4 << 20, MAX_OPS
LONG = "the little house by the water was found again " * 40
GREEDY = wire.SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
BAR = 3.0

Ops = Iterator[tuple[wire.Op, ...]]
"""Each are a frame."""


def opens() -> Ops:
    half = wire.MAX_FRAME_OPS // 2
    for first in itertools.count(1, half):
        numbers = range(first, first + half)
        yield *map(wire.Open, numbers), *map(wire.Close, numbers)


def texts() -> Ops:
    for call in itertools.count(1):
        yield (wire.Encode(call, LONG * 100),)


def forks() -> Ops:
    for first in itertools.count(1, 101):
        children = tuple(range(first + 1, first + 101))
        text = wire.Append(first, (wire.TextPiece(LONG),))
        closes = map(wire.Close, (first, *children))
        yield wire.Open(first), text, wire.Fork(first, children), *closes


def refused() -> Ops:
    wrong = wire.SamplingParams(temperature=-5.0)
    for first in itertools.count(1, wire.MAX_FRAME_OPS):
        numbers = range(first, first + wire.MAX_FRAME_OPS)
        yield tuple(wire.Generate(number, number, wrong) for number in numbers)


def calls() -> Ops:
    for number in itertools.count(1):
        text = wire.Append(number, (wire.TextPiece(f"{number} {LONG}"),))
        ops = (wire.Open(number), text, wire.Generate(number, number, GREEDY))
        yield (*ops, wire.Close(number)) if number % 2 else ops


KINDS: dict[str, Callable[[], Ops]] = {
    one.__name__: one for one in (opens, texts, forks, refused, calls)
}


@dataclass(eq=False)
class FrameChannel(SimChannel):
    """Takes frames as a ZeroMQ socket does: one of each client in turn. Hostile clients have always
    another one.
    """

    hostile: dict[ClientId, Ops] = field(default_factory=dict)
    queues: dict[ClientId, deque[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        SimChannel.__init__(self)
        self.admission = Admission()
        self.counters = self.admission.counters
        self._turn: deque[ClientId] = deque()

    def post(self, client: ClientId, *ops: wire.Op) -> None:
        if client not in self.queues:
            self.queues[client] = deque([wire.encode((wire.Hello(wire.PROTOCOL_VERSION),))])
            self._turn.append(client)
        if ops:
            self.queues[client].append(wire.encode(ops))

    def receive(self, wait: float) -> list[tuple[ClientId, Received]]:
        found: list[tuple[ClientId, Received]] = []
        num_frames = num_bytes = num_ops = passed = 0
        while num_frames < FRAMES_A_TURN and passed < len(self._turn):
            client = self._turn[0]
            self._turn.rotate(-1)
            frame = self._next(client)
            if frame is None:
                passed += 1
                continue
            passed, num_frames, num_bytes = 0, num_frames + 1, num_bytes + len(frame)
            admitted = self.admission.admit(client, frame)
            num_ops += admitted.num_ops
            found += [(client, one) for one in admitted.messages]
            if num_bytes > BYTES_A_TURN or num_ops > OPS_A_TURN:
                break
        return found

    def _next(self, client: ClientId) -> bytes | None:
        queue = self.queues[client]
        if queue:
            return queue.popleft()
        return wire.encode(next(self.hostile[client])) if client in self.hostile else None

    def send(self, replies: object) -> None:
        """Replies to hostile clients are written, and never read."""
        assert isinstance(replies, list)
        for client, reply in replies:
            if client in self.hostile:
                replies_frames([reply])
            else:
                self.sent.append((client, reply))


def measured(seconds: float, kinds: list[str]) -> list[float]:
    """Seconds to the first token of the ordinary clients' requests."""
    channel = FrameChannel()
    own = OwnLoop("nano", channel=channel, kv_memory_mb=512)
    for kind in kinds:
        for number in range(2):
            name = f"{kind}-{number}".encode()
            channel.hostile[name] = KINDS[kind]()
            channel.post(name)
    asked: dict[tuple[bytes, int], float] = {}
    waits: list[float] = []
    numbers = itertools.count(1)

    def ask(client: bytes) -> None:
        number = next(numbers)
        text = wire.TextPiece(f"Request {number} of an ordinary client. " * 5)
        generate = wire.Generate(number, number, GREEDY, None, True)
        channel.post(client, wire.Open(number), wire.Append(number, (text,)), generate)
        asked[client, number] = own.now()

    for index in range(8):
        ask(b"ordinary-%d" % index)
    ends = own.now() + seconds
    while own.now() < ends:
        for came in own.turn():
            reply = came.reply
            if isinstance(reply, wire.Delta):
                began = asked.pop((came.client, reply.call), None)
                if began is not None:
                    waits.append(came.at - began)
            elif isinstance(reply, wire.CallDone):
                channel.post(came.client, wire.Close(reply.call))
                ask(came.client)
    return waits


@runner.command
def main(
    *,
    seconds: Annotated[float, "of processor time, each run"] = 5.0,
    each: Annotated[bool, "also each kind by itself"] = False,
) -> None:
    cases = {"no hostile client": list[str](), "all ten": list(KINDS)}
    if each:
        cases |= {f"two of {kind}": [kind] for kind in KINDS}
    p99 = {}
    for name, kinds in cases.items():
        waits = [1e3 * one for one in measured(seconds, kinds)]
        p50, p99[name] = (runner.percentile(waits, part) for part in (0.5, 0.99))
        print(
            f"{name}: {len(waits)} requests, p50 {p50:.1f} ms, p99 {p99[name]:.1f} ms", flush=True
        )
    ratio = p99["all ten"] / p99["no hostile client"]
    told = f"p99 with all ten is {ratio:.1f} times that without, at most {BAR:g}"
    print(f"{told}: {runner.verdict(ratio <= BAR)}")
