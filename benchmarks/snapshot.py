"""What a picture of the runtime costs its loop: `python -m benchmarks.snapshot`.

A tree of prompts that share stems of random length; the first look at it, and the smallest of
several times for looking again and for encoding the answer. The loop stands still meanwhile, so the
time must depend on what is shown and not on the tree.
"""

from __future__ import annotations

import argparse
import random
import time
from array import array
from pathlib import Path

import lmprog
from lmprog import wire
from lmprog.config import SchedulerConfig
from lmprog.runtime.programs.snapshot import SnapshotBuilder
from lmprog.runtime.scheduling.namespaces import Namespaces
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.text.tokenizer import load_tokenizer

REPETITIONS = 9
PAGE_SIZE = 16
STEMS = 50


def grown(num_nodes: int, vocab_size: int) -> Scheduler:
    """A scheduler whose tree has that many nodes."""
    scheduler = Scheduler(SchedulerConfig(num_pages=40 * num_nodes, page_size=PAGE_SIZE), 4096)
    rng = random.Random(0)
    stems = [
        [rng.randrange(vocab_size) for _ in range(rng.randrange(20, 200))] for _ in range(STEMS)
    ]
    tree = scheduler.tree
    while tree.num_nodes < num_nodes:
        stem = rng.choice(stems)[: rng.randrange(10, 200)]
        tokens = array(
            "i", stem + [rng.randrange(vocab_size) for _ in range(rng.randrange(5, 120))]
        )
        table = tree.match(tokens).pages
        fresh = scheduler.pages.allocate(-(-len(tokens) // PAGE_SIZE) - len(table))
        assert fresh is not None
        tree.insert(tokens, table + fresh)
    return scheduler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--nodes", type=int, nargs="+", default=[2_500, 50_000], help="sizes of the tree"
    )
    asked = parser.parse_args()
    tokenizer = load_tokenizer(Path(lmprog.__file__).parent / "nano")
    print("| nodes in the tree | shown | text | first, ms | again, ms | encode, ms | bytes |")
    print("|---:|---:|---|---:|---:|---:|---:|")
    for num_nodes in asked.nodes:
        scheduler = grown(num_nodes, tokenizer.vocab_size)
        for shown in (400, 1000, 2000):
            for with_text in (False, True):
                builder = SnapshotBuilder(
                    scheduler, tokenizer, Namespaces(), {}, b"a key of this benchmark"
                )
                print(_line(builder, scheduler.tree.num_nodes, wire.Inspect(1, shown, with_text)))
        builder = SnapshotBuilder(
            scheduler, tokenizer, Namespaces(), {}, b"a key of this benchmark"
        )
        print(_closer(builder))


def _closer(builder: SnapshotBuilder) -> str:
    """Processor time of what a click or a search costs."""
    seen = builder.take(b"viewer", wire.Inspect(1, 400), 1.0, {})
    number = seen.nodes[5].number
    asked = {
        "a block with its text": wire.Inspect(1, 1, True, number, 4096),
        "what is below it": wire.Inspect(1, 400, True, number),
        "a block that is gone": wire.Inspect(1, 400, True, 10**9),
        "a search": wire.Inspect(1, 400, True, 0, 256),
    }
    parts = []
    for name, op in asked.items():
        times = []
        for _ in range(REPETITIONS):
            start = time.process_time()
            builder.take(b"viewer", op, 1.0, {})
            times.append(time.process_time() - start)
        parts.append(f"{name} {1e3 * min(times):.2f} ms")
    return ", ".join(parts)


def _line(builder: SnapshotBuilder, num_nodes: int, op: wire.Inspect) -> str:
    looks, encodes, frame = [], [], b""
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        seen = builder.take(b"viewer", op, 1.0, {})
        looked = time.perf_counter()
        frame = wire.encode((seen,))
        looks.append(looked - start)
        encodes.append(time.perf_counter() - looked)
    text = "yes" if op.with_text else "no"
    return (
        f"| {num_nodes:,} | {len(seen.nodes):,} | {text} | {1e3 * looks[0]:.2f} | "
        f"{1e3 * min(looks[1:]):.2f} "
        f"| {1e3 * min(encodes):.2f} | {len(frame):,} |"
    )


if __name__ == "__main__":
    main()
