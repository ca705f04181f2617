"""The same command on every machine: where torchrun's variables say that this is not rank 0, the
process becomes another rank of the model instead of serving it.

Knows the command of such a process, and nothing of what it does.
"""

from __future__ import annotations

import os
import sys

from lmprog.config import RuntimeConfig
from lmprog.launch.child_process import environment_of_children, python
from lmprog.launch.parent_pipe import config_to_json

_MODULE = "lmprog.runtime.ranks.rank_main"


def become_other_rank(config: RuntimeConfig) -> None:
    """Replaces this process by the rank that it is to be; returns where it is rank 0, or where
    ranks are not started from outside.
    """
    if config.tp_ranks != "torchrun" or os.environ.get("RANK", "0") == "0":
        return
    rank = os.environ["RANK"]
    sys.stderr.write(f"lmprog: rank {rank} of {config.model}; rank 0 serves it\n")
    command = [*python(_MODULE), "--config-json", config_to_json(config)]
    os.execve(command[0], command, environment_of_children())
