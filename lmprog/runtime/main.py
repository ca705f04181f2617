"""The runtime process: `python -m lmprog.runtime.main`, started by `lmprog.launch`.

Reports readiness or the startup error to the parent, runs the loop until SIGTERM, and ends when the
parent does. Knows the process and nothing of what runs in it.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import logging
import os
import signal
import threading
from pathlib import Path
from types import FrameType

from lmprog.errors import LmprogError
from lmprog.heap import kept_small
from lmprog.launch.parent_pipe import Parent, config_from_json
from lmprog.native import prepare
from lmprog.runtime.steps import EngineLost
from lmprog.transport import ZmqRuntimeChannel, keys_of_runtime

log = logging.getLogger("lmprog")

COLLECTED_EVERY = (1_000, 4, 500)
"""New objects until the youngest are looked at, and of how many such looks one takes in the next
older ones. What a step or a compiled constraint leaves is freed at once, hardly anything in cycles.
"""


def main() -> int:
    """Exit code 0 after an orderly stop, 1 where it could not start or its engine is lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config-json", required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--keys")
    parser.add_argument("--ready-fd", type=int, required=True)
    parser.add_argument("--parent-fd", type=int, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stop = threading.Event()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # writes where it hangs to the log
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    parent = Parent(arguments.ready_fd, arguments.parent_fd)
    parent.watch(stop.set)
    try:
        config = config_from_json(arguments.config_json)
        keys = None if arguments.keys is None else keys_of_runtime(Path(arguments.keys))
        channel = ZmqRuntimeChannel(arguments.address, keys)
        from lmprog.runtime.assembly import assemble, joined_ranks

        if config.engine != "torch":
            prepare(parent.stage)
        led = joined_ranks(config, parent.stage)
        resolved: dict[str, str] = {}
        group = None if led is None else led.group
        loop, welcome = assemble(config, channel, parent.stage, resolved.__setitem__, group)
    except LmprogError as error:
        parent.failed(error)
        return 1
    gc.collect()
    gc.freeze()  # what was loaded lives as long as the process
    gc.set_threshold(*COLLECTED_EVERY)
    facts = {
        "model": welcome.model,
        "context_len": welcome.context_len,
        "page_size": welcome.page_size,
        "num_pages": welcome.num_pages,
        **resolved,
    }

    def stop_in_order(_signal: int, _frame: FrameType | None) -> None:
        stop.set()
        channel.wake()

    signal.signal(signal.SIGTERM, stop_in_order)  # until here it ends the process at once
    parent.ready(channel.address, facts)
    try:
        while not stop.is_set():
            loop.step()
    except EngineLost as error:  # clients and supervisors see a runtime that died
        log.critical("the runtime ends, since %s", error)
        return 1
    channel.say_goodbye("The runtime was told to stop.")
    loop.stop()
    channel.close()
    if led is not None:
        led.ranks.end()
    return 0


if __name__ == "__main__":
    with kept_small(large=None):
        status = main()
    logging.shutdown()
    os._exit(status)  # all that is left is memory, which Python takes long to give back
