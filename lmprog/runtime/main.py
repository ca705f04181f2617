"""The runtime process: `python -m lmprog.runtime.main`, started by `lmprog.launch`.

Tells its parent when it serves or why it cannot, runs the loop until it is told to stop, and ends
when its parent does. Knows the process and nothing of what runs in it.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import logging
import signal
import sys
import threading
from types import FrameType

from lmprog.errors import LmprogError
from lmprog.launch.parent_pipe import Parent, config_from_json
from lmprog.transport import ZmqRuntimeChannel


def main() -> int:
    """Exit code 0 after an orderly stop, 1 where it could not start."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config-json", required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--ready-fd", type=int, required=True)
    parser.add_argument("--parent-fd", type=int, required=True)
    asked = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stop = threading.Event()

    def ask_to_stop(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    faulthandler.register(
        signal.SIGUSR1, all_threads=True
    )  # whoever finds us hung asks where, and reads our log
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    parent = Parent(asked.ready_fd, asked.parent_fd)
    parent.watch(stop.set)
    try:
        config = config_from_json(asked.config_json)
        channel = ZmqRuntimeChannel(asked.address)
        from lmprog.runtime.assembly import assemble

        resolved: dict[str, str] = {}
        loop, welcome = assemble(config, channel, parent.stage, resolved.__setitem__)
    except LmprogError as error:
        parent.failed(error)
        return 1
    gc.collect()
    # what was loaded lives as long as the process: the collector need not look at it again
    gc.freeze()
    facts = {
        "model": welcome.model,
        "context_len": welcome.context_len,
        "page_size": welcome.page_size,
        "num_pages": welcome.num_pages,
        **resolved,
    }
    signal.signal(
        signal.SIGTERM, ask_to_stop
    )  # until here it ends us at once: there is nothing to finish
    parent.ready(channel.address, facts)
    while not stop.is_set():
        loop.step()
    channel.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
