"""What a router knows of a replica, and of a program that it has sent to one."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from lmprog import wire
from lmprog.errors import LmprogError
from lmprog.fleet.program_log import ProgramLog


@dataclass(eq=False, slots=True)
class Replica:
    """One runtime as the router sees it. `load` counts its open programs of this client."""

    name: str
    number: int
    slots: int
    load: int = 0
    draining: bool = False
    mark: int = 0
    """Of its name: see `placement.mark_of`."""


@dataclass(eq=False, slots=True)
class RoutedProgram:
    """A program and where it runs. `home` is None before its first call, and where there is no
    replica for it.
    """

    log: ProgramLog
    salt: str
    """Names the cache that it uses: its salt, and its adapter."""
    session: str = ""
    home: Replica | None = None
    was_sent: bool = False
    homeless_since: float | None = None
    failure: LmprogError | None = None
    """Why it cannot go on: all its later calls fail with this."""
    branches: set[int] = field(default_factory=set)
    calls: set[int] = field(default_factory=set)
    held: deque[wire.Op] = field(default_factory=deque)
    """Ops behind one that refers to another program's result, which is not known yet."""
