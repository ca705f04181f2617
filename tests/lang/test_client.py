"""The client over a local channel: greeting, frames, replies, ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from lmprog import wire
from lmprog.backends.client import Client
from lmprog.errors import (
    Cancelled,
    InvalidParameter,
    LmprogError,
    ModelError,
    RuntimeGone,
)
from lmprog.lang.branches.gen import Variable
from lmprog.launch import greet
from lmprog.transport import ClientId, LocalRuntimeChannel

WELCOME = wire.Welcome(wire.PROTOCOL_VERSION, "fake", 100, 10, 1, 10, 0)


class Peer:
    """A runtime that greets, remembers what it was sent, and says what the test tells it to."""

    def __init__(self, greeting: wire.Reply = WELCOME) -> None:
        self.channel = LocalRuntimeChannel()
        self.ops: list[object] = []
        self.client: ClientId = b""
        self._greeting = greeting
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._ended.is_set():
            for client, op in self.channel.receive(0.01):
                self.client = client
                if isinstance(op, wire.Hello):
                    self.channel.send([(client, self._greeting)])
                else:
                    self.ops.append(op)

    def say(self, *replies: wire.Reply) -> None:
        self.channel.send([(self.client, reply) for reply in replies])

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + 5
        while len(self.ops) < count:
            assert time.monotonic() < deadline, f"only {self.ops} came"
            time.sleep(0.001)

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        self.channel.close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.end()


@pytest.fixture
def client(peer: Peer) -> Iterator[Client]:
    made = Client(greet(peer.channel.connect()))
    yield made
    made.close()


def _done(call: int, text: str = "x") -> wire.CallDone:
    return wire.CallDone(call, (wire.Output(text, (), "stop"),), wire.Usage())


def test_the_greeting_gives_what_the_runtime_says_of_itself(client: Client) -> None:
    assert client.welcome == WELCOME


def test_ops_wait_for_the_call_that_needs_them(client: Client, peer: Peer) -> None:
    client.post(wire.Open(1))
    time.sleep(0.03)
    assert peer.ops == []
    client.call(wire.Generate(1, client.number()))
    peer.wait_for(2)


def test_every_reply_finds_its_call(client: Client, peer: Peer) -> None:
    heard: list[str] = []
    first = client.call(wire.Generate(1, 5), lambda delta: heard.append(delta.text))
    second = client.call(wire.Generate(1, 6))
    peer.wait_for(2)
    peer.say(wire.Delta(5, 0, "a", 1), _done(6, "second"), wire.Delta(5, 0, "b", 1), _done(5, "ab"))
    assert second.wait(5) == _done(6, "second")
    assert first.wait(5) == _done(5, "ab")
    assert heard == ["a", "b"]


def test_a_failure_arrives_as_the_exception_that_its_code_names(client: Client, peer: Peer) -> None:
    call = client.call(wire.Generate(1, 5))
    peer.wait_for(1)
    peer.say(wire.Failed(5, "model", "not finite"))
    outcome = call.wait(5)
    assert isinstance(outcome, ModelError)


def test_replies_for_nobody_and_second_replies_are_dropped(client: Client, peer: Peer) -> None:
    call = client.call(wire.Generate(1, 5))
    peer.wait_for(1)
    peer.say(_done(77), wire.Delta(78, 0, "x", 1), _done(5, "first"), _done(5, "second"))
    assert call.wait(5) == _done(5, "first")


def test_when_the_runtime_dies_waiting_and_later_calls_fail(client: Client, peer: Peer) -> None:
    waiting = client.call(wire.Generate(1, 5))
    peer.wait_for(1)
    peer.channel.close()
    assert isinstance(waiting.wait(2), RuntimeGone)
    assert isinstance(client.call(wire.Generate(1, 6)).wait(2), RuntimeGone)
    assert client.closed


def test_closing_fails_the_waiting_calls_at_once(client: Client, peer: Peer) -> None:
    waiting = client.call(wire.Generate(1, 5))
    started = time.monotonic()
    client.close()
    assert isinstance(waiting.wait(2), Cancelled)
    assert time.monotonic() - started < 0.15


def test_an_op_out_of_range_fails_its_own_call_and_not_its_neighbors(
    client: Client, peer: Peer
) -> None:
    with client.together():
        wrong = client.call(wire.Generate(1, 5, priority=1000))
        right = client.call(wire.Generate(2, 6))
    peer.wait_for(1)
    peer.say(_done(6))
    assert isinstance(wrong.wait(5), InvalidParameter)
    assert right.wait(5) == _done(6)


def test_text_that_cannot_be_sent_fails_the_later_calls_of_its_branch(
    client: Client, peer: Peer
) -> None:
    client.post(wire.Append(1, (wire.TextPiece("x" * (wire.MAX_FRAME_BYTES + 1)),)))
    client.flush()
    assert isinstance(client.call(wire.Generate(1, 5)).wait(5), LmprogError)
    client.call(wire.Generate(2, 6))
    peer.wait_for(1)


def test_calls_made_together_are_one_frame(client: Client, peer: Peer) -> None:
    before = peer.channel.counters["frames_received"]
    with client.together():
        for number in range(5, 10):
            client.call(wire.Generate(1, number))
    peer.wait_for(5)
    assert peer.channel.counters["frames_received"] == before + 1


def test_many_tasks_wait_without_a_thread_each(client: Client, peer: Peer) -> None:
    async def main() -> None:
        calls = [client.call(wire.Generate(1, number)) for number in range(100, 200)]
        waiting = asyncio.gather(*(call.arrive() for call in calls))
        await asyncio.sleep(0.01)
        assert threading.active_count() <= before
        peer.say(*(_done(call.id, str(call.id)) for call in calls))
        replies = [reply for reply in await waiting if isinstance(reply, wire.CallDone)]
        assert [reply.outputs[0].text for reply in replies] == [str(n) for n in range(100, 200)]

    before = threading.active_count()
    asyncio.run(main())


def test_a_plain_value_can_be_awaited_like_a_pending_one() -> None:
    async def main() -> object:
        return await Variable(3)

    assert asyncio.run(main()) == 3


def test_closing_waits_for_texts_that_were_asked_for_and_for_nothing_else(peer: Peer) -> None:
    client = Client(greet(peer.channel.connect()))
    text = client.call(wire.Read(1, 90))
    generation = client.call(wire.Generate(1, 91))
    peer.wait_for(2)
    threading.Timer(0.05, lambda: peer.say(wire.TextIs(90, "the text", 2))).start()
    begin = time.monotonic()
    client.close()
    assert time.monotonic() - begin < 0.9
    assert text.wait(0) == wire.TextIs(90, "the text", 2)
    assert isinstance(generation.wait(0), Cancelled)
