"""The client's end of a fleet: a channel like any other, behind which programs are spread.

One thread reads each replica, one looks after who is there and whether each of them makes
progress; all of them feed the router, under one lock. Whichever thread has read a replica's replies
gives them to the client, in the order in which the router let them through. All replicas of a name
have the model of the first one, by its fingerprint (`model_lines`): another one is refused by name,
so that no program goes on with another model. One of a later generation is an update: new programs
begin with its model, and those that have begun end with theirs. Knows connections and threads; who
goes where is the router's business.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import msgspec

from lmprog import wire
from lmprog.errors import InvalidParameter, LmprogError, RuntimeGone
from lmprog.fleet.members import Member, Members
from lmprog.fleet.model_lines import ModelLines, kind_of
from lmprog.fleet.replica_link import (
    HEDGE_SECONDS,
    SILENT_SECONDS,
    ReplicaLink,
    ReplicaState,
)
from lmprog.fleet.router import WAKING_SECONDS, Router
from lmprog.launch import Connection
from lmprog.launch.restarts import LONGEST_GAP, HangTimeouts
from lmprog.transport import ReplyReader
from lmprog.transport.channel import ops_frames

log = logging.getLogger("lmprog")

LOOK_SECONDS = 0.2
"""Between two looks at who is there."""
UPDATE_SECONDS = 600.0
"""For programs to end on each replica that an update replaces."""
SETTLE_SECONDS = 1.0
"""After an update has gone over to another model, before replicas with the old one are ended: a
request may just have found that one."""
DEFAULT_SLOTS = 64
"""Programs that a replica serves well at the same time."""
DIAL_SECONDS = 0.5
"""Between two tries to reach a replica that does not answer."""
END_SECONDS = 10.0
"""Seconds for the orderly end of the runtimes that the members have started."""


class FleetChannel:
    """A `ClientChannel` over the replicas of `members`, which it owns. `info` speaks for all
    of them.
    """

    def __init__(
        self,
        members: Members,
        *,
        slots: int = DEFAULT_SLOTS,
        timeout: float | None = 60.0,
        hang: HangTimeouts | None = None,
    ) -> None:
        """Waits for the first replica. Raises RuntimeGone where none answers within `timeout`
        seconds, or the time to wake one. None: does not wait; then `wait_for` must, before anything
        else is asked.
        """
        self._members = members
        self._slots = slots
        self._hang = hang or HangTimeouts()
        self._router = Router()
        self._lock = threading.Lock()
        self._links: dict[str, ReplicaLink] = {}
        self._dialing: set[str] = set()
        self._drains: dict[str, float] = {}
        """Draining replicas, and when what is left there is moved."""
        self._now = 0.0
        self._looked = time.monotonic()
        self._heard: deque[wire.Reply] = deque()
        """For the client, in order."""
        self._take: Callable[[list[wire.Reply]], None] | None = None
        """Gives replies to the client; None while it asks for them by `receive`."""
        self._giving = threading.Lock()
        """Held by the thread that calls `_take`; never waited for by one that reads a replica."""
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Wakes the client's reader: something has come that no reading thread gives it."""
        self._closed = threading.Event()
        self._lines = ModelLines()
        self._update: tuple[int, float] = 0, UPDATE_SECONDS
        """Replicas of an earlier generation than this one are replaced, and have so many seconds.
        """
        self._renewed = 0.0
        """When the last generation began."""
        self._replaced: set[str] = set()
        """Replicas that the update ends and that are not back yet."""
        self._awaited: float | None = None
        """Since when the update waits for replicas that are missing."""
        self._troubles: dict[str, str] = {}
        """Of members that could not be reached: why, as it was told."""
        self._asleep: Mapping[str, Member] = {}
        """Members that sleep."""
        self._why_not = ""
        """Why a replica could not be reached last."""
        self._readers: list[ReplyReader] = []
        self.ended_well = True
        """What `close` found: whether everything that the members had started ended well."""
        self._looker = threading.Thread(target=self._look, name="lmprog-fleet", daemon=True)
        self._looker.start()
        has_one = timeout is None or self.wait_for(1, timeout)
        if not has_one and not (self._asleep and self.wait_for(1, WAKING_SECONDS)):
            self.close()
            raise RuntimeGone(
                f"no replica of the fleet answered within {timeout:g} seconds. {self._why_not}"
            )

    @property
    def info(self) -> wire.Welcome:
        """The first replica's greeting, with the pages of all that are up and serve its name."""
        return next(iter(self.infos.values()))

    @property
    def infos(self) -> Mapping[str, wire.Welcome]:
        """The same for each name that is served, that of who names none first."""
        with self._lock:
            firsts, pages = self._lines.firsts, dict.fromkeys(self._lines.firsts, 0)
            for link in self._links.values():
                pages[link.connection.info.served_name] += link.connection.info.num_pages
        return {
            name: msgspec.structs.replace(first, num_pages=pages[name] or first.num_pages)
            for name, first in firsts.items()
        }

    @property
    def loads(self) -> dict[str, int]:
        """Open programs of this client, by replica."""
        with self._lock:
            return self._router.loads

    @property
    def num_moved(self) -> int:
        """Programs that were built again, because their replica had died or was drained."""
        return self._router.num_moved

    @property
    def size(self) -> int:
        """How many replicas there should be."""
        return self._members.size

    def wait_for(self, replicas: int, timeout: float = 60.0) -> bool:
        """Waits until so many are connected; False after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while len(self._links) < replicas and time.monotonic() < deadline:
            self._closed.wait(0.02)
        return len(self._links) >= replicas

    @property
    def refused(self) -> dict[str, str]:
        """Members that answer with another model than that of their name, and what differs."""
        with self._lock:
            return self._lines.refused

    @property
    def is_asleep(self) -> bool:
        """Whether replicas sleep that are woken by who needs them."""
        return bool(self._asleep)

    @property
    def is_stranded(self) -> bool:
        """Whether all members that there should be have another model than one of the fleet's: none
        is left that could go on with its programs.
        """
        with self._lock:
            return bool(self._stranded(self._members.current()))

    def settle(self, timeout: float) -> None:
        """Waits until each member has been tried, `timeout` seconds at most. From then on programs
        that name no model get that of the first member in order which has answered.
        """
        deadline = time.monotonic() + timeout
        names = [one.name for one in self._members.current() if one.wake is None]
        while time.monotonic() < deadline:
            if self._lines.tried | self._troubles.keys() >= set(names):
                break
            self._closed.wait(0.01)
        with self._lock:
            self._lines.prefer(names)
            self._router.default = self._lines.default

    def check_models(self) -> None:
        """Raises InvalidParameter where a member has another model than the first of its name."""
        with self._lock:
            self._lines.check()

    def begin_anew(self) -> None:
        """Lets names whose model is gone take that of the next replica that answers. Their open
        programs fail.
        """
        error = RuntimeGone("the fleet's model was replaced, and this program had begun with it")
        with self._lock:  # somebody with the fleet's model may be back
            for name in self._stranded(self._members.current()):
                self._router.give_up_all(name, error)
                self._lines.open(name)
            self._pass_on()

    def replicas(self) -> list[ReplicaState]:
        """Those that are connected, by name."""
        with self._lock:
            loads = self._router.loads
            return [
                link.state(loads[name], name in self._drains, self._now)
                for name, link in sorted(self._links.items())
            ]

    def drain(self, name: str, seconds: float) -> None:
        """No new program goes to the replica; what is left there after `seconds` is moved. Then a
        replica that was started here is ended and started again; one that runs elsewhere is used
        again once it has been. Raises InvalidParameter for an unknown name.
        """
        with self._lock:
            if name not in self._links:
                known = ", ".join(sorted(self._links))
                raise InvalidParameter(
                    f"there is no replica {name!r}; valid: {known}", name="replica", value=name
                )
            self._router.drain(name)
            self._drains.setdefault(name, self._now + seconds)

    @property
    def models(self) -> set[str]:
        """The digests of the models that replicas have."""
        with self._lock:
            return {link.connection.info.digest for link in self._links.values()}

    def replace_all(self, generation: int, seconds: float) -> None:
        """Replicas of earlier generations are drained, one after the other, each when all others
        are there; see `Fleet.update`.
        """
        with self._lock:
            self._update, self._awaited = (generation, seconds), None

    def send(self, ops: Sequence[wire.Op]) -> None:
        """See `ClientChannel.send`."""
        self._raise_if_closed()
        ops_frames(ops)  # what is wrong is found here, and not when it is sent to some replica
        with self._lock:
            self._router.take_ops(ops)
            self._pass_on()

    def receive(self, timeout: float) -> list[wire.Reply]:
        """See `ClientChannel.receive`."""
        self._wait(timeout)
        if replies := self._drained():
            return replies
        self._raise_if_closed()
        return []

    def deliver(self, take: Callable[[list[wire.Reply]], None], timeout: float) -> None:
        """See `DeliveringChannel.deliver`. The caller's thread gives what no replica has sent."""
        self._take = take
        self._wait(timeout)
        with self._giving:
            if replies := self._drained():
                take(replies)
        self._raise_if_closed()

    def _wait(self, timeout: float) -> None:
        """Until something is there for the client's reader, or `timeout` seconds."""
        deadline = time.monotonic() + timeout
        with contextlib.suppress(queue.Empty):
            while not self._heard and not self._closed.is_set():
                self._calls.get(timeout=max(deadline - time.monotonic(), 0.0))

    def _give(self) -> None:
        """Gives the client what has come; the lock is not held, since the client may send."""
        if self._take is None:
            self._calls.put(None)
            return
        while self._heard and self._giving.acquire(blocking=False):
            try:
                while replies := self._drained():
                    self._take(replies)
            finally:
                self._giving.release()

    def _drained(self) -> list[wire.Reply]:
        """Takes all out of `_heard`; one thread at a time."""
        return [self._heard.popleft() for _ in range(len(self._heard))]

    def _raise_if_closed(self) -> None:
        if self._closed.is_set():
            raise RuntimeGone("the fleet's channel was closed")

    def close(self, grace: float = END_SECONDS) -> None:
        """Closes all connections, and ends what the members started. Safe to repeat."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._calls.put(None)
        self._looker.join()
        with self._lock:
            self._links.clear()
            readers = list(self._readers)
        for reader in readers:
            reader.stop()
        for reader in readers:
            reader.join()  # each has closed its connection
        self.ended_well = self._members.close(grace)

    # --- who is there ---------------------------------------------------------------------------

    def _look(self) -> None:
        """Body of the thread that looks after who is there."""
        while not self._closed.is_set():
            self._look_once()
            self._closed.wait(LOOK_SECONDS)

    def _look_once(self) -> None:
        members = {one.name: one for one in self._members.current()}
        for link, why in self._check(members):
            self._lose(link, why)
            self._members.end(link.member.name, why, 0.0)
        self._asleep = {name: one for name, one in members.items() if one.wake is not None}
        for name, member in members.items():
            is_known = name in self._links or name in self._dialing
            if not is_known and member.wake is None:
                self._dialing.add(name)
                threading.Thread(
                    target=self._connect, args=(member,), name=f"lmprog-{name}", daemon=True
                ).start()
        with self._lock:
            self._go_on_updating()
            drained, overdue = self._finish_drains()
            for name in self._stranded(list(members.values())):
                self._router.strand(name, self._lines.no_such_model(name))
            for name in self._lines.forget(members.keys(), self._now):
                log.warning("nobody serves %r any more", name)
                self._router.forget(name, RuntimeGone(f"nobody serves {name!r} any more"))
            waited_for = self._router.waited_for
            served = {name: self._lines.served_by(name) for name in self._asleep}
            # one that has never answered may serve whatever is waited for
            asleep = {at: waited_for if one is None else {one} for at, one in served.items()}
            self._router.tick(set().union(*asleep.values()))
            self._pass_on()
        for name, member in self._asleep.items():
            if member.wake is not None and asleep[name] & waited_for:
                member.wake()
        for link in overdue:
            self._lose(link, "its programs did not end in time for the update", died=False)
        for name in (*drained, *(one.member.name for one in overdue)):
            self._members.end(name, "it was drained", END_SECONDS)

    def _check(self, members: Mapping[str, Member]) -> list[tuple[ReplicaLink, str]]:
        """Replicas that must be given up, and why."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, LONGEST_GAP), now
        found = []
        with self._lock:
            self._now += passed
            for name, link in self._links.items():
                member = members.get(name)
                is_same = member is not None and member.life == link.member.life
                why = link.look(self._now) if is_same else "its process ended"
                if why is not None:
                    found.append((link, why))
                silent = link.is_silent(self._now)
                self._router.take_figures(name, link.figures, is_silent=silent)
                if link.silence(self._now) > SILENT_SECONDS + HEDGE_SECONDS:
                    self._router.hedge(name)
        return found

    def _go_on_updating(self) -> None:
        """Drains the next replica of an earlier generation. The lock is held."""
        generation, seconds = self._update
        left = [
            name
            for name, link in sorted(self._links.items())
            if link.connection.info.generation < generation
        ]
        self._replaced -= self._links.keys() - self._drains.keys()
        if self._drains or not left or self._now < self._renewed:
            return
        if len(self._links) >= self.size:
            self._awaited = None
        elif not self._goes_on_without_all(len(left), seconds):
            return
        self._router.drain(left[0])
        self._drains[left[0]] = self._now + seconds
        self._replaced.add(left[0])

    def _goes_on_without_all(self, num_left: int, seconds: float) -> bool:
        """Whether the update no longer waits for replicas that are missing, after `seconds`. It
        always waits where the last replica would be ended, or a second one before any serves the
        new model: that may be what cannot be started. The lock is held.
        """
        if self._awaited is None:
            self._awaited = self._now
        if self._now - self._awaited < seconds:
            return False
        self._awaited = self._now  # the next wait, or when it is told again
        missing = self.size - len(self._links)
        is_proven = num_left < len(self._links)
        if len(self._links) == 1 or (self._replaced and not is_proven):
            log.error(
                "the update has stopped: %d of %d replicas have not come back within %g seconds, "
                "and %d keep the model that they have",
                *(missing, self.size, seconds, num_left),
            )
            return False
        log.warning(
            "the update goes on without %d of %d replicas, which were not there for %g seconds",
            *(missing, self.size, seconds),
        )
        return True

    def _finish_drains(self) -> tuple[list[str], list[ReplicaLink]]:
        """Moves what is left where the time is over; names those that are empty now, and those
        that an update waits for though some programs there can neither end nor be moved. The lock
        is held.
        """
        for name, until in self._drains.items():
            if self._now >= until:
                self._router.evacuate(name)
                self._retire(self._links[name], is_ending=True)
        loads = self._router.loads
        overdue = [
            self._links[name]
            for name, until in self._drains.items()
            if loads[name] and name in self._replaced and self._now >= until + END_SECONDS
        ]
        return [name for name in self._drains if not loads[name]], overdue

    def _connect(self, member: Member) -> None:
        """Body of a thread: a replica may take long to answer."""
        try:
            connection = member.dial()
        except LmprogError as error:
            if self._troubles.get(member.name) != str(error):  # it is tried twice a second
                log.warning("replica %s cannot be reached yet: %s", member.name, error)
            self._why_not = self._troubles[member.name] = str(error)
            self._closed.wait(DIAL_SECONDS)
            self._dialing.discard(member.name)
            return
        if not self._take_replica(member, connection):
            connection.close()
            if self._closed.is_set():
                return
            self._members.end(member.name, "it has another model than the fleet", 0.0)
            self._closed.wait(DIAL_SECONDS)
            self._dialing.discard(member.name)

    def _take_replica(self, member: Member, connection: Connection) -> bool:
        """False where it is not to be used: it has another model, or the fleet is closed."""
        with self._lock:
            info = connection.info
            is_known = info.served_name in self._lines.firsts
            is_new = not self._lines.is_current(info)
            if self._closed.is_set() or not self._lines.admits(member.name, info):
                return False
            link = ReplicaLink(member, connection, self._hang, self._now)
            self._links[member.name] = link
            self._troubles.pop(member.name, None)
            self._dialing.discard(member.name)
            self._router.default = self._lines.default
            if is_new and self._lines.is_current(info):
                self._router.renew(info)
                if is_known:
                    self._renewed = self._now + SETTLE_SECONDS
            self._router.join(member.name, info, self._slots)
            self._pass_on()
            self._readers = [one for one in self._readers if not one.has_ended]
            self._readers.append(
                ReplyReader(
                    connection,
                    lambda replies: self._take_in(link, replies),
                    lambda error: self._lose(link, str(error)),
                    name=f"lmprog-{member.name}",
                )
            )
        log.info("replica %s serves", member.name)
        return True

    def _stranded(self, members: Sequence[Member]) -> list[str]:
        """Names whose model no replica has or may still have. The lock is held."""
        return self._lines.stranded({one.name for one in members}, self._links.keys(), self.size)

    def _take_in(self, link: ReplicaLink, replies: list[wire.Reply]) -> None:
        """Replies of a replica, on its reading thread."""
        for reply in replies:
            if isinstance(reply, wire.Failed) and reply.call is None:
                self._lose(link, reply.message, died=reply.code != RuntimeGone.code)
                return
        with self._lock:
            if self._links.get(link.member.name) is link:
                self._router.take_replies(link.member.name, link.without_own(replies, self._now))
                self._pass_on(is_given=True)
        self._give()

    def _lose(self, link: ReplicaLink, why: str, *, died: bool = True) -> None:
        """A replica is gone; whoever notices first moves its programs."""
        name = link.member.name
        with self._lock:
            if self._links.get(name) is not link:
                return
            del self._links[name]
            self._drains.pop(name, None)
            began, moved = time.perf_counter(), self._router.num_moved
            self._router.lose(name, died=died)
            self._retire(link)
            self._pass_on()
            moved = self._router.num_moved - moved
            took = 1e3 * (time.perf_counter() - began)
        log.warning("replica %s is lost; %d programs moved in %.1f ms: %s", name, moved, took, why)
        link.connection.close()

    def _retire(self, link: ReplicaLink, *, is_ending: bool = False) -> None:
        """Programs of an earlier model fail where its last replica is gone, or `is_ending`, since
        no other will have it. The lock is held.
        """
        info = link.connection.info
        others = {
            kind_of(one.connection.info)
            for name, one in self._links.items()
            if name not in self._drains
        }
        has_ended = is_ending or link.member.name not in self._links
        if has_ended and not self._lines.is_current(info) and kind_of(info) not in others:
            self._router.retire(kind_of(info), RuntimeGone.of_another_model())

    def _pass_on(self, *, is_given: bool = False) -> None:
        """Sends what the router wants sent, and has the client's reader called for replies unless
        the caller gives them (`_give`). The lock is held.
        """
        while self._router.outgoing:
            name, ops = self._router.outgoing.popleft()
            link = self._links.get(name)
            if link is None:
                continue
            try:
                link.connection.send(ops)
            except RuntimeGone:
                log.debug("replica %s is gone while it is written to", name)  # its reader moves all
            except LmprogError as error:
                log.error("a frame for replica %s could not be sent: %s", name, error)
                self._router.refuse(ops, error)
        if self._router.replies:
            self._heard.extend(self._router.replies)
            self._router.replies.clear()
            if not is_given:
                self._calls.put(None)
