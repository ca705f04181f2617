"""What keeping keys and values costs beside computing them: a runtime's memory, pictures of the tree,
events, pages of the second tier.

    python -m benchmarks.cache resident [--prompts N] [--idle-seconds N]   memory, after floods and idle
    python -m benchmarks.cache snapshot                                    a picture of the tree
    python -m benchmarks.cache events                                      telling others of a block
    python -m benchmarks.cache tier-page [--model M]                       a page of the second tier
"""

from __future__ import annotations

import random
import tempfile
import time
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import zmq
from numpy.typing import NDArray

import lmprog
from benchmarks import runner
from benchmarks.own_loop import OwnLoop
from lmprog import launch, wire
from lmprog.backends.client import RuntimeBackend, describe
from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.radix import PageAllocator, RadixTree
from lmprog.runtime.engine.engine import select_engine
from lmprog.runtime.engine.model.locate import NANO
from lmprog.runtime.engine.native.engine import NativeEngine
from lmprog.runtime.kv_events.kv_publisher import BlockRecord, encoded
from lmprog.runtime.programs.snapshot import SnapshotBuilder
from lmprog.runtime.scheduling.namespaces import Namespaces
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.text.tokenizer import load_tokenizer
from lmprog.runtime.tier.disk_store import PageFile
from lmprog.runtime.tier.page_store import PageKey
from lmprog.transport import EventSocket

# -- memory of a process

MOST_IDLE = 1.1


@lmprog.function
def read_a_text(s: lmprog.Branch, seed: int) -> str:
    dice = random.Random(seed)
    s.append(" ".join(f"word{dice.randrange(10_000)}" for _ in range(300)))
    return s.gen(max_tokens=4).value


def resident(*, prompts: int = 80, branches: int = 50_000, idle_seconds: int = 2) -> None:
    """Of a runtime's process on nano with 200 MB for keys and values: prompts of 300 words that share
    nothing; then branches that are opened, written to and closed; then it rests. The bar: idle, at
    most 1.1 times its start.
    """
    fields: dict[str, Any] = {"threads": 1, "kv_memory_mb": 200, "kv_idle_seconds": idle_seconds}
    with (
        launch.RuntimeProcess("nano", **fields) as runtime,
        RuntimeBackend(runtime.connect("flood")) as backend,
    ):

        def resident_now() -> int:
            return runner.Footprint.of(runtime.pid).kilobytes

        reader = read_a_text.using(backend=backend, temperature=0.0, ignore_eos=True)
        reader.run(seed=-1)
        sizes = {"at the start": resident_now()}
        reader.map(list(range(prompts)), concurrency=16)
        sizes["after prompts"] = resident_now()
        text = (wire.TextPiece("a text that is never read. " * 20),)
        for first in range(1 << 40, (1 << 40) + branches, 500):
            numbers = range(first, first + 500)
            backend.client.post(*map(wire.Open, numbers))
            backend.client.post(*(wire.Append(number, text) for number in numbers))
            backend.client.post(*map(wire.Close, numbers))
        describe(backend)  # all of it has been handled
        sizes["after branches"] = resident_now()
        ends = time.monotonic() + idle_seconds + 10.0
        while time.monotonic() < ends and resident_now() > MOST_IDLE * sizes["at the start"]:
            time.sleep(0.5)
        sizes["idle"] = resident_now()
    for when, size in sizes.items():
        print(f"{when}: {size / 1024:.0f} MB")
    ratio = sizes["idle"] / sizes["at the start"]
    print(f"idle / start {ratio:.2f}, at most {MOST_IDLE}: {runner.verdict(ratio <= MOST_IDLE)}")


# -- pictures

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


def snapshot(*, nodes: Annotated[Sequence[int], "sizes of the tree"] = (2_500, 50_000)) -> None:
    """A tree of prompts that share stems of random length; the first look at it, and the smallest of
    several times for looking again and for encoding the answer. The loop stands still meanwhile, so
    the time must depend on what is shown and not on the tree.
    """
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


# -- events

EVENT_PAGE, EVENT_PAGES, INSERTS, EVENT_ROUNDS = 16, 4000, 400, 7


def texts() -> list[array[int]]:
    """Families with prefixes of their own, in random order."""
    draw = random.Random(1)
    families = [[draw.randrange(8000) for _ in range(600)] for _ in range(40)]
    return [
        array("i", families[draw.randrange(40)][: draw.randrange(100, 600)])
        + array("i", [draw.randrange(8000) for _ in range(draw.randrange(1, 400))])
        for _ in range(INSERTS)
    ]


def event_work(watched: bool) -> tuple[float, int]:
    """Seconds of this thread, and blocks stored."""
    pages = PageAllocator(EVENT_PAGES)
    tree = RadixTree(EVENT_PAGE, pages)
    event_socket = EventSocket("tcp://127.0.0.1:*", "tcp://127.0.0.1:*", "")
    listener = zmq.Context()
    heard = listener.socket(zmq.SUB)
    heard.setsockopt(zmq.SUBSCRIBE, b"")
    heard.connect(event_socket.address)
    record = BlockRecord(tree, lambda key: key) if watched else None
    num_blocks, inserted = 0, texts()
    before = time.thread_time()
    for tokens in inserted:
        need = -(-len(tokens) // EVENT_PAGE)
        if pages.num_free < need:
            tree.evict(need - pages.num_free)
        own = pages.allocate(need)
        assert own is not None
        found = tree.insert(tokens, own)
        pages.free(own[: found.first_taken])
        if record is not None:
            happened = record.take_events()
            num_blocks += sum(len(getattr(one, "token_ids", ())) for one in happened) // EVENT_PAGE
            if happened:
                event_socket.publish(encoded(time.time(), happened))
            event_socket.serve_replays(lambda: b"")
    spent = time.thread_time() - before
    listener.destroy(linger=0)
    event_socket.close()
    return spent, num_blocks


def events() -> None:
    """Processor time of one block, from the tree's change to the sent message: the same inserts and
    evictions on a tree that nobody watches and on one whose events are hashed, encoded and sent to a
    listener, in turns; the difference is divided by the blocks that were stored.
    """
    found = runner.in_turn(
        {"alone": lambda: event_work(False), "told": lambda: event_work(True)}, EVENT_ROUNDS
    )
    num_blocks = found["told"][0][1]
    alone, told = ([1e6 * spent / num_blocks for spent, _ in each] for each in found.values())
    print(
        f"{INSERTS} inserts, {num_blocks} blocks stored: {median(told) - median(alone):.1f} us of "
        f"processor time a block (median of {EVENT_ROUNDS}; least {min(told) - min(alone):.1f}); the "
        f"tree's own work {median(alone):.1f} us a block"
    )


# -- the second tier

TIER_ROUNDS, TIER_PAGES = 5, 128


def best(do: Callable[[int], object]) -> float:
    """Microseconds a page, of the fastest round over all pages."""

    def all_pages() -> None:
        for page in range(TIER_PAGES):
            do(page)

    return (
        1e6
        / TIER_PAGES
        * min(runner.seconds(all_pages, 1, time.thread_time) for _ in range(TIER_ROUNDS))
    )


def rounded(page: NDArray[np.float32]) -> NDArray[np.float32]:
    """One scale for 16 numbers, as many as a block of slots has."""
    numbers = page.reshape(-1, 16)
    scales = np.abs(numbers).max(axis=1, keepdims=True) / np.float32(127)
    found: NDArray[np.float32] = np.rint(numbers / scales).astype(np.int8) * scales
    return found


def computed(model: str, page_size: int) -> float:
    own = OwnLoop(model, kv_memory_mb=256, dtype="float32")
    text = " ".join(str(1000 + number) for number in range(2_000))
    stats = own.loop.scheduler.stats
    for prompt in (text[-2 * 1024 :], text[: 2 * 1024]):  # the first one warms up
        before, began = stats.computed_tokens, own.now()
        own.finish(own.ask(b"prompt", prompt, 1))
    return 1e6 * (own.now() - began) * page_size / (stats.computed_tokens - before)


def tier_page(*, model: str = "nano") -> None:
    """Microseconds of processor time: copied out of the pool, summed, written to a file; read, summed
    and copied back; and, for comparison, rounded to 8 bits and back, and computed by the model (a
    prompt of 1,024 tokens, per page). Files are in the page cache.
    """
    engine = select_engine(RuntimeConfig(model, dtype="float32", kv_memory_mb=64)).engine
    assert isinstance(engine, NativeEngine)
    page_size, pages = engine.memory.page_size, engine.page_memory()
    buffer = bytearray(pages.page_bytes)
    keys = [PageKey(page, b"p" * 16, bytes(4 * page_size)) for page in range(TIER_PAGES)]
    whole = np.random.default_rng(1).standard_normal(pages.page_bytes // 4, np.float32)
    with tempfile.TemporaryDirectory() as folder:
        file = PageFile(Path(folder) / "a.kv", b"i" * 32, page_size, pages.page_bytes)
        figures = {
            "copied out": best(lambda page: pages.read(page, buffer)),
            "summed and written": best(lambda page: file.write(page, keys[page], 1, buffer)),
            "read and summed": best(lambda page: file.read(page, keys[page], buffer)),
            "copied back": best(lambda page: pages.write(page, buffer)),
            "rounded to 8 bits and back": best(lambda page: rounded(whole)),
        }
        file.close()
    figures["computed"] = computed(model, page_size)
    print(f"{model}: a page has {pages.page_bytes:,} bytes")
    for what, microseconds in figures.items():
        print(f"{what}: {microseconds:.1f} us")


COMMANDS = runner.commands(resident, snapshot, events, tier_page)
