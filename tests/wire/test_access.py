"""Who may connect to a socket, and where one may be: addresses, owners, keys."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from lmprog.errors import InvalidParameter, RuntimeGone
from lmprog.transport import CurveClient, CurveServer, ZmqClientChannel, ZmqRuntimeChannel
from tests.wire.test_zeromq import HELLO, hear, peer, wait_ready


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[ZmqRuntimeChannel]:
    channel = ZmqRuntimeChannel(f"ipc://{tmp_path}/socket")
    yield channel
    channel.close()


@pytest.mark.parametrize(
    "address",
    [
        "tcp://0.0.0.0:5000",
        "tcp://*:5000",
        "tcp://192.168.0.7:5000",
        "tcp://example.org:5000",
        "tcp://[::]:5000",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:99999",
        "tcp://127.0.0.1:x",
        "inproc://x",
        "udp://127.0.0.1:5",
        "127.0.0.1:5000",
        "ipc://",
        "ipc:///" + "x" * 120,
        "",
    ],
)
def test_a_bad_or_public_address_is_refused_on_both_sides(address: str) -> None:
    with pytest.raises(InvalidParameter):
        ZmqRuntimeChannel(address)
    with pytest.raises(InvalidParameter):
        ZmqClientChannel(address)


def test_an_address_in_use_is_refused_and_a_stale_socket_file_is_not(
    runtime: ZmqRuntimeChannel,
) -> None:
    with pytest.raises(InvalidParameter, match="in use"):
        ZmqRuntimeChannel(runtime.address)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as other:
        port = other.bind_to_random_port("tcp://127.0.0.1")
        with pytest.raises(InvalidParameter, match="in use"):
            ZmqRuntimeChannel(f"tcp://127.0.0.1:{port}")


def test_what_a_killed_runtime_left_behind_can_be_bound_again(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/socket"
    with peer("runtime", address) as process:
        wait_ready(process)
    assert (tmp_path / "socket").exists()
    ZmqRuntimeChannel(address).close()


def test_only_its_owner_may_connect_to_an_ipc_socket(runtime: ZmqRuntimeChannel) -> None:
    mode = os.stat(runtime.address.removeprefix("ipc://")).st_mode
    assert stat.S_IMODE(mode) & 0o077 == 0


def test_keys_let_in_the_listed_client_and_nobody_else() -> None:
    server_public, server_secret = zmq.curve_keypair()
    listed_public, listed_secret = zmq.curve_keypair()
    other_public, other_secret = zmq.curve_keypair()
    server = CurveServer(server_public, server_secret, frozenset([listed_public]))
    runtime = ZmqRuntimeChannel("tcp://127.0.0.1:*", server)
    try:
        listed = ZmqClientChannel(
            runtime.address, keys=CurveClient(listed_public, listed_secret, server_public)
        )
        listed.send([HELLO])
        assert hear(runtime, 5.0) == [HELLO]
        other = ZmqClientChannel(
            runtime.address, keys=CurveClient(other_public, other_secret, server_public)
        )
        plain = ZmqClientChannel(runtime.address)
        for stranger in (other, plain):
            stranger.send([HELLO])
            with pytest.raises(RuntimeGone):
                stranger.receive(5.0)
            stranger.close()
        assert hear(runtime, 0.2) == []
        listed.close()
    finally:
        runtime.close()


def test_secrets_are_not_printed() -> None:
    public, secret = zmq.curve_keypair()
    assert secret.decode() not in repr(CurveServer(public, secret, frozenset()))
    assert secret.decode() not in repr(CurveClient(public, secret, public))
