"""What only real sockets and real processes show: death, hanging, foreign bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from lmprog import wire
from lmprog.errors import InvalidParameter, ProtocolError, RuntimeGone
from lmprog.transport import Gone, ZmqClientChannel, ZmqRuntimeChannel
from lmprog.transport import address as addresses
from lmprog.transport import zmq_channel as runtime_module

HELLO = wire.Hello(wire.PROTOCOL_VERSION)
PEER = Path(__file__).with_name("peer.py")


@contextmanager
def peer(role: str, address: str) -> Iterator[subprocess.Popen[str]]:
    source = str(Path(wire.__file__).parents[2])  # also where the package is not installed
    process = subprocess.Popen(
        [sys.executable, str(PEER), role, address],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def raw_dealer(address: str, identity: bytes | None = None) -> Iterator[zmq.Socket[bytes]]:
    """A socket that may send anything."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        if identity:
            dealer.setsockopt(zmq.ROUTING_ID, identity)
        dealer.connect(address)
        yield dealer


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[ZmqRuntimeChannel]:
    channel = ZmqRuntimeChannel(f"ipc://{tmp_path}/socket")
    yield channel
    channel.close()


def hear(runtime: ZmqRuntimeChannel, within: float) -> list[wire.Op | Gone]:
    """Everything until the first message, or nothing after that time."""
    return [message for _, message in runtime.receive(within)]


def greet_peer(runtime: ZmqRuntimeChannel) -> bytes:
    """Lets the client in the other process in, and says who it is."""
    heard = runtime.receive(20.0)
    name = heard[0][0]
    assert heard == [(name, HELLO), (name, wire.Open(1))]
    runtime.send([(name, wire.TextIs(0, "", 0))])
    return name


def wait_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout
    assert process.stdout.readline() == "ready\n"


def test_a_wake_ends_a_wait_that_began_before_or_begins_after_it(
    runtime: ZmqRuntimeChannel,
) -> None:
    runtime.wake()
    runtime.wake()
    began = time.monotonic()
    assert runtime.receive(60.0) == []  # both wakes end one wait
    waker = threading.Timer(0.05, runtime.wake)
    waker.start()
    assert runtime.receive(60.0) == []
    waker.join()
    assert time.monotonic() - began < 60.0


def test_a_killed_client_is_gone_within_two_seconds(runtime: ZmqRuntimeChannel) -> None:
    with peer("client", runtime.address) as process:
        name = greet_peer(runtime)
        wait_ready(process)
        process.kill()
        start = time.monotonic()
        assert runtime.receive(5.0) == [(name, Gone())]
        assert time.monotonic() - start < 2.0


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats as short as a test's patience."""
    monkeypatch.setattr(addresses, "HEARTBEAT_INTERVAL", 0.3)
    monkeypatch.setattr(addresses, "HEARTBEAT_TIMEOUT", 1.2)


def test_a_hung_client_is_gone_after_the_heartbeats_time(impatient: None, tmp_path: Path) -> None:
    runtime = ZmqRuntimeChannel(f"ipc://{tmp_path}/socket")
    with peer("client", runtime.address) as process:
        name = greet_peer(runtime)
        wait_ready(process)
        process.send_signal(signal.SIGSTOP)
        assert runtime.receive(10.0) == [(name, Gone())]
        process.send_signal(signal.SIGCONT)
    runtime.close()


def test_a_killed_runtime_raises_runtime_gone_within_two_seconds(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/socket"
    with peer("runtime", address) as process:
        wait_ready(process)
        client = ZmqClientChannel(address, explain=lambda: "Its last words.")
        client.send([HELLO])
        assert isinstance(client.receive(5.0)[0], wire.Welcome)
        process.kill()
        start = time.monotonic()
        with pytest.raises(RuntimeGone, match=r"Its last words\."):
            client.receive(5.0)
        assert time.monotonic() - start < 2.0
        client.close()


def test_who_stands_still_for_some_seconds_is_not_given_up(runtime: ZmqRuntimeChannel) -> None:
    """A machine that is loaded or paused is no death: frames sent meanwhile arrive."""
    with peer("client", runtime.address) as process:
        greet_peer(runtime)
        wait_ready(process)
        process.send_signal(signal.SIGSTOP)
        assert runtime.receive(4.0) == []
        process.send_signal(signal.SIGCONT)
        assert runtime.receive(0.5) == []


def test_a_hung_runtime_raises_runtime_gone_after_the_heartbeats_time(
    impatient: None, tmp_path: Path
) -> None:
    address = f"ipc://{tmp_path}/socket"
    with peer("runtime", address) as process:
        wait_ready(process)
        client = ZmqClientChannel(address)
        client.send([HELLO])
        client.receive(5.0)
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(RuntimeGone, match="stopped answering"):
            client.receive(10.0)
        client.close()


def test_a_long_step_of_the_runtime_is_no_death(runtime: ZmqRuntimeChannel) -> None:
    """Nobody calls `receive` of either side for longer than any time limit of the heartbeat."""
    client = ZmqClientChannel(runtime.address)
    client.send([HELLO])
    ((name, _),) = runtime.receive(5.0)
    time.sleep(3.0)
    runtime.send([(name, wire.TextIs(1, "late", 1))])
    assert client.receive(1.0) == [wire.TextIs(1, "late", 1)]
    assert runtime.receive(0.6) == []
    client.close()


def test_nobody_there_is_runtime_gone(tmp_path: Path) -> None:
    for address in (f"ipc://{tmp_path}/nothing", "tcp://127.0.0.1:9"):
        client = ZmqClientChannel(address)
        start = time.monotonic()
        with pytest.raises(RuntimeGone):
            client.receive(5.0)
        assert time.monotonic() - start < 2.0
        client.close()


def test_an_oversized_message_ends_its_sender_and_nobody_else(runtime: ZmqRuntimeChannel) -> None:
    good = ZmqClientChannel(runtime.address)
    good.send([HELLO])
    ((name, _),) = runtime.receive(5.0)
    with raw_dealer(runtime.address) as bad:
        bad.setsockopt(zmq.RECONNECT_IVL, -1)
        bad.send(wire.encode((HELLO,)))
        ((stranger, _),) = runtime.receive(5.0)
        bad.send(bytes(wire.MAX_FRAME_BYTES + 1))
        assert runtime.receive(5.0) == [(stranger, Gone())]
    good.send([wire.Open(3)])
    assert runtime.receive(5.0) == [(name, wire.Open(3))]
    good.close()


def test_foreign_bytes_are_counted_and_answered_with_nothing(runtime: ZmqRuntimeChannel) -> None:
    with raw_dealer(runtime.address) as bad:
        bad.send(b"GET / HTTP/1.1\r\n\r\n")
        bad.send(b"")
        bad.send_multipart([b"two", b"parts"])
        bad.send(wire.encode((wire.TextIs(1, "a reply is no op", 1),)))
        assert hear(runtime, 0.3) == []
        assert runtime.counters["frames_malformed"] == 4
        assert bad.poll(200) == 0


def test_a_client_cannot_take_over_another_ones_name(runtime: ZmqRuntimeChannel) -> None:
    with raw_dealer(runtime.address, identity=b"same") as first:
        first.send(wire.encode((HELLO, wire.Open(1))))
        assert runtime.receive(5.0) == [(b"same", HELLO), (b"same", wire.Open(1))]
        with raw_dealer(runtime.address, identity=b"same") as second:
            second.send(wire.encode((HELLO, wire.Close(1))))
            assert runtime.receive(0.5) == []
        runtime.send([(b"same", wire.TextIs(1, "mine", 1))])
        frames = [b""]
        while not frames[-1] and first.poll(2000):
            frames.append(first.recv())
        assert wire.decode_replies(frames[-1]) == (wire.TextIs(1, "mine", 1),)


def test_a_client_that_does_not_read_is_given_up_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_module, "MAX_UNREAD_BYTES", 1_000_000)
    # Few enough frames that they are sent long before a full pipe makes heartbeats late, on any
    # machine.
    monkeypatch.setattr(addresses, "HIGH_WATER_MARK", 100)
    runtime = ZmqRuntimeChannel(f"ipc://{tmp_path}/socket")
    client = ZmqClientChannel(runtime.address)
    client.send([HELLO])
    ((name, _),) = runtime.receive(5.0)
    words = "x" * 10_000
    for number in range(100_000):
        runtime.send([(name, wire.TextIs(number, words, 1))])
        if runtime.counters["clients_too_slow"]:
            break
    assert runtime.counters["clients_too_slow"] == 1
    assert (name, Gone()) in runtime.receive(5.0)
    last: wire.Reply | None = None
    deadline = time.monotonic() + 20.0
    while not isinstance(last, wire.Failed) and time.monotonic() < deadline:
        runtime.receive(0.0)
        last = next(iter(client.receive(0.01)[-1:]), last)
    assert isinstance(last, wire.Failed)
    assert (last.call, last.code) == (None, "overloaded")
    client.close()
    runtime.close()


def test_a_runtime_that_speaks_nonsense_is_a_protocol_error(tmp_path: Path) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.bind(f"ipc://{tmp_path}/socket")
        client = ZmqClientChannel(f"ipc://{tmp_path}/socket")
        client.send([HELLO])
        name, _ = router.recv_multipart()
        router.send_multipart([name, b"\xc1"])
        with pytest.raises(ProtocolError):
            client.receive(5.0)
        client.close()


def test_many_clients_of_one_process_may_share_a_context(runtime: ZmqRuntimeChannel) -> None:
    with zmq.Context() as context:
        clients = [ZmqClientChannel(runtime.address, context=context) for _ in range(50)]
        for number, client in enumerate(clients):
            client.send([HELLO, wire.Open(number)])
        names: set[bytes] = set()
        while len(names) < 50:
            names |= {name for name, op in runtime.receive(5.0) if isinstance(op, wire.Open)}
        for client in clients:
            client.close()
        gone: set[bytes] = set()
        while len(gone) < 50:
            gone |= {name for name, op in runtime.receive(5.0) if isinstance(op, Gone)}
        assert gone == names


def test_channels_leave_no_descriptor_and_no_thread_behind(tmp_path: Path) -> None:
    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    before = held()
    for number in range(20):
        runtime = ZmqRuntimeChannel(f"ipc://{tmp_path}/{number}")
        client = ZmqClientChannel(runtime.address)
        client.send([HELLO])
        runtime.receive(5.0)
        (runtime if number % 2 else client).close()
        (client if number % 2 else runtime).close()
        with pytest.raises(InvalidParameter):
            ZmqRuntimeChannel(f"ipc://{tmp_path}/no/such/folder")
    assert held() == before


def test_a_connection_in_a_cycle_that_nobody_closed_is_collected(tmp_path: Path) -> None:
    """In a process of its own, since it hung: the context waited for sockets nobody closed."""
    runtime = ZmqRuntimeChannel(f"ipc://{tmp_path}/socket")
    script = (
        "import gc, sys\n"
        "from lmprog.transport import ZmqClientChannel\n"
        "channel = ZmqClientChannel(sys.argv[1])\n"
        "channel.me = channel\n"
        "del channel\n"
        "assert gc.collect() > 0\n"
        "print('collected')\n"
    )
    command = [sys.executable, "-c", script, runtime.address]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    runtime.close()
    assert (ended.stdout, ended.returncode) == ("collected\n", 0), ended.stderr


FORKING = """
import os, sys, threading
from lmprog import wire
from lmprog.errors import RuntimeGone
from lmprog.transport import ZmqClientChannel

channel = ZmqClientChannel(sys.argv[1])
reader = threading.Thread(target=channel.receive, args=(3.0,))
reader.start()
if os.fork() == 0:
    try:
        channel.send([wire.Hello(wire.PROTOCOL_VERSION)])
    except RuntimeGone as error:
        channel.close()
        print(error, flush=True)
    os._exit(0)
os.wait()
channel.send([wire.Hello(wire.PROTOCOL_VERSION)])
reader.join()
channel.close()
"""


def test_a_connection_used_in_a_forked_child_raises_at_once(tmp_path: Path) -> None:
    runtime = ZmqRuntimeChannel(f"ipc://{tmp_path}/socket")
    command = [sys.executable, "-W", "ignore", "-c", FORKING, runtime.address]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    received = [op for _, op in runtime.receive(5.0)]
    runtime.close()
    assert "forked" in ended.stdout
    assert "spawn" in ended.stdout
    assert received[0] == HELLO, "the parent's connection goes on"


def test_a_closed_channel_does_not_ask_how_the_runtime_ended(tmp_path: Path) -> None:
    runtime = ZmqRuntimeChannel(f"ipc://{tmp_path}/socket")
    asked: list[int] = []
    client = ZmqClientChannel(runtime.address, explain=lambda: asked.append(1) or "")
    client.close()
    with pytest.raises(RuntimeGone, match="closed"):
        client.receive(0.0)
    assert asked == []
    runtime.close()
