"""A gateway's runtimes where there are several: one channel to all of them, behind its link.

The fleet itself starts, watches and replaces its replicas and moves programs between them; here it
is opened and ended, and what it knows is given to the gateway. Knows no programs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from lmprog import wire
from lmprog.errors import Detail, RuntimeGone
from lmprog.fleet.fleet_channel import FleetChannel
from lmprog.fleet.local_members import LocalMembers, launches, next_generation
from lmprog.fleet.members import Members, members_at
from lmprog.fleet.questions import summed
from lmprog.fleet.replica_link import ReplicaState
from lmprog.launch import Connection
from lmprog.launch.restarts import HangTimeouts
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.supervision.supervised_runtime import in_thread
from lmprog.transport import client_keys

log = logging.getLogger("lmprog.server")

TICK = 0.2
"""Seconds between two looks at what has been restarted."""
HISTORY_TICKS = 25
"""Looks between two at the figures of all, for their history."""
SETTLE_SECONDS = 1.0
"""For the other replicas to answer, too: the first in order has the model of who names none."""
LOOK_SECONDS = 1.0
"""While the first replica is waited for: how often it is looked whether the server stops."""


class _GatewaysEnd:
    """The fleet's channel as the link's: when the link closes it, the fleet goes on."""

    def __init__(self, channel: FleetChannel) -> None:
        self._channel = channel
        self._is_closed = False

    def send(self, ops: Sequence[wire.Op]) -> None:
        if self._is_closed:
            raise RuntimeGone("The server is stopping.")
        self._channel.send(ops)

    def receive(self, timeout: float) -> list[wire.Reply]:
        if self._is_closed:
            raise RuntimeGone("The server is stopping.")
        return self._channel.receive(timeout)

    def deliver(self, take: Callable[[list[wire.Reply]], None], timeout: float) -> None:
        if self._is_closed:
            raise RuntimeGone("The server is stopping.")
        self._channel.deliver(take, timeout)

    def close(self) -> None:
        self._is_closed = True


class SupervisedFleet:
    """Owner of the fleet; `stop` ends it, and `run`. Belongs to the event loop's thread."""

    def __init__(
        self, members: Callable[[], Members], gateway: Gateway, hang: HangTimeouts
    ) -> None:
        """`members` is called in a thread; it may start the first replica, and raise why it cannot.
        Where it started none, replicas are waited for without end.
        """
        self._make_members = members
        self._gateway = gateway
        self._hang = hang
        self._members: Members | None = None
        self._channel: FleetChannel | None = None
        self._num_restarts = 0
        self._up = asyncio.Event()
        self._stopped = asyncio.Event()
        self._stopping = threading.Event()
        gateway.fleet = self
        gateway.is_responsive = self._is_responsive

    async def run(self) -> None:
        """Opens the fleet and looks after it until `stop`. Raises why it could not be opened."""
        began = time.monotonic()
        opening = asyncio.create_task(in_thread(self._open))
        stopped = asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait({opening, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                return  # the thread closes what it opens
            channel = opening.result()
            if channel is None:
                return
            self._channel = channel
            self._begin(channel)
            self._up.set()
            log.info("the first replica serves after %.1f s", time.monotonic() - began)
            ticks = 0
            while not self._stopped.is_set():
                self._count_restarts()
                self._gateway.link.renew(channel.infos)
                if channel.is_stranded:
                    await self._begin_anew(channel)
                    continue
                if ticks % HISTORY_TICKS == 0:
                    self._gateway.meters.history.see(self.figures())
                ticks += 1
                await asyncio.wait({stopped}, timeout=TICK)
        finally:
            stopped.cancel()
            opening.cancel()

    async def first_up(self) -> Mapping[str, Detail]:
        """Waits for the first replica; what it says of itself, where it was started here."""
        await self._up.wait()
        if isinstance(self._members, LocalMembers):
            for process in self._members.processes.values():
                return {**process.facts, "replicas": self._members.size}
        return {"replicas": self.size}

    async def stop(self, grace: float) -> bool:
        """Ends the fleet and what it started, by force after `grace` seconds. True where all of it
        ended well.
        """
        self._stopping.set()
        self._stopped.set()
        self._gateway.link.close()  # on purpose: nobody is to wonder why it is lost
        channel = self._channel
        if channel is None:
            return True
        await in_thread(lambda: channel.close(grace))
        return channel.ended_well

    # --- for the gateway --------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """How many replicas there should be."""
        return 0 if self._channel is None else self._channel.size

    @property
    def num_moved(self) -> int:
        """Programs and requests that were moved from one replica to another."""
        return 0 if self._channel is None else self._channel.num_moved

    @property
    def refused(self) -> Mapping[str, str]:
        """Replicas that have another model than this server's, and what differs."""
        return {} if self._channel is None else self._channel.refused

    def replicas(self) -> Sequence[ReplicaState]:
        """Those that are connected now."""
        return () if self._channel is None else self._channel.replicas()

    def figures(self) -> Mapping[str, float]:
        """The figures of all of them as those of one runtime."""
        return summed([one.figures for one in self.replicas()])

    def drain(self, name: str, seconds: float) -> None:
        """See `FleetChannel.drain`."""
        if self._channel is None:
            raise RuntimeGone("the fleet is starting; try again in a moment")
        self._channel.drain(name, seconds)

    @property
    def models(self) -> Collection[str]:
        """The digests of the models that programs can go on with."""
        return () if self._channel is None else self._channel.models

    def update(self, seconds: float) -> None:
        """See `Fleet.update`."""
        if self._channel is None or self._members is None:
            raise RuntimeGone("the fleet is starting; try again in a moment")
        self._channel.replace_all(next_generation(self._members), seconds)

    # --- inside -----------------------------------------------------------------------------------

    def _is_responsive(self) -> bool:
        """Replicas that sleep are ready, too: the first request wakes them."""
        is_asleep = self._channel is not None and self._channel.is_asleep
        return is_asleep or any(one.is_responsive for one in self.replicas())

    async def _begin_anew(self, channel: FleetChannel) -> None:
        """All replicas of a name have another model than this server began with: from now on it is
        the server's, as that of a single runtime that was started again. What was under way fails;
        other models go on.
        """
        log.error("the model was replaced: %s", channel.refused)
        if channel.replicas():
            channel.begin_anew()
            await asyncio.sleep(TICK)
            return
        self._gateway.link.replace(None)
        channel.begin_anew()
        while not await in_thread(lambda: channel.wait_for(1, LOOK_SECONDS)):
            if self._stopped.is_set():
                return
        self._begin(channel)

    def _begin(self, channel: FleetChannel) -> None:
        self._gateway.link.replace(Connection(_GatewaysEnd(channel), channel.info))
        self._gateway.link.renew(channel.infos)

    def _open(self) -> FleetChannel | None:
        """In a thread. None where the server stops meanwhile."""
        self._members = self._make_members()
        channel = FleetChannel(self._members, timeout=None, hang=self._hang)
        while not self._stopping.is_set():
            if channel.wait_for(1, LOOK_SECONDS):
                channel.settle(SETTLE_SECONDS)
                return channel
        channel.close(0.0)
        return None

    def _count_restarts(self) -> None:
        if isinstance(self._members, LocalMembers):
            while self._num_restarts < self._members.num_restarts:
                self._num_restarts += 1
                self._gateway.meters.restarted()


def supervised(
    members: Callable[[], Members],
) -> Callable[[Gateway, HangTimeouts], SupervisedFleet]:
    """A fleet of any members; see `SupervisedFleet`."""
    return lambda gateway, hang: SupervisedFleet(members, gateway, hang)


def several_runtimes(
    models: Mapping[str, str], replicas: int, options: Mapping[str, Any]
) -> Callable[[Gateway, HangTimeouts], SupervisedFleet]:
    """`replicas` of each model, which are started here; see `launches`."""
    launch = launches(models, replicas, options)
    return supervised(lambda: LocalMembers(launch, replicas))


def joined_runtimes(
    addresses: Sequence[str], keys: str | None
) -> Callable[[Gateway, HangTimeouts], SupervisedFleet]:
    """Runtimes that run already, and are nobody's here; `keys` is a folder. Raises
    InvalidParameter for a wrong address or wrong keys.
    """
    members = members_at(addresses, client_keys(keys))
    return supervised(lambda: members)
