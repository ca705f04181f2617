"""One rank's place among all: given by whoever starts it, or by torchrun's variables."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from lmprog.config import RuntimeConfig
from lmprog.errors import InvalidParameter

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Place:
    """Who a rank is, and how it finds the others."""

    rank: int
    size: int
    here: int
    """Ranks on this machine."""
    meeting: Path | None
    """A new file that the ranks of one machine meet by; None: by torchrun's variables."""
    local: int = 0
    """Its number among the ranks of this machine, by which it has its GPU."""


def place_of_environment(config: RuntimeConfig) -> Place:
    """What torchrun's variables say. Raises InvalidParameter where they say something else than
    `config`, or nothing.
    """
    absent = [name for name in _VARIABLES if not os.environ.get(name)]
    if absent:
        raise InvalidParameter(
            f"tp_ranks = 'torchrun' needs {', '.join(absent)} in the environment, as torchrun "
            "sets them; without it the runtime starts its ranks itself, on this machine",
            name="tp_ranks",
            value=config.tp_ranks,
        )
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if size != config.tp:
        raise InvalidParameter(
            f"tp = {config.tp}, but WORLD_SIZE is {size}: both count the ranks",
            name="tp",
            value=config.tp,
        )
    here, local = os.environ.get("LOCAL_WORLD_SIZE", "1"), os.environ.get("LOCAL_RANK", "0")
    return Place(rank, size, int(here), None, int(local))
