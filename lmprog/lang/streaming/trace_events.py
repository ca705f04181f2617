"""What is told of runs and calls while they happen, to whoever wants to trace programs.

`lmprog.tracing(callback)` names a callback for the runs that begin inside its block. Knows times,
names and work; texts are not told. Does not know OpenTelemetry.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from lmprog import wire

_LOG = logging.getLogger("lmprog")


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """A run or a call of it has begun, or ended."""

    kind: Literal["run", "call"]
    phase: Literal["begin", "end"]
    id: str
    """The same at the beginning and the end."""
    parent: str | None
    """The run of a call; the run around a nested run."""
    name: str
    """The program's; the name of a generation or selection, or else its kind."""
    model: str
    time_ns: int
    """Since the epoch."""
    branch: str = "root"
    site: str = ""
    """The program's line that asked for the call."""
    usage: wire.Usage | None = None
    """At the end: the work. None where there is no result."""
    error: str | None = None
    """At the end: what was raised, by its class."""


TraceCallback: TypeAlias = Callable[[TraceEvent], None]
"""Called on the threads where things happen, and quickly: the run waits for it. What it raises is
logged.
"""
EndCallback: TypeAlias = Callable[[wire.Usage | None, BaseException | None], None]


class RunTrace:
    """Tells of one run, and of its calls."""

    def __init__(self, told: tuple[TraceCallback, ...], parent: str | None) -> None:
        self.id = _new_id()
        self._told = told
        self._parent = parent

    def begin(self, program: str, model: str) -> EndCallback:
        """The run has begun; what is given back tells that it has ended."""
        return self._began(
            "run", TraceEvent("run", "begin", self.id, self._parent, program, model, 0)
        )

    def begin_call(self, name: str, model: str, branch: str, site: str) -> EndCallback:
        event = TraceEvent("call", "begin", _new_id(), self.id, name, model, 0, branch, site)
        return self._began("call", event)

    def _began(self, kind: Literal["run", "call"], event: TraceEvent) -> EndCallback:
        def tell(
            phase: Literal["begin", "end"], usage: wire.Usage | None, error: BaseException | None
        ) -> None:
            told = TraceEvent(
                kind, phase, event.id, event.parent, event.name, event.model, time.time_ns(),
                event.branch, event.site, usage, None if error is None else type(error).__name__,
            )  # fmt: skip
            for callback in self._told:
                try:
                    callback(told)
                except Exception:  # noqa: BLE001  (foreign code must not end a run)
                    _LOG.exception("a callback of lmprog.tracing failed")

        tell("begin", None, None)
        return lambda usage, error: tell("end", usage, error)


def _new_id() -> str:
    return secrets.token_hex(8)
