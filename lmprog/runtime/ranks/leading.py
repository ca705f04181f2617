"""Rank 0's side: starts the other ranks, or finds those that torchrun started, and watches them.

A rank's death is this process's death, since the others cannot go on without it; whoever supervises
the runtime starts all of them anew.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmprog.config import RuntimeConfig
from lmprog.errors import InvalidParameter, RuntimeGone
from lmprog.launch.child_process import python
from lmprog.launch.parent_pipe import FOLDER_VARIABLE, config_to_json
from lmprog.runtime.engine.sharded.rank_group import (
    Place,
    RankGroup,
    end_process,
    place_of_environment,
)
from lmprog.runtime.engine.sharded.shard import rank_device
from lmprog.runtime.ranks.lifelines import Meeting, say_farewell, watch

_MODULE = "lmprog.runtime.ranks.rank_main"
_END_SECONDS = 1.0


class LedRanks:
    """All ranks but this process's own, watched from the moment they are known."""

    def __init__(
        self,
        lifelines: Mapping[int, socket.socket],
        processes: Sequence[subprocess.Popen[bytes]] = (),
    ) -> None:
        """`processes` are those of them that this one started."""
        self._lifelines = lifelines
        self._processes = processes
        self._is_ending = False
        watch(lifelines, self._on_end)

    def end(self) -> None:
        """Has them end in order, and waits a moment for those that were started here."""
        self._is_ending = True
        say_farewell(self._lifelines)
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)

    def _on_end(self, rank: int, _is_orderly: bool) -> None:
        if not self._is_ending:
            end_process(f"rank {rank} has ended, and the runtime with it")


@dataclass(frozen=True, slots=True)
class Led:
    """What rank 0 has of the others: a group to compute with, processes that it watches."""

    group: RankGroup
    ranks: LedRanks


def lead(config: RuntimeConfig) -> Led:
    """All ranks that `config` asks for, joined and watched."""
    return _lead_started(config) if config.tp_ranks == "local" else _lead_found(config)


def _lead_started(config: RuntimeConfig) -> Led:
    folder = tempfile.mkdtemp(prefix="ranks-", dir=os.environ.get(FOLDER_VARIABLE))
    meeting = Path(folder) / "meeting"
    # Watched before they have joined: one that cannot start must not be waited for.
    started = {rank: _start(config, rank, meeting) for rank in range(1, config.tp)}
    ranks = LedRanks(
        {rank: one.lifeline for rank, one in started.items()},
        [one.process for one in started.values()],
    )
    place = Place(0, config.tp, config.tp, meeting)
    return Led(RankGroup(place, rank_device(config, place.local)), ranks)


@dataclass(frozen=True, slots=True)
class _Started:
    process: subprocess.Popen[bytes]
    lifeline: socket.socket
    """Our end of it."""


def _start(config: RuntimeConfig, rank: int, meeting: Path) -> _Started:
    """Starts a rank on this machine."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [
                *python(_MODULE),
                *("--config-json", config_to_json(config), "--rank", str(rank)),
                *("--meeting", str(meeting), "--lifeline-fd", str(theirs.fileno())),
            ],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
        )
    return _Started(process, ours)


def _lead_found(config: RuntimeConfig) -> Led:
    place = place_of_environment(config)
    if place.rank != 0:
        raise InvalidParameter(
            f"RANK is {place.rank}: only rank 0 can be a runtime; start the others with "
            "`lmprog serve` and the same options",
            name="tp_ranks",
            value=config.tp_ranks,
        )
    group = RankGroup(place, rank_device(config, place.local))
    meeting = Meeting(os.environ["MASTER_ADDR"])
    group.facts({"port": meeting.port, "token": meeting.token})
    try:
        lifelines = meeting.wait(place.size - 1)
    except TimeoutError:
        raise RuntimeGone("not all ranks came to their meeting with rank 0") from None
    return Led(group, LedRanks(lifelines))
