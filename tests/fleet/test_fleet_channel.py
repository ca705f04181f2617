"""How replies come from a fleet's replicas to its client: in order, one list at a time, on the thread
that has read them.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from lmprog import wire
from lmprog.errors import InvalidParameter, RuntimeGone
from lmprog.fleet import fleet_channel
from lmprog.fleet.fleet_channel import FleetChannel
from lmprog.fleet.local_members import LocalMembers
from lmprog.fleet.members import (
    FORGET_SECONDS,
    FixedMembers,
    JoinedMembers,
    Member,
    NamedMembers,
    members_at,
)
from lmprog.launch import Connection
from lmprog.launch.restarts import HangTimeouts
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


class Updated:
    """A fleet of which `there` are there, in virtual time; `ended` are those that it has ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, there: int, size: int) -> None:
        monkeypatch.setattr(fleet_channel, "LOOK_SECONDS", 3600.0)
        self.wires = [Wire() for _ in range(there)]
        self.places = Places(self.wires)
        self.places.size = size
        self.ended: list[str] = []
        monkeypatch.setattr(self.places, "end", lambda name, why, grace: self.ended.append(name))
        never = HangTimeouts(math.inf, math.inf, math.inf, math.inf)
        self.channel = FleetChannel(self.places, hang=never)
        assert self.channel.wait_for(there, PATIENCE)

    def after(self, seconds: float) -> list[str]:
        """What has been ended since, in order."""
        self.channel._now += seconds
        self.ended.clear()
        self.channel._look_once()
        return sorted(set(self.ended))

    def comes_back(self, number: int) -> None:
        """With the model of the update."""
        self.wires[number].close()
        until(lambda: f"replica-{number}" not in self.channel.loads)
        wire_ = Wire()
        wire_.info = msgspec.structs.replace(WELCOME, generation=1)
        member = Member(f"replica-{number}", lambda: wire_)  # type: ignore[arg-type,return-value]
        self.places._members[number] = member
        self.channel._look_once()
        until(lambda: f"replica-{number}" in self.channel.loads)


def until(happens: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.002)


class Answering(Wire):
    """It tells its figures when it is asked, until it `is_silent`."""

    is_silent = False

    def send(self, ops: Sequence[wire.Op]) -> None:
        super().send(ops)
        for op in ops:
            if isinstance(op, wire.Describe) and not self.is_silent:
                self.replies.put(wire.Described(op.call, {}, {}))


@pytest.mark.parametrize("looks_before", range(4))
def test_nothing_new_goes_to_a_replica_that_has_been_silent_for_two_seconds(
    monkeypatch: pytest.MonkeyPatch, looks_before: int
) -> None:
    """Whenever it was asked last; what had waited there by then is elsewhere, too."""
    look_seconds = fleet_channel.LOOK_SECONDS
    monkeypatch.setattr(fleet_channel, "LOOK_SECONDS", 3600.0)
    wires = [Answering(), Answering()]
    channel = FleetChannel(Places(wires))
    assert channel.wait_for(2, PATIENCE)
    links = [channel._links[f"replica-{number}"] for number in range(2)]

    def look() -> None:
        channel._now += look_seconds
        channel._looked = time.monotonic()  # of our time none passes
        channel._look_once()
        until(lambda: all(one.is_silent or not link._is_asked for one, link in both))

    both = list(zip(wires, links, strict=True))
    for _ in range(looks_before):
        look()
    wires[0].is_silent = True
    channel.send([op for one in range(1, 9) for op in (wire.Open(one), wire.Read(one, one))])
    assert channel.loads["replica-0"] > 0
    began = channel._now
    while channel._now + look_seconds <= began + 2.0:
        look()
    channel.send([op for one in range(9, 41) for op in (wire.Open(one), wire.Read(one, one))])
    assert channel.loads["replica-0"] <= 8, "nothing new"
    assert channel.loads["replica-1"] >= 32
    look()
    look()
    assert channel.loads == {"replica-0": 0, "replica-1": 40}
    channel.close()


def test_an_update_waits_for_a_missing_replica_so_long_and_then_goes_on_without_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Updated(monkeypatch, there=2, size=3)
    fleet.channel.replace_all(1, 100.0)
    assert fleet.after(0.0) == fleet.after(99.0) == []
    assert fleet.after(2.0) == ["replica-0"]
    assert "the update goes on without 1 of 3 replicas" in caplog.text
    fleet.comes_back(0)
    assert fleet.after(2.0) == fleet.after(50.0) == []
    assert fleet.after(51.0) == ["replica-1"], "the new model is known to serve"
    fleet.comes_back(1)
    assert fleet.after(500.0) == []
    fleet.channel.close()


@pytest.mark.parametrize(("there", "size"), [(1, 2), (3, 3)])
def test_an_update_whose_model_cannot_be_started_leaves_the_others_as_they_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, there: int, size: int
) -> None:
    """Neither the last replica is ended, nor a second one before the new model serves."""
    fleet = Updated(monkeypatch, there, size)
    fleet.channel.replace_all(1, 100.0)
    fleet.channel._look_once()
    if there == size:
        assert fleet.ended == ["replica-0"]
        del fleet.places._members[0]
        fleet.wires[0].close()
        until(lambda: "replica-0" not in fleet.channel.loads)
    assert fleet.after(0.0) == fleet.after(99.0) == []
    assert "the update has stopped" not in caplog.text
    assert fleet.after(2.0) == fleet.after(50.0) == []
    assert caplog.text.count("the update has stopped") == 1
    assert fleet.after(1000.0) == []
    fleet.channel.close()


def test_an_update_ends_a_replica_whose_programs_can_neither_end_nor_be_moved(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Updated(monkeypatch, there=1, size=1)
    fleet.channel.send([wire.Open(1), wire.Read(1, 1)])
    fleet.channel.replace_all(1, 100.0)
    assert fleet.after(0.0) == fleet.after(101.0) == fleet.after(8.0) == []
    assert fleet.after(3.0) == ["replica-0"]
    assert "did not end in time for the update" in caplog.text
    fleet.channel.close()


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


def test_addresses_and_several_names_are_one_fleet_together() -> None:
    """So one gateway has the models of several services."""
    named = [
        NamedMembers(
            host, 7000, None, lambda host: [{"small": "10.0.0.1", "large": "10.0.0.2"}[host]]
        )
        for host in ("small", "large")
    ]
    joined = JoinedMembers([FixedMembers(["tcp://127.0.0.1:7001"]), *named])
    assert joined.close(0.0)
    for one in named:
        one.look()
    addresses = ["tcp://127.0.0.1:7001", "tcp://10.0.0.1:7000", "tcp://10.0.0.2:7000"]
    assert [one.name for one in joined.current()] == addresses
    assert joined.size == 3
    made = members_at(["dns:127.0.0.1:7002", "tcp://127.0.0.1:7001", "dns:127.0.0.1:7003"])
    until(lambda: made.size == 3)
    ports = [one.name.rpartition(":")[2] for one in made.current()]
    assert ports == ["7001", "7002", "7003"]
    assert made.close(0.0)


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


class Ending:
    """A runtime's process that has ended, while who ends it still waits for it."""

    exit_code, alive = 0, True

    def __init__(self) -> None:
        self.is_let_go = threading.Event()

    def connect(self, client: str) -> Connection:
        raise RuntimeGone("nobody connects here")

    def close(self, grace: float) -> None:
        self.alive = False
        self.is_let_go.wait(PATIENCE)

    def log_tail(self) -> str:
        return ""

    def busy_seconds(self) -> None:
        return None


def test_a_replica_that_is_ended_on_purpose_is_no_death() -> None:
    """Whoever looks first: an update counts no restart, and its replicas wait for no delay."""
    made: list[Ending] = []

    def launch(generation: int) -> Any:
        made.append(Ending())
        return made[-1]

    members = LocalMembers(launch, 1)
    members.end("replica-1", "it was drained", 10.0)
    until(lambda: not made[0].alive)
    assert members.current() == []
    assert members.num_restarts == 0
    made[0].is_let_go.set()
    until(members.current)
    assert len(made) == 2
    assert members.num_restarts == 0
    made[1].is_let_go.set()
    members.close(0.0)
