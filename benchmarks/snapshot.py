"""What a picture of the runtime costs its loop: `python -m benchmarks.snapshot`.

A tree of prompts that share stems of random length; the first look at it, and the smallest of
several times for looking again and for encoding the answer. The loop stands still meanwhile, so the
time must depend on what is shown and not on the tree.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from functools import partial
from typing import Annotated

from benchmarks import runner
from lmprog import wire
from lmprog.config import SchedulerConfig
from lmprog.runtime.engine.model.locate import NANO
from lmprog.runtime.programs.snapshot import SnapshotBuilder
from lmprog.runtime.scheduling.namespaces import Namespaces
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.text.tokenizer import load_tokenizer

REPETITIONS, PAGE_SIZE, STEMS = 9, 16, 50


def grown(num_nodes: int, vocab_size: int) -> Scheduler:
    """A scheduler whose tree has that many nodes."""
    scheduler = Scheduler(SchedulerConfig(num_pages=40 * num_nodes, page_size=PAGE_SIZE), 4096)
    rng, tree = random.Random(0), scheduler.tree

    def tokens(low: int, high: int) -> list[int]:
        return [rng.randrange(vocab_size) for _ in range(rng.randrange(low, high))]

    stems = [tokens(20, 200) for _ in range(STEMS)]
    while tree.num_nodes < num_nodes:
        text = array("i", rng.choice(stems)[: rng.randrange(10, 200)] + tokens(5, 120))
        table = tree.match(text).pages
        fresh = scheduler.pages.allocate(-(-len(text) // PAGE_SIZE) - len(table))
        assert fresh is not None
        tree.insert(text, table + fresh)
    return scheduler


def looks(builder: SnapshotBuilder, op: wire.Inspect) -> list[float]:
    """Milliseconds of processor time, of the first look and of the next ones."""
    look = partial(builder.take, b"viewer", op, 1.0, {})
    return [1e3 * runner.seconds(look) for _ in range(REPETITIONS)]


def closer(builder: SnapshotBuilder) -> str:
    """What a click or a search costs."""
    seen = builder.take(b"viewer", wire.Inspect(1, 400), 1.0, {})
    number = seen.nodes[5].number
    asked = {
        "a block with its text": wire.Inspect(1, 1, True, number, 4096),
        "what is below it": wire.Inspect(1, 400, True, number),
        "a block that is gone": wire.Inspect(1, 400, True, 10**9),
        "a search": wire.Inspect(1, 400, True, 0, 256),
    }
    return ", ".join(f"{name} {min(looks(builder, op)):.2f} ms" for name, op in asked.items())


@runner.command
def main(*, nodes: Annotated[Sequence[int], "sizes of the tree"] = (2_500, 50_000)) -> None:
    tokenizer = load_tokenizer(NANO)
    columns = ("first, ms", "again, ms", "encode, ms", "bytes")
    runner.head("nodes in the tree", "shown", "text", *columns)
    for num_nodes in nodes:
        scheduler = grown(num_nodes, tokenizer.vocab_size)
        made = partial(SnapshotBuilder, scheduler, tokenizer, Namespaces(), {}, b"a key of this")
        for shown in (400, 1000, 2000):
            for with_text in (False, True):
                builder, op = made(), wire.Inspect(1, shown, with_text)
                first, *again = looks(builder, op)
                seen = builder.take(b"viewer", op, 1.0, {})
                encode = partial(wire.encode, (seen,))
                least = min(1e3 * runner.seconds(encode) for _ in range(REPETITIONS))
                runner.say(
                    *(f"{scheduler.tree.num_nodes:,}", f"{len(seen.nodes):,}"),
                    *("yes" if with_text else "no", f"{first:.2f}", f"{min(again):.2f}"),
                    *(f"{least:.2f}", f"{len(encode()):,}"),
                )
        print(closer(made()))
