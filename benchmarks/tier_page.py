"""What a page of the second tier costs, part by part: `python -m benchmarks.tier_page [--model M]`.

Microseconds of processor time: copied out of the pool, summed, written to a file; read, summed and
copied back; and, for comparison, rounded to 8 bits and back, and computed by the model (a prompt of
1,024 tokens, per page). Files are in the page cache.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import runner
from benchmarks.own_loop import OwnLoop
from lmprog.config import RuntimeConfig
from lmprog.runtime.engine.engine import select_engine
from lmprog.runtime.engine.native.engine import NativeEngine
from lmprog.runtime.tier.disk_store import PageFile
from lmprog.runtime.tier.page_store import PageKey

ROUNDS, PAGES = 5, 128


def best(do: Callable[[int], object]) -> float:
    """Microseconds a page, of the fastest round over all pages."""

    def all_pages() -> None:
        for page in range(PAGES):
            do(page)

    return 1e6 / PAGES * min(runner.seconds(all_pages, 1, time.thread_time) for _ in range(ROUNDS))


def rounded(page: NDArray[np.float32]) -> NDArray[np.float32]:
    """One scale for 16 numbers, as many as a block of slots has."""
    numbers = page.reshape(-1, 16)
    scales = np.abs(numbers).max(axis=1, keepdims=True) / np.float32(127)
    return np.rint(numbers / scales).astype(np.int8) * scales


def computed(model: str, page_size: int) -> float:
    own = OwnLoop(model, kv_memory_mb=256, dtype="float32")
    text = " ".join(str(1000 + number) for number in range(2_000))
    stats = own.loop.scheduler.stats
    for prompt in (text[-2 * 1024 :], text[: 2 * 1024]):  # the first one warms up
        before, began = stats.computed_tokens, own.now()
        own.finish(own.ask(b"prompt", prompt, 1))
    return 1e6 * (own.now() - began) * page_size / (stats.computed_tokens - before)


@runner.command
def main(*, model: str = "nano") -> None:
    engine = select_engine(RuntimeConfig(model, dtype="float32", kv_memory_mb=64)).engine
    assert isinstance(engine, NativeEngine)
    page_size, pages = engine.memory.page_size, engine.page_memory()
    buffer = bytearray(pages.page_bytes)
    keys = [PageKey(page, b"p" * 16, bytes(4 * page_size)) for page in range(PAGES)]
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
