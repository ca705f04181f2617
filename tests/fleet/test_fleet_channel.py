"""How replies come from a fleet's replicas to its client: in order, one list at a time, on the thread
that has read them.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from lmprog import wire
from lmprog.errors import InvalidParameter, RuntimeGone
from lmprog.fleet import fleet_channel
from lmprog.fleet.fleet_channel import FleetChannel
from lmprog.fleet.members import (
    FORGET_SECONDS,
    FixedMembers,
    Member,
    NamedMembers,
    members_at,
)
from lmprog.launch import Connection
from lmprog.transport import ReplyReader
from tests.fleet.replicas import WELCOME

PATIENCE = 60.0
LAST = 1000
"""A call that a test asks last."""


class Wire:
    """A connection whose replies the test gives; `None` is the runtime's end."""

    info = WELCOME

    def __init__(self) -> None:
        self.sent: queue.Queue[wire.Op] = queue.Queue()
        self.replies: queue.Queue[wire.Reply | None] = queue.Queue()

    def send(self, ops: Sequence[wire.Op]) -> None:
        for op in ops:
            if not isinstance(op, wire.Describe):
                self.sent.put(op)

    def receive(self, timeout: float) -> list[wire.Reply]:
        try:
            reply = self.replies.get(timeout=timeout)
        except queue.Empty:
            return []
        if reply is None:
            raise RuntimeGone("the runtime ended")
        return [reply]

    def close(self) -> None:
        self.replies.put(None)

    def until_asked(self, kind: type[Any]) -> Any:
        while not isinstance(op := self.sent.get(timeout=PATIENCE), kind):
            pass
        return op


class Places:
    def __init__(self, wires: Sequence[Wire]) -> None:
        self.size = len(wires)
        self._members = [
            Member(f"replica-{number}", lambda one=one: one)  # type: ignore[misc]
            for number, one in enumerate(wires)
        ]

    def current(self) -> Sequence[Member]:
        return self._members

    def end(self, name: str, why: str, grace: float) -> None:
        time.sleep(0.001)

    def close(self, grace: float) -> bool:
        return True


@pytest.fixture
def wires() -> list[Wire]:
    return [Wire(), Wire()]


@pytest.fixture
def channel(wires: list[Wire]) -> Iterator[FleetChannel]:
    made = FleetChannel(Places(wires))
    assert made.wait_for(len(wires), PATIENCE)
    yield made
    made.close()


class Listener:
    """What a client is given, and by which threads."""

    def __init__(self, channel: FleetChannel) -> None:
        self.heard: list[wire.Reply] = []
        self.threads: list[str] = []
        self.overlaps = 0
        self.ended = threading.Event()
        self._inside = threading.Lock()
        self.reader = ReplyReader(channel, self.take, lambda _: self.ended.set(), name="client")

    def take(self, replies: list[wire.Reply]) -> None:
        self.overlaps += not self._inside.acquire(blocking=False)
        self.heard += replies
        self.threads.append(threading.current_thread().name)
        self._inside.release()
        if any(getattr(reply, "call", None) == LAST for reply in replies):
            self.ended.set()

    def wait(self) -> None:
        assert self.ended.wait(PATIENCE)


def open_branch(channel: FleetChannel, wires: list[Wire], branch: int) -> Wire:
    """A program of one branch that some replica has, with one call of the branch's number."""
    channel.send([wire.Open(branch), wire.Read(branch, branch)])
    while True:
        for one in wires:
            if not one.sent.empty():
                one.until_asked(wire.Read)
                return one


def test_replies_are_given_on_the_thread_that_read_them(
    channel: FleetChannel, wires: list[Wire]
) -> None:
    listener = Listener(channel)
    home = open_branch(channel, wires, LAST)
    home.replies.put(wire.TextIs(LAST, "text", 0))
    listener.wait()
    assert listener.threads == [f"lmprog-replica-{wires.index(home)}"]


def test_replies_of_two_replicas_are_given_one_list_at_a_time(
    channel: FleetChannel, wires: list[Wire]
) -> None:
    listener = Listener(channel)
    homes = {branch: open_branch(channel, wires, branch) for branch in range(1, 201)}
    assert len(set(map(id, homes.values()))) == 2
    for branch, home in homes.items():
        home.replies.put(wire.TextIs(branch, "", 0))
    while len(listener.heard) < len(homes):
        time.sleep(0.001)
    assert listener.overlaps == 0
    for one in wires:
        own = [branch for branch, home in homes.items() if home is one]
        assert [reply.call for reply in listener.heard if reply.call in set(own)] == own  # type: ignore[union-attr]


def test_a_client_may_send_when_it_is_given_a_reply(
    channel: FleetChannel, wires: list[Wire]
) -> None:
    sent = threading.Event()

    def take(replies: list[wire.Reply]) -> None:
        channel.send([wire.Open(2), wire.Read(2, 2)])
        sent.set()

    ReplyReader(channel, take, lambda _: None, name="client")
    open_branch(channel, wires, 1).replies.put(wire.TextIs(1, "", 0))
    assert sent.wait(PATIENCE)


def test_what_no_replica_has_sent_comes_on_the_clients_reader(wires: list[Wire]) -> None:
    """Here: every program fails, since the fleet's model is gone."""
    channel = FleetChannel(Places(wires))
    listener = Listener(channel)
    open_branch(channel, wires, LAST)
    for one in wires:
        one.close()
    while channel._links:
        time.sleep(0.001)
    channel.begin_anew()
    listener.wait()
    assert listener.threads == ["client"]
    channel.close()


def test_receive_gives_replies_and_then_the_end(channel: FleetChannel, wires: list[Wire]) -> None:
    assert channel.receive(0.0) == []
    open_branch(channel, wires, 1).replies.put(wire.TextIs(1, "text", 0))
    assert channel.receive(PATIENCE) == [wire.TextIs(1, "text", 0)]
    channel.close()
    with pytest.raises(RuntimeGone):
        channel.receive(PATIENCE)


def test_members_of_a_name_come_and_go_with_its_addresses(caplog: pytest.LogCaptureFixture) -> None:
    found: list[str] | None = ["10.0.0.1", "::1"]
    now = 0.0

    def resolve(host: str) -> list[str]:
        if found is None:
            raise OSError(f"{host} is not known")
        return found

    members = NamedMembers("replicas", 7000, None, resolve, lambda: now)
    members.close(0.0)  # from here on it is asked by hand
    members.look()
    first = members.current()
    assert [one.name for one in first] == ["tcp://10.0.0.1:7000", "tcp://[::1]:7000"]
    found = ["10.0.0.1", "10.0.0.2"]
    members.look()
    assert len(members.current()) == 3, "a name server may forget for a moment"
    assert members.size == 2
    now = FORGET_SECONDS
    members.look()
    assert [one.name for one in members.current()] == ["tcp://10.0.0.1:7000", "tcp://10.0.0.2:7000"]
    assert members.current()[0] is first[0], "it is the same replica"
    found = None
    members.look()
    members.look()
    assert len(members.current()) == 2, "where nobody answers all stay"
    assert caplog.text.count("the name replicas has no addresses") == 1


def test_a_name_of_other_machines_needs_keys_and_a_port() -> None:
    with pytest.raises(InvalidParameter, match="can be reached from other machines"):
        members_at(["dns:replicas:7000"])
    with pytest.raises(InvalidParameter, match="lacks a host or a port"):
        members_at(["dns:replicas"])


def test_why_a_member_cannot_be_reached_is_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_channel, "DIAL_SECONDS", 0.0)
    monkeypatch.setattr(fleet_channel, "LOOK_SECONDS", 0.001)
    tried = threading.Semaphore(0)

    def dial() -> Connection:
        tried.release()
        raise RuntimeGone("wrong keys")

    members = FixedMembers(["tcp://127.0.0.1:1"])
    members._members = [Member("far", dial)]
    channel = FleetChannel(members, timeout=None)
    for _ in range(3):
        assert tried.acquire(timeout=60.0)
    channel.close()
    assert caplog.text.count("replica far cannot be reached yet: wrong keys") == 1
