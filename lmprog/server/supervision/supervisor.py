"""When a runtime is restarted: the decisions alone, without a process, a socket or a clock.

What is watched is progress, not life: `launch.restarts` judges it. `Supervisor` gets events
and calls actions; these never wait, and report back through its events. It knows figures by name;
it does not know how anything is started, asked or ended.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from lmprog.errors import LmprogError
from lmprog.launch.restarts import (
    LONGEST_GAP,
    DelayLimits,
    HangTimeouts,
    ProgressWatch,
    RestartDelays,
)

log = logging.getLogger("lmprog.server")

FIRST_START_SECONDS = 5.0
"""What a start is thought to take before one has been seen."""


class Phase(enum.Enum):
    """Where the runtime is in its life."""

    IDLE = "not begun"
    STARTING = "starting"
    SERVING = "serving"
    LOST = "lost"
    """Its connection ended, its process did not: it may be reached again."""
    ENDING = "ending"
    RESTING = "resting"
    """Waits before the next start, since the last lives were short."""
    FAILED = "failed"
    """It never came up at all; nobody tries again."""


@dataclass(frozen=True, slots=True)
class RestartTimeouts:
    """All in seconds."""

    hang: HangTimeouts = field(default_factory=HangTimeouts)
    delays: DelayLimits = field(default_factory=DelayLimits)
    ask_every: float = 0.5


class SupervisorActions(Protocol):
    """What a supervisor can have done. None of them waits or raises."""

    def start(self) -> None:
        """Begins to start a runtime; ends in `started` or `start_failed`."""
        ...

    def ask(self) -> None:
        """Asks the runtime for its figures; ends in `answered`, or in nothing."""
        ...

    def reach(self) -> None:
        """Tries to connect again; ends in `reached`, or in nothing."""
        ...

    def pulse(self) -> float | None:
        """Processor seconds that the runtime's process has used; None: it has ended."""
        ...

    def end(self, why: str) -> None:
        """Fails what is under way, writes down what is known, ends the process; ends in `ended`."""
        ...


class Supervisor:
    """Keeps one runtime alive. Every method belongs to one thread; `tick` must be called a few
    times a second.
    """

    def __init__(
        self,
        actions: SupervisorActions,
        clock: Callable[[], float],
        timeouts: RestartTimeouts | None = None,
    ) -> None:
        self._actions = actions
        self._clock = clock
        self._timeouts = timeouts or RestartTimeouts()
        self._phase = Phase.IDLE
        self.restarts = 0
        self.failure: LmprogError | None = None
        """Why the first start failed."""
        self.last_figures: Mapping[str, float] = {}
        self._now = 0.0
        self._last_tick = clock()
        self._since = 0.0  # when the phase began
        self._born: float | None = None  # when this life began to serve
        self._ever_served = False
        self._start_seconds = FIRST_START_SECONDS  # what the last start took
        self._delays = RestartDelays(self._timeouts.delays)
        self._rest_until = 0.0
        self._asked: float | None = None
        self._next_ask = 0.0
        self._watch = ProgressWatch(self._timeouts.hang, 0.0)

    @property
    def phase(self) -> Phase:
        return self._phase

    def seconds_until_up(self) -> float:
        """An estimate of when requests are served again; 0 while they are."""
        match self._phase:
            case Phase.SERVING:
                return 0.0
            case Phase.STARTING:
                return max(1.0, self._start_seconds - (self._now - self._since))
            case Phase.RESTING:
                return self._rest_until - self._now + self._start_seconds
            case _:
                return 1.0 + self._start_seconds

    def is_responsive(self) -> bool:
        """Whether the runtime answered, or computed, a moment ago: a long step is no hang."""
        return self._phase is Phase.SERVING and self._watch.is_responsive(self._now)

    def begin(self) -> None:
        """Starts the first runtime."""
        assert self._phase is Phase.IDLE, self._phase
        self._enter(Phase.STARTING)
        self._actions.start()

    def tick(self) -> None:
        """Checks the runtime, and does what is due."""
        now = self._clock()
        passed = min(max(0.0, now - self._last_tick), LONGEST_GAP)
        self._last_tick = now
        self._now += passed
        if self._phase is Phase.RESTING and self._now >= self._rest_until:
            self._enter(Phase.STARTING)
            self._actions.start()
        elif self._phase in (Phase.SERVING, Phase.LOST):
            why = self._what_is_wrong(passed)
            if why is not None:
                self._enter(Phase.ENDING)
                self._actions.end(why)
            elif (
                self._phase is Phase.SERVING and self._asked is None and self._now >= self._next_ask
            ):
                self._asked = self._now
                self._next_ask = self._now + self._timeouts.ask_every
                self._actions.ask()

    # --- events

    def started(self) -> None:
        """The runtime serves, and requests reach it."""
        self._start_seconds = self._now - self._since
        self._born = self._now
        self._ever_served = True
        self._live()

    def start_failed(self, error: LmprogError) -> None:
        """The start ended in an error, and its process is gone."""
        if not self._ever_served:
            self.failure = error
            self._enter(Phase.FAILED)
            return
        log.error("the runtime could not be started again: %s", error)
        self._rest()

    def answered(self, figures: Mapping[str, float]) -> None:
        """The runtime's loop gave its figures."""
        self._asked = None
        if self._phase is not Phase.SERVING:
            return
        self.last_figures = figures
        self._watch.take_figures(figures, self._now)

    def lost(self) -> None:
        """The connection ended by itself. Its process may live: then it is reached again, or found
        to be hung.
        """
        if self._phase is Phase.SERVING:
            self._enter(Phase.LOST)
            self._asked = None
            self._actions.reach()

    def reached(self) -> None:
        """Connected again to the same process."""
        if self._phase is Phase.LOST:
            self._live()

    def ended(self) -> None:
        """The process is gone, and what it had is cleared away."""
        self._rest()

    # --- inside

    def _live(self) -> None:
        self._enter(Phase.SERVING)
        self._asked = None
        self._next_ask = self._now
        cpu = self._actions.pulse() or 0.0
        self._watch = ProgressWatch(self._timeouts.hang, self._now, cpu)

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self._since = self._now

    def _rest(self) -> None:
        """Before the next start: nothing after a long life, else twice as long each time."""
        lived = None if self._born is None else self._now - self._born
        rest = self._delays.after(lived)
        self._born = None
        self._rest_until = self._now + rest
        self.restarts += 1
        self._enter(Phase.RESTING)

    def _what_is_wrong(self, passed: float) -> str | None:
        """Why the runtime must end now; None: nothing."""
        cpu = self._actions.pulse()
        if cpu is None:
            return "its process ended"
        self._watch.take_pulse(cpu, self._now, passed)
        return self._watch.trouble(self._now, self._since if self._phase is Phase.LOST else None)
