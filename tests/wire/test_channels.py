"""The contract of channels, the same for the local pair and for ZeroMQ over ipc and tcp."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lmprog import wire
from lmprog.errors import InvalidParameter, Overloaded, RuntimeGone
from lmprog.transport import (
    ClientChannel,
    ClientId,
    Gone,
    LocalRuntimeChannel,
    Received,
    RuntimeChannel,
    ZmqClientChannel,
    ZmqRuntimeChannel,
)
from lmprog.transport import zmq_channel as client_module
from lmprog.transport.channel import ops_frames, replies_frames

HELLO = wire.Hello(wire.PROTOCOL_VERSION, "test")
Heard = list[tuple[ClientId, Received]]


class House:
    """A runtime's end and a way to make clients of it; closes all of them."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.clients: list[ClientChannel] = []
        self.runtime: RuntimeChannel
        self.make: Callable[[], ClientChannel]
        if kind == "local":
            local = LocalRuntimeChannel()
            self.runtime, self.make = local, local.connect
        else:
            bound = ZmqRuntimeChannel(
                f"ipc://{folder}/socket" if kind == "ipc" else "tcp://127.0.0.1:*"
            )
            self.runtime, self.make = bound, lambda: ZmqClientChannel(bound.address)

    def connect(self) -> ClientChannel:
        self.clients.append(self.make())
        return self.clients[-1]

    def hear(self, num_messages: int, within: float = 5.0) -> Heard:
        """Receives until there are that many messages, so that no test depends on how frames fall
        into calls.
        """
        heard: Heard = []
        deadline = time.monotonic() + within
        while len(heard) < num_messages and time.monotonic() < deadline:
            heard += self.runtime.receive(0.05)
        return heard

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.runtime.close()


@pytest.fixture(params=["local", "ipc", "tcp"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    made = House(request.param, tmp_path)
    yield made
    made.close()


def answers(client: ClientChannel, num_replies: int, within: float = 5.0) -> list[wire.Reply]:
    replies: list[wire.Reply] = []
    deadline = time.monotonic() + within
    while len(replies) < num_replies and time.monotonic() < deadline:
        replies += client.receive(0.05)
    return replies


def text(call: int, words: str = "x") -> wire.TextIs:
    return wire.TextIs(call, words, 1)


def test_ops_arrive_in_order_and_hello_is_passed_on(house: House) -> None:
    client = house.connect()
    client.send([HELLO, wire.Open(1)])
    client.send([wire.Append(1, (wire.TextPiece("é\n"), wire.Ref(3))), wire.Close(1)])
    heard = house.hear(4)
    assert [op for _, op in heard] == [
        HELLO,
        wire.Open(1),
        wire.Append(1, (wire.TextPiece("é\n"), wire.Ref(3))),
        wire.Close(1),
    ]
    assert len({name for name, _ in heard}) == 1


def test_replies_arrive_in_order_at_the_client_they_are_for(house: House) -> None:
    one, two = house.connect(), house.connect()
    one.send([HELLO, wire.Read(1, 7)])
    (first, _), _ = house.hear(2)
    two.send([HELLO, wire.Read(1, 7)])
    (second, _), _ = house.hear(2)
    assert first != second
    house.runtime.send([(first, text(7, "a")), (second, text(7, "b")), (first, text(8, "c"))])
    assert answers(one, 2) == [text(7, "a"), text(8, "c")]
    assert answers(two, 1) == [text(7, "b")]


def test_receive_gives_an_empty_list_when_nothing_comes(house: House) -> None:
    client = house.connect()
    start = time.monotonic()
    assert client.receive(0.1) == []
    assert house.runtime.receive(0.1) == []
    assert 0.19 < time.monotonic() - start < 2.0


def test_a_client_without_hello_gets_one_refusal_and_its_ops_are_dropped(house: House) -> None:
    client = house.connect()
    client.send([wire.Open(1)])
    client.send([wire.Open(2), wire.Open(3)])
    assert house.hear(1, within=0.3) == []
    (refusal,) = answers(client, 2, within=0.3)
    assert isinstance(refusal, wire.Failed)
    assert (refusal.call, refusal.code) == (None, "protocol")
    assert house.runtime.counters["ops_refused"] == 3


def test_a_wrong_version_is_refused_and_the_right_one_heals_it(house: House) -> None:
    client = house.connect()
    client.send([wire.Hello(wire.PROTOCOL_VERSION + 1), wire.Open(1)])
    assert house.hear(1, within=0.3) == []
    (refusal,) = answers(client, 1)
    assert isinstance(refusal, wire.Failed)
    assert refusal.code == "protocol"
    assert str(wire.PROTOCOL_VERSION + 1) in refusal.message
    client.send([HELLO, wire.Open(2)])
    assert [op for _, op in house.hear(2)] == [HELLO, wire.Open(2)]


def test_a_closed_client_is_gone_exactly_once(house: House) -> None:
    client, other = house.connect(), house.connect()
    client.send([HELLO])
    ((name, _),) = house.hear(1)
    other.send([HELLO])
    house.hear(1)
    client.close()
    assert house.hear(1, within=2.0) == [(name, Gone())]
    assert house.hear(1, within=1.2) == []
    assert house.runtime.counters["clients_gone"] == 1


def test_replies_for_a_gone_client_are_dropped_and_counted(house: House) -> None:
    client = house.connect()
    client.send([HELLO])
    ((name, _),) = house.hear(1)
    client.close()
    house.hear(1, within=2.0)
    house.runtime.send([(name, text(1)), (b"never seen", text(1))])
    assert house.runtime.counters["replies_dropped"] == 2


def test_a_second_hello_frees_what_the_client_had(house: House) -> None:
    client = house.connect()
    client.send([HELLO, wire.Open(1)])
    client.send([HELLO])
    assert [op for _, op in house.hear(4)] == [HELLO, wire.Open(1), Gone(), HELLO]


def test_a_closed_runtime_is_gone_for_every_client_within_two_seconds(house: House) -> None:
    clients = [house.connect() for _ in range(3)]
    for client in clients:
        client.send([HELLO])
    house.hear(3)
    house.runtime.close()
    start = time.monotonic()
    for client in clients:
        with pytest.raises(RuntimeGone):
            client.receive(5.0)
        with pytest.raises(RuntimeGone):
            client.receive(5.0)
        with pytest.raises(RuntimeGone):
            client.send([wire.Open(1)])
    assert time.monotonic() - start < 2.0


def test_replies_sent_before_the_end_are_given_out_before_runtime_gone(house: House) -> None:
    client = house.connect()
    client.send([HELLO])
    ((name, _),) = house.hear(1)
    house.runtime.send([(name, text(1)), (name, text(2))])
    time.sleep(0.2)
    house.runtime.close()
    time.sleep(0.2)
    assert answers(client, 2) == [text(1), text(2)]
    with pytest.raises(RuntimeGone):
        client.receive(5.0)


def test_a_value_out_of_range_is_refused_where_it_is_sent(house: House) -> None:
    client = house.connect()
    with pytest.raises(InvalidParameter, match="temperature"):
        client.send([HELLO, wire.Generate(1, 1, wire.SamplingParams(temperature=-1.0))])
    assert house.hear(1, within=0.1) == []


@pytest.mark.parametrize(
    "op", [wire.Open(2**70), wire.Append(1, (wire.TextPiece("\ud800"),)), wire.Open(1, 5)]
)  # type: ignore
def test_a_value_without_an_encoding_is_refused_where_it_is_sent(op: wire.Op) -> None:
    with pytest.raises(InvalidParameter):
        ops_frames([op])


def test_a_frame_over_the_limit_is_refused_where_it_is_sent(house: House) -> None:
    client = house.connect()
    with pytest.raises(InvalidParameter, match="smaller pieces"):
        client.send([wire.Append(1, (wire.TextPiece("x" * wire.MAX_FRAME_BYTES),))])


def test_more_ops_than_a_frame_holds_are_sent_as_several_frames(house: House) -> None:
    client = house.connect()
    ops = [HELLO, *(wire.Open(number) for number in range(2 * wire.MAX_FRAME_OPS))]
    client.send(ops)
    assert [op for _, op in house.hear(len(ops))] == ops


def test_any_thread_may_send_while_another_receives(house: House) -> None:
    client = house.connect()
    client.send([HELLO])
    ((name, _),) = house.hear(1)
    replies: list[wire.Reply] = []

    def read() -> None:
        while len(replies) < 200:
            replies.extend(client.receive(5.0))

    def write(first: int) -> None:
        for number in range(first, first + 50):
            client.send([wire.Read(1, number)])

    threads = [
        threading.Thread(target=read),
        *(threading.Thread(target=write, args=(n * 50,)) for n in range(4)),
    ]
    for thread in threads:
        thread.start()
    num_answered = 0
    while num_answered < 200:
        heard = house.runtime.receive(5.0)
        house.runtime.send([(name, text(op.call)) for _, op in heard if isinstance(op, wire.Read)])
        num_answered += len(heard)
    for thread in threads:
        thread.join(5.0)
    assert sorted(reply.call for reply in replies if isinstance(reply, wire.TextIs)) == list(
        range(200)
    )


def test_close_wakes_a_sleeping_receiver(house: House) -> None:
    client = house.connect()
    ended: list[float] = []

    def read() -> None:
        with pytest.raises(RuntimeGone):
            client.receive(30.0)
        ended.append(time.monotonic())

    reader = threading.Thread(target=read)
    reader.start()
    time.sleep(0.1)
    start = time.monotonic()
    client.close()
    client.close()
    reader.join(5.0)
    assert ended
    assert ended[0] - start < 1.0


def test_a_sender_needs_no_reader(house: House) -> None:
    client = house.connect()
    client.send([HELLO])
    client.send([wire.Open(1)])
    assert [op for _, op in house.hear(2)] == [HELLO, wire.Open(1)]


def test_replies_beyond_a_frame_are_split_in_order() -> None:
    replies = [text(number, "y" * 40) for number in range(20)]
    frames = replies_frames(replies, limit=200)
    assert len(frames) > 4
    assert [reply for frame in frames for reply in wire.decode_replies(frame)] == replies


def test_a_reply_larger_than_any_frame_becomes_the_failure_of_its_call() -> None:
    frames = replies_frames([text(5), text(6, "y" * 500), text(7)], limit=400)
    small, large, last = (reply for frame in frames for reply in wire.decode_replies(frame))
    assert (small, last) == (text(5), text(7))
    assert isinstance(large, wire.Failed)
    assert (large.call, large.code) == (6, "rejected")


def test_a_reply_without_an_encoding_becomes_the_failure_of_its_call() -> None:
    broken = wire.Failed(6, "unsupported_schema", "no keyword \ud800", {"keyword": 2**80})
    frames = replies_frames([text(5), broken, text(6, "\udfff"), text(7)])
    replies = [reply for frame in frames for reply in wire.decode_replies(frame)]
    assert [reply.call for reply in replies if not isinstance(reply, wire.Welcome)] == [5, 6, 6, 7]
    assert [reply.code for reply in replies if isinstance(reply, wire.Failed)] == [
        "unsupported_schema",
        "rejected",
    ]


def test_unsent_ops_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_UNSENT_BYTES", 100_000)
    runtime = ZmqRuntimeChannel(f"ipc://{tmp_path}/socket")
    client = ZmqClientChannel(runtime.address)
    large = [wire.Append(1, (wire.TextPiece("x" * 1000),))]
    with client._owner:  # as if another thread were in a poll that does not end
        for _ in range(90):
            client.send(large)
        with pytest.raises(Overloaded, match="again in a second"):
            client.send(large * 10)
    client.close()
    runtime.close()


def test_checking_an_op_costs_little() -> None:
    op = wire.Append(1, (wire.TextPiece("word " * 400),))
    start = time.perf_counter()
    for _ in range(1000):
        ops_frames([op])
    assert (time.perf_counter() - start) / 1000 < 0.0005
