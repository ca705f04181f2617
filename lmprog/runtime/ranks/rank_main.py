"""The process of a rank other than 0: `python -m lmprog.runtime.ranks.rank_main`.

Loads its part of the model and computes what rank 0 gives, until rank 0 ends: in order with exit
code 0, else with another, so that torchrun and its like start all ranks anew. Signals to stop are
for rank 0, which has programs to finish: here they are ignored.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import logging
import os
import signal
import socket
import time
from pathlib import Path
from typing import NoReturn

from lmprog.config import RuntimeConfig
from lmprog.errors import LmprogError
from lmprog.launch.parent_pipe import config_from_json
from lmprog.linux import end_with_parent
from lmprog.runtime.engine.sharded.rank_group import (
    Place,
    RankGroup,
    end_process,
    place_of_environment,
)
from lmprog.runtime.engine.sharded.shard import rank_device
from lmprog.runtime.engine.sharded.sharded_engine import follow, load_shard
from lmprog.runtime.ranks.lifelines import meet, watch

log = logging.getLogger("lmprog")

_VERDICT_SECONDS = 1.0
"""A group breaks when rank 0 ends; its lifeline says a moment later how it ended."""


def main() -> NoReturn:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config-json", required=True)
    parser.add_argument("--rank", type=int, help="of this machine's ranks; else from RANK")
    parser.add_argument("--meeting", type=Path)
    parser.add_argument("--lifeline-fd", type=int)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    config = config_from_json(arguments.config_json)
    try:
        if arguments.rank is None:
            group = _found(config)
        else:
            end_with_parent()
            lifeline = socket.socket(fileno=arguments.lifeline_fd)
            watch({0: lifeline}, _on_end)
            rank = arguments.rank
            place = Place(rank, config.tp, config.tp, arguments.meeting, local=rank)
            group = RankGroup(place, rank_device(config, rank))
        own = load_shard(config, group)
        gc.collect()
        gc.freeze()
        follow(own, group)
    except LmprogError as error:
        reason = error.message
    except Exception:
        time.sleep(_VERDICT_SECONDS)  # rank 0 may have ended in order, as its lifeline says
        log.exception("a step failed")
        reason = "it cannot go on"
    end_process(f"rank ends: {reason}")


def _found(config: RuntimeConfig) -> RankGroup:
    """Joined by torchrun's variables."""
    place = place_of_environment(config)
    group = RankGroup(place, rank_device(config, place.local))
    said = group.facts(None)
    lifeline = meet(os.environ["MASTER_ADDR"], said["port"], said["token"], place.rank)
    watch({0: lifeline}, _on_end)
    return group


def _on_end(_rank: int, is_orderly: bool) -> None:
    if not is_orderly:
        end_process("rank 0 has ended, and this rank with it")
    logging.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
