"""One connected replica as its fleet sees it: its connection, its figures, its progress.

Asks for figures with a call of its own, beside those of programs. Knows no programs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lmprog import wire
from lmprog.errors import RuntimeGone
from lmprog.fleet.members import Member
from lmprog.launch import Connection
from lmprog.launch.restarts import HangTimeouts, ProgressWatch

ASK_SECONDS = 0.5
"""Between two questions for figures."""
SILENT_SECONDS = 0.5
"""An answer that is late by more: the replica hangs, or is busy with a long step."""
HEDGE_SECONDS = 1.0
"""By so much more: what waits there is asked elsewhere."""
FIGURES_CALL = 2**53
"""The largest number of a call; those of programs count from 1."""


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """A connected replica. `programs` are those of this client; `figures` are the runtime's own."""

    name: str
    programs: int
    is_draining: bool
    is_responsive: bool
    figures: Mapping[str, float]
    generation: int = 0
    served_name: str = ""


class ReplicaLink:
    """Times are the fleet's. Not thread-safe: its fleet's lock is held."""

    def __init__(
        self, member: Member, connection: Connection, timeouts: HangTimeouts, now: float
    ) -> None:
        self.member = member
        self.connection = connection
        self.figures: Mapping[str, float] = {}
        """The newest; empty before the first."""
        cpu = None if member.pulse is None else member.pulse() or 0.0
        self._watch = ProgressWatch(timeouts, now, cpu)
        self._is_asked = False
        self._asked = now
        self._next_ask = now
        self._looked = now

    def look(self, now: float) -> str | None:
        """Asks for figures where that is due. Why the replica must be given up; None: nothing."""
        passed, self._looked = now - self._looked, now
        if self.member.pulse is not None:
            cpu = self.member.pulse()
            if cpu is None:
                return "its process ended"
            self._watch.take_pulse(cpu, now, passed)
        if not self._is_asked and now >= self._next_ask:
            self._is_asked, self._asked, self._next_ask = True, now, now + ASK_SECONDS
            try:
                self.connection.send([wire.Describe(FIGURES_CALL)])
            except RuntimeGone as error:
                return str(error)
        return self._watch.trouble(now)

    def is_silent(self, now: float) -> bool:
        """Whether it has not answered for a while; not yet a reason to give it up."""
        return self.silence(now) > SILENT_SECONDS

    def silence(self, now: float) -> float:
        """Seconds for which an answer has been waited."""
        return now - self._asked if self._is_asked else 0.0

    def state(self, programs: int, is_draining: bool, now: float) -> ReplicaState:
        """What there is to tell of it."""
        is_responsive = self._watch.is_responsive(now)
        info = self.connection.info
        return ReplicaState(
            self.member.name,
            programs,
            is_draining,
            is_responsive,
            self.figures,
            info.generation,
            info.served_name,
        )

    def without_own(self, replies: Sequence[wire.Reply], now: float) -> list[wire.Reply]:
        """The replies that are for programs; takes in the figures."""
        found: list[wire.Reply] = []
        for reply in replies:
            if getattr(reply, "call", None) != FIGURES_CALL:
                found.append(reply)
            elif isinstance(reply, wire.Described):
                self._is_asked = False
                self.figures = reply.figures
                self._watch.take_figures(reply.figures, now)
        return found
