"""What all calls of one run share: the client, the stream, and why the run was ended.

Results know their run by this. Knows no branches and no results; `scope` owns those.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmprog import wire
from lmprog.backends.client import Client
from lmprog.errors import LmprogError
from lmprog.lang.checkpoints.run_progress import RunProgress
from lmprog.lang.streaming.feed import Feed


@dataclass(slots=True)
class ContestRecord:
    """A vote or a race of calls, for a recording of the run."""

    rule: wire.ContestRule
    calls: tuple[int, ...]
    won: int | None = None
    """The call whose result was taken; None as long as that is open, or where all failed."""


class RunContext:
    """One run, as seen from its calls."""

    def __init__(self, client: Client, feed: Feed | None = None) -> None:
        self.client = client
        self.feed = feed
        self.ended: LmprogError | None = None
        """Why the run was ended from outside; None while it was not."""
        self.progress = RunProgress()
        """What this run and those inside it have done, for a checkpoint."""
        self.contests: list[ContestRecord] = []
        self.is_over = False
        """Whether the program has ended: its results are read, and no longer referred to."""
        self.marks: dict[int, bool] = {}
        """The marks made of this run's results that were not read, and whether each has found its
        place: in a branch, in a variable or in what the program returned.
        """
        self.is_rehearsal = False
        """Whether the run, and every run inside it, only pretends: it must not ask a service."""
        self.family: object = self
        """Shared by nested runs on one client: they may refer to one another's results."""
