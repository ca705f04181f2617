"""What publishing key/value events costs: processor time of one block, from the tree's change to
the sent message: `python -m benchmarks.kv_events`.

The same inserts and evictions on a tree that nobody watches and on one whose events are hashed,
encoded and sent to a listener, in turns; the difference is divided by the blocks that were stored.
"""

from __future__ import annotations

import random
import time
from array import array
from statistics import median

import zmq

from benchmarks import runner
from lmprog.radix import PageAllocator, RadixTree
from lmprog.runtime.kv_events.block_record import BlockRecord, encoded
from lmprog.transport import EventSocket

PAGE, PAGES, INSERTS, ROUNDS = 16, 4000, 400, 7


def texts() -> list[array[int]]:
    """Families with prefixes of their own, in random order."""
    draw = random.Random(1)
    families = [[draw.randrange(8000) for _ in range(600)] for _ in range(40)]
    return [
        array("i", families[draw.randrange(40)][: draw.randrange(100, 600)])
        + array("i", [draw.randrange(8000) for _ in range(draw.randrange(1, 400))])
        for _ in range(INSERTS)
    ]


def work(watched: bool) -> tuple[float, int]:
    """Seconds of this thread, and blocks stored."""
    pages = PageAllocator(PAGES)
    tree = RadixTree(PAGE, pages)
    events = EventSocket("tcp://127.0.0.1:*", "tcp://127.0.0.1:*", "")
    listener = zmq.Context()
    heard = listener.socket(zmq.SUB)
    heard.setsockopt(zmq.SUBSCRIBE, b"")
    heard.connect(events.address)
    record = BlockRecord(tree, lambda key: key) if watched else None
    num_blocks, inserted = 0, texts()
    before = time.thread_time()
    for tokens in inserted:
        need = -(-len(tokens) // PAGE)
        if pages.num_free < need:
            tree.evict(need - pages.num_free)
        own = pages.allocate(need)
        assert own is not None
        found = tree.insert(tokens, own)
        pages.free(own[: found.first_taken])
        if record is not None:
            happened = record.take_events()
            num_blocks += sum(len(getattr(one, "token_ids", ())) for one in happened) // PAGE
            if happened:
                events.publish(encoded(time.time(), happened))
            events.serve_replays(lambda: b"")
    spent = time.thread_time() - before
    listener.destroy(linger=0)
    events.close()
    return spent, num_blocks


@runner.command
def main() -> None:
    found = runner.in_turn({"alone": lambda: work(False), "told": lambda: work(True)}, ROUNDS)
    num_blocks = found["told"][0][1]
    alone, told = ([1e6 * spent / num_blocks for spent, _ in each] for each in found.values())
    print(
        f"{INSERTS} inserts, {num_blocks} blocks stored: {median(told) - median(alone):.1f} us of "
        f"processor time a block (median of {ROUNDS}; least {min(told) - min(alone):.1f}); the "
        f"tree's own work {median(alone):.1f} us a block"
    )
